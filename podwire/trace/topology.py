"""The node's pods as places, and which of them an address or a host port belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from ipaddress import ip_interface

from cni.address import Address
from cni.conf import Attachment
from cni.errors import invalid_conf
from cni.fields import Fields
from kernel.link import Link
from kernel.netns import Netns
from podwire.attachments import CachedAttachment
from podwire.flannel import resolve_delegate
from podwire.lint.known import nearest
from podwire.node.model import HostPort, Pod
from podwire.node.snapshot import Snapshot
from podwire.trace.place import NODE, POD, Place

_NAMES_MAX = 10


class PodPlace(Place):
    """The namespace of a pod, seen from one of its attachments."""

    def __init__(self, pod: Pod, netns: Netns) -> None:
        super().__init__(POD, name_of(pod), netns)
        self.pod = pod

    @cached_property
    def pod_addresses(self) -> tuple[Address, ...]:
        """The addresses of the attachment, by its result or the kernel."""
        return tuple(ip_interface(text).ip for text in self.pod.addresses)

    def is_on_link(self, address: Address) -> bool:
        """Returns whether an address is in a subnet of the attachment."""
        return any(address in ip_interface(text).network for text in self.pod.addresses)

    def address(self, version: int) -> Address | None:
        """Returns the attachment's address of an IP version, None without one."""
        return next((item for item in self.pod_addresses if item.version == version), None)


