"""One snapshot of the node: the attachments in the cache and the stores, matched with the kernel's objects of each.

An attachment counts as running until the contrary is proven: its namespace no longer exists (presences.py),
or it has no namespace, no interface and no entry in the cache, and its ADD cannot be running any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from attachment.cache import ResultCache
from attachment.presence import Presence
from attachment.sandbox import attachment_ips
from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError
from cni.result import Result
from kernel.link import Link
from plugins.bandwidth.ifb_owner import IfbOwner, select_ifbs
from podwire.attachments import CachedAttachment
from podwire.layers import Layer
from podwire.node.host_ports import list_host_ports
from podwire.node.links import Kernel, NetworkNamespace
from podwire.node.model import AttachmentState, HostPort, Pod
from podwire.node.presences import Presences
from podwire.node.records import Records, Reservation
from podwire.node.rules import Rules

_BITS = 8
# By kind of interface: the configuration key that is shown as its mode, and the key's default.
_MODES = {"macvlan": ("mode", "bridge"), "ipvlan": ("mode", "l2"), "vlan": ("vlanId", 0)}


@dataclass(frozen=True)
class Snapshot:
    """A snapshot: all that was read from files and kernel at one moment; `layers` have the caches."""

    records: Records
    kernel: Kernel
    rules: Rules
    layers: tuple[Layer, ...]
    _caches: dict[str, ResultCache] = field(default_factory=dict)

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """All attachments, sorted by name: those in the cache, and those that only have an address reserved."""
        return tuple(sorted((*map(self._cached_pod, self.records.cached), *self._uncached_pods()), key=_by_name))

    @property
    def running(self) -> list[Pod]:
        """The attachments in the cache that may be running."""
        return [pod for pod in self.pods if not pod.leaked and pod.state is not AttachmentState.NO_CACHE]

    @cached_property
    def presences(self) -> Presences:
        """The attachments that may be running."""
        return Presences(self.records, self.kernel)

    @cached_property
    def reservations(self) -> Mapping[tuple[str, Attachment], list[Reservation]]:
        """The reservations that name a container, by network and attachment."""
        by_owner: dict[tuple[str, Attachment], list[Reservation]] = {}
        for pool in self.records.pools:
            for item in pool.reservations:
                if item.has_container:
                    by_owner.setdefault((item.network, item.attachment), []).append(item)
        return by_owner

    @cached_property
    def cached_by_network(self) -> Mapping[str, set[Attachment]]:
        """The attachments of the runtime's cache, by network."""
        by_network: dict[str, set[Attachment]] = {}
        for item in self.records.cached:
            by_network.setdefault(item.network_name, set()).add(item.attachment)
        return by_network

    @cached_property
    def _by_container(self) -> Mapping[tuple[str, str], list[Pod]]:
        by_container: dict[tuple[str, str], list[Pod]] = {}
        for pod in self.pods:
            by_container.setdefault((pod.network, pod.attachment.container_id), []).append(pod)
        return by_container

    def pods_of(self, network: str, attachment: Attachment) -> list[Pod]:
        """Returns the pod of an attachment, or all of its container if its ifname is ""; [] if it is unknown."""
        pods = self._by_container.get((network, attachment.container_id), [])
        return [pod for pod in pods if attachment.ifname in ("", pod.attachment.ifname)]

    def is_configured(self, item: Reservation) -> bool:
        """Returns whether an interface of the network has the reserved address, in any namespace."""
        return bool(self.presences.interfaces_with(item.network, item.address))

    def is_gone(self, item: Reservation) -> bool:
        """Returns whether the owner of a reserved address is provably no longer running."""
        pods = self.pods_of(item.network, item.attachment)
        return item.has_container and all(pod.leaked for pod in pods) and not self.is_configured(item)

    def _cached_pod(self, item: CachedAttachment) -> Pod:
        result = item.typed_result
        ifname = item.attachment.ifname
        host_names = item.host_interfaces
        namespace = (
            self.kernel.namespaces.get(item.netns)
            or self._namespace_behind(host_names)
            or self._namespace_with_addresses(item, result)
        )
        presence = self.presences.by_file[item.path]
        host_veth = self.kernel.host_veth(namespace, ifname, host_names) if namespace else None
        try:
            addresses = tuple(str(ip.address) for ip in attachment_ips(result, ifname, strict=False))
        except CniError:
            addresses = ()
        pod = Pod(
            item.network_name,
            item.attachment,
            _state(item, presence, namespace, host_veth),
            item.pod,
            item.netns or (namespace.path if namespace else ""),
            addresses=addresses,
            host_ports=tuple(self._host_ports(item)),
            leaked=presence is Presence.GONE,
        )
        return self._with_host_side(self._with_link(pod, item, namespace), host_veth)

    def _uncached_pods(self) -> Iterable[Pod]:
        """Yields the attachments that have reservations, but no entry in the cache."""
        cached = {(item.network_name, item.attachment) for item in self.records.cached}
        containers = {(network, attachment.container_id) for network, attachment in cached}
        for (network, attachment), reservations in self.reservations.items():
            is_legacy = not attachment.ifname and (network, attachment.container_id) in containers
            if (network, attachment) in cached or is_legacy:
                continue
            namespace, ifname = self._interface_behind_veth(network, (item.address for item in reservations))
            host_veth = self.kernel.host_veth(namespace, ifname) if namespace else None
            pod = Pod(
                network,
                attachment,
                AttachmentState.NO_CACHE,
                netns=namespace.path if namespace else "",
                addresses=tuple(item.file.name for item in reservations),
                leaked=not any(map(self._may_run, reservations)),
            )
            yield self._with_host_side(pod, host_veth)

    def _namespace_with_addresses(self, item: CachedAttachment, result: Result) -> NetworkNamespace | None:
        """Returns the namespace that has an attachment's addresses, if the cache has no path (results before 0.3.0)."""
        addresses = (ip.address.ip for ip in result.ips)
        namespace, ifname = self._interface_behind_veth(item.network_name, addresses) if not item.netns else (None, "")
        return namespace if ifname == item.attachment.ifname else None

    def _namespace_behind(self, names: Iterable[str]) -> NetworkNamespace | None:
        """Returns the namespace of the other end of the first of these host veths that has one."""
        veths = (self.kernel.by_name.get(name) for name in names)
        return next((namespace for veth in veths if veth and (namespace := self.kernel.namespace_behind(veth))), None)

    def _interface_behind_veth(self, network: str, addresses: Iterable[Address]) -> tuple[NetworkNamespace | None, str]:
        """Returns the first container veth that has one of a network's addresses, (None, "") if there is none."""
        interfaces = (user for address in addresses for user in self.presences.interfaces_with(network, address))
        return next((user for user in interfaces if self.kernel.host_veth(*user)), (None, ""))

    def _may_run(self, item: Reservation) -> bool:
        """Returns whether a container that is not in the cache may be running with the reserved address."""
        if item.is_recent or self.is_configured(item):
            return True
        if item.before_boot:
            return False
        if item.network not in self._caches:
            self._caches[item.network] = ResultCache.read(item.network, *(layer.results_dir for layer in self.layers))
        cache = self._caches[item.network]
        if not self.records.is_cache_complete and cache.has_file(item.attachment):
            return True  # its pod may be running without the address
        if self.presences.hidden_ports(item.network):
            return True
        return self.kernel.has_hidden_namespaces and not (
            self.records.is_cache_complete and cache.is_gone(item.attachment)
        )

    def _with_host_side(self, pod: Pod, host_veth: Link | None) -> Pod:
        """Returns a pod with what the host's interfaces show of it: its host veth, bridge and limits."""
        owner = IfbOwner(pod.network, *pod.attachment)
        ifbs = select_ifbs(owner, (self.kernel.by_name.get(name) for name in owner.names))
        sends = next((rate for ifb in ifbs if (rate := self.kernel.limits.get(ifb.index))), None)
        receives = self.kernel.limits.get(host_veth.index) if host_veth else None
        master = self.kernel.by_index.get(host_veth.master) if host_veth else None
        return replace(
            pod,
            host_interface=host_veth.name if host_veth else "",
            bridge=master.name if master else "",
            receives=receives and receives * _BITS,
            sends=sends and sends * _BITS,
        )

    def _with_link(self, pod: Pod, item: CachedAttachment, namespace: NetworkNamespace | None) -> Pod:
        """Returns a pod with the kind of its interface, its master, and the mode in its configuration."""
        links = namespace.links if namespace else None
        container_link = links.get(item.attachment.ifname) if links else None
        if container_link is None:
            return pod
        kind, master = container_link.kind, None
        if kind in _MODES and container_link.iflink_nsid is not None:  # with linkInContainer it is in the pod
            master = self.kernel.by_index.get(container_link.iflink)
        mode: object = ""
        for plugin in item.network.plugins if item.network else ():
            if plugin["type"] == kind in _MODES:
                key, default = _MODES[kind]
                mode = plugin.get(key) or default
        return replace(pod, kind=kind, master=master.name if master else "", mode=str(mode))

    def _host_ports(self, item: CachedAttachment) -> Iterable[HostPort]:
        """Yields the host ports in the runtime's request; one is confirmed if the packet filter has its rule."""
        with_rule = self.rules.published_ports(item.network_name, item.attachment)
        for port in list_host_ports(item):
            confirmed = True if port.key in with_rule else None if self.rules.unseen else False
            yield replace(port, confirmed=confirmed)


def _state(
    item: CachedAttachment, presence: Presence, namespace: NetworkNamespace | None, host_veth: Link | None
) -> AttachmentState:
    if presence is Presence.GONE:
        return AttachmentState.GONE
    if host_veth:
        return AttachmentState.OK
    if presence is Presence.UNKNOWN and item.netns:
        return AttachmentState.UNKNOWN
    if namespace is None or namespace.links is None:
        return AttachmentState.NOT_SEEN
    return AttachmentState.OK if item.attachment.ifname in namespace.links else AttachmentState.NO_INTERFACE


def _by_name(pod: Pod) -> tuple[str, str, Attachment]:
    return pod.network, pod.pod, pod.attachment