class Topology:
    """The node and its pods. A context manager: places are open as long as it is."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.node = Place(NODE, "node")
        self._stack = ExitStack()
        self._places: dict[Pod, PodPlace] = {}

    def __enter__(self) -> Topology:
        self._stack.enter_context(self.node)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """The running attachments whose namespace can be entered, without loopback interfaces."""
        usable = (pod for pod in self.snapshot.pods if pod.netns and pod.addresses and not pod.leaked)
        return tuple(pod for pod in usable if not all(ip_interface(text).is_loopback for text in pod.addresses))

    @cached_property
    def default_attachments(self) -> frozenset[Pod]:
        """The attachments with their pods' default routes; of a pod without a default route eth0's, else the first."""
        routed = {pod for pod in self.pods if self.has_default(pod, 4) or self.has_default(pod, 6)}
        unrouted = (pods[0] for pods in self._by_container.values() if routed.isdisjoint(pods))
        return frozenset(routed.union(unrouted))

    @cached_property
    def _by_container(self) -> Mapping[str, list[Pod]]:
        by_container: dict[str, list[Pod]] = {}
        for pod in sorted(self.pods, key=lambda pod: pod.attachment.ifname != "eth0"):
            by_container.setdefault(pod.attachment.container_id, []).append(pod)
        return by_container

    def has_default(self, pod: Pod, version: int) -> bool:
        """Returns whether an attachment has its pod's default route of an IP version, with the lowest metric."""
        cached = map(self.cached, self._by_container[pod.attachment.container_id])
        metrics = [metric for one in cached if one and (metric := one.default_metric(version)) is not None]
        this = self.cached(pod)
        return this is not None and bool(metrics) and this.default_metric(version) == min(metrics)

    def find(self, name: str) -> Pod:
        """Returns the pod of a name, container ID (or its beginning), or namespace; raises CniError(7)."""
        exact = [pod for pod in self.pods if name in _names(pod)]
        loose = exact or [
            pod for pod in self.pods if pod.attachment.container_id.startswith(name) or pod.pod.endswith(f"/{name}")
        ]
        containers = {pod.attachment.container_id for pod in loose}
        if len(containers) == 1:
            return next((pod for pod in loose if pod in self.default_attachments), loose[0])
        known = sorted({name_of(pod) for pod in self.pods})
        if containers:
            msg = f'several pods match "{name}": {", ".join(sorted(name_of(pod) for pod in loose))}'
            raise invalid_conf(msg, "give namespace/name, or the container's ID")
        likely = nearest(name, known)
        hint = f'did you mean "{likely}"?' if likely else f"running pods: {', '.join(known[:_NAMES_MAX]) or 'none'}"
        hint += "; for a pod of another node, give its address"
        raise invalid_conf(f'no running pod of this node is called "{name}"', hint)

    def attachments(self, name: str) -> list[Pod]:
        """Returns all attachments of the pod that `find` returns; raises CniError(7)."""
        container = self.find(name).attachment.container_id
        return [pod for pod in self.pods if pod.attachment.container_id == container]

    def place(self, pod: Pod) -> PodPlace:
        """Returns the place of a pod, opened when first used; raises CniError(8)."""
        if pod not in self._places:
            netns = self._stack.enter_context(Netns(pod.netns))
            self._places[pod] = self._stack.enter_context(PodPlace(pod, netns))
        return self._places[pod]

    def place_of(self, address: Address) -> Place | None:
        """Returns the pod or the node that has an address, None for others."""
        pod = self.pod_of(address)
        if pod is not None:
            return self.place(pod)
        return self.node if self.node.has(address) else None

    def pod_of(self, address: Address) -> Pod | None:
        """Returns the pod that has an address, None without one."""
        return self._by_address.get(address)

    @cached_property
    def _by_address(self) -> dict[Address, Pod]:
        return {ip_interface(text).ip: pod for pod in self.pods for text in pod.addresses}

    def published(self, address: Address, port: int, protocol: str) -> tuple[Pod, HostPort] | None:
        """Returns the pod that publishes a port at an address of the node, None if none does."""
        for pod in self.pods:
            for item in pod.host_ports:
                bound = item.host_ip in ("", "0.0.0.0", "::", str(address))
                if (item.host_port, item.protocol) == (port, protocol) and (bound or address.is_loopback):
                    return pod, item
        return None

    def cached(self, pod: Pod) -> CachedAttachment | None:
        """Returns the entry of a pod in the runtime's cache, None without one."""
        return self._cached.get((pod.network, pod.attachment))

    @cached_property
    def _cached(self) -> dict[tuple[str, Attachment], CachedAttachment]:
        return {(one.network_name, one.attachment): one for one in self.snapshot.records.cached}

    def is_gateway(self, pod: Pod) -> bool:
        """Returns whether the configuration makes the node the pod's gateway."""
        cached = self.cached(pod)
        plugin = resolve_delegate(cached.network.plugins[0]) if cached and cached.network else {"type": ""}
        fields = Fields(plugin)
        return plugin["type"] == "ptp" or fields.boolean("isGateway") or fields.boolean("isDefaultGateway")

    def host_veth(self, pod: Pod) -> Link | None:
        """Returns the host's end of a pod's veth, None for other kinds of interfaces."""
        return self.node.link(pod.host_interface) if pod.host_interface else None

    def node_address(self, version: int) -> Address | None:
        """Returns the node's address on its uplink, else another one that does not belong to a pods' bridge."""
        bridges = {pod.bridge for pod in self.pods} | {pod.host_interface for pod in self.pods}
        usable = [
            (item, each)
            for item, links in self.node.links_by_address.items()
            for each in links[:1]
            if item.version == version and not item.is_link_local and not item.is_loopback and each.is_up
        ]
        uplinks = [one.ifindex for one in self.node.fib.list_defaults(version)]
        ranked = sorted(
            usable,
            key=lambda pair: (
                uplinks.index(pair[1].index) if pair[1].index in uplinks else len(uplinks),
                pair[1].name in bridges,
            ),
        )
        return ranked[0][0] if ranked else None


def name_of(pod: Pod) -> str:
    """Returns the name under which a pod is printed: namespace/name, or the container's ID."""
    return pod.pod or pod.attachment.container_id


def _names(pod: Pod) -> Iterable[str]:
    return pod.pod, pod.attachment.container_id, pod.netns, os.path.basename(pod.netns)
