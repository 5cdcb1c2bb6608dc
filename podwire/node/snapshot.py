"""Who is who: the attachments of cache and stores, joined with what the kernel has of each.

One rule: an attachment may be running until the contrary is proven: its namespace is gone (presences.py), or it has no
namespace, no interface and no entry in the cache, and its ADD cannot be under way any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypedDict

from attachment.cache import ResultCache
from attachment.presence import Presence
from attachment.sandbox import attachment_ips
from cni.address import Address
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError
from cni.fields import Fields
from cni.result import Result
from kernel.link import Link
from plugins.bandwidth.ifb_owner import Owner, select_ifbs
from plugins.portmap import conf as portmap
from podwire.attachments import CachedAttachment
from podwire.node.links import Kernel, NetworkNamespace
from podwire.node.model import HostPort, Pod, State
from podwire.node.presences import Presences
from podwire.node.records import Records, Reservation
from podwire.node.rules import Rules

_BITS = 8


class _Outside(TypedDict):
    host_interface: str
    bridge: str
    receives: int | None
    sends: int | None


@dataclass(frozen=True)
class Snapshot:
    """Everything that was looked at, side by side; `cache_dir` is libcni's `results`."""

    records: Records
    kernel: Kernel
    rules: Rules
    cache_dir: str
    _caches: dict[str, ResultCache] = field(default_factory=dict)

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """All attachments: those of the cache, then those that only have an address reserved."""
        return tuple(sorted((*map(self._known, self.records.cached), *self._unknown()), key=_by_name))

    @cached_property
    def presences(self) -> Presences:
        """Which attachments may be running."""
        return Presences(self.records, self.kernel)

    @cached_property
    def reservations(self) -> Mapping[tuple[str, Attachment], list[Reservation]]:
        """The reservations of attachments, by network and attachment; remarks and residue are none."""
        found: dict[tuple[str, Attachment], list[Reservation]] = {}
        for pool in self.records.pools:
            for item in pool.reservations:
                if item.has_container:
                    found.setdefault((item.network, item.attachment), []).append(item)
        return found

    @cached_property
    def cached_by_network(self) -> Mapping[str, set[Attachment]]:
        """The attachments of the runtime's cache, by network."""
        found: dict[str, set[Attachment]] = {}
        for item in self.records.cached:
            found.setdefault(item.network_name, set()).add(item.attachment)
        return found

    @cached_property
    def _by_container(self) -> Mapping[tuple[str, str], list[Pod]]:
        found: dict[tuple[str, str], list[Pod]] = {}
        for pod in self.pods:
            found.setdefault((pod.network, pod.attachment.container_id), []).append(pod)
        return found

    def pods_of(self, network: str, attachment: Attachment) -> list[Pod]:
        """Returns the attachment as one, without an ifname all of its container; none when it is not known."""
        found = self._by_container.get((network, attachment.container_id), [])
        return [pod for pod in found if attachment.ifname in ("", pod.attachment.ifname)]

    def is_configured(self, item: Reservation) -> bool:
        """Tells whether an interface of the network has the reserved address, in whichever namespace."""
        return bool(self.places(item.network, item.address))

    def places(self, network: str, address: Address) -> list[tuple[NetworkNamespace, str]]:
        """Returns where an address of a network is in use: the namespaces and the interfaces that have it."""
        return self.presences.places(network, address)

    def is_gone(self, item: Reservation) -> bool:
        """Tells whether surely nobody lives who has the reserved address."""
        pods = self.pods_of(item.network, item.attachment)
        return item.has_container and all(pod.leaked for pod in pods) and not self.is_configured(item)

    def _known(self, item: CachedAttachment) -> Pod:
        result = item.typed_result
        ifname = item.attachment.ifname
        told = [own.name for own in result.interfaces if not own.sandbox]
        inside = self.kernel.namespaces.get(item.netns) or self._behind(told) or self._holder(item, result)
        presence = self.presences.by_file[item.path]
        outside = self.kernel.host_veth(inside, ifname, told) if inside else None
        try:
            addresses = tuple(str(ip.address) for ip in attachment_ips(result, ifname, strict=False))
        except CniError:
            addresses = ()
        return Pod(
            item.network_name,
            item.attachment,
            _state(item, presence, inside, outside),
            item.pod,
            item.netns or (inside.path if inside else ""),
            addresses=addresses,
            host_ports=tuple(self._host_ports(item)),
            leaked=presence is Presence.GONE,
            **self._outside(item.network_name, item.attachment, outside),
        )

    def _unknown(self) -> Iterable[Pod]:
        known = {(item.network_name, item.attachment) for item in self.records.cached}
        containers = {(network, attachment.container_id) for network, attachment in known}
        for (network, attachment), found in self.reservations.items():
            is_legacy = not attachment.ifname and (network, attachment.container_id) in containers
            if (network, attachment) in known or is_legacy:
                continue
            inside, ifname = self._place(network, (item.address for item in found))
            outside = self.kernel.host_veth(inside, ifname) if inside else None
            yield Pod(
                network,
                attachment,
                State.NO_CACHE,
                netns=inside.path if inside else "",
                addresses=tuple(item.file.name for item in found),
                leaked=not any(map(self._may_live, found)),
                **self._outside(network, attachment, outside),
            )

    def _holder(self, item: CachedAttachment, result: Result) -> NetworkNamespace | None:
        """Returns where the addresses are of one whose namespace the cache does not have (results before 0.3.0)."""
        addresses = (ip.address.ip for ip in result.ips)
        inside, ifname = self._place(item.network_name, addresses) if not item.netns else (None, "")
        return inside if ifname == item.attachment.ifname else None

    def _behind(self, told: Iterable[str]) -> NetworkNamespace | None:
        """Returns the namespace that one of these host veths leads into, whatever its path is here."""
        ends = (self.kernel.by_name.get(name) for name in told)
        return next((found for end in ends if end and (found := self.kernel.namespace_behind(end))), None)

    def _place(self, network: str, addresses: Iterable[Address]) -> tuple[NetworkNamespace | None, str]:
        """Returns where one of a network's addresses is configured, by a veth pair of the host."""
        found = (place for address in addresses for place in self.places(network, address))
        return next((place for place in found if self.kernel.host_veth(*place)), (None, ""))

    def _may_live(self, item: Reservation) -> bool:
        """Tells whether a container that the cache does not know may be running with the reserved address."""
        if item.is_recent or self.is_configured(item):
            return True
        if item.before_boot:
            return False
        if item.network not in self._caches:
            self._caches[item.network] = ResultCache.read(item.network, self.cache_dir)
        cache = self._caches[item.network]
        if not self.records.is_cache_complete and cache.has_file(item.attachment):
            return True  # a pod may have lost its address
        if self.presences.hidden_ports(item.network):
            return True
        return self.kernel.has_hidden_namespaces and not (
            self.records.is_cache_complete and cache.is_gone(item.attachment)
        )

    def _outside(self, network: str, attachment: Attachment, outside: Link | None) -> _Outside:
        """Returns what is told of the host's end."""
        owner = Owner(network, *attachment)
        ifbs = select_ifbs(owner, (self.kernel.by_name.get(name) for name in owner.names))
        sends = next((rate for ifb in ifbs if (rate := self.kernel.limits.get(ifb.index))), None)
        receives = self.kernel.limits.get(outside.index) if outside else None
        master = self.kernel.by_index.get(outside.master) if outside else None
        return {
            "host_interface": outside.name if outside else "",
            "bridge": master.name if master else "",
            "receives": receives and receives * _BITS,
            "sends": sends and sends * _BITS,
        }

    def _host_ports(self, item: CachedAttachment) -> Iterable[HostPort]:
        """Yields the host ports that were asked for, each of them confirmed if there is a rule for it."""
        for plugin in item.network.plugins if item.network else ():
            if item.network and plugin.get("type") == "portmap":
                items = item.network.build_config(plugin, capability_args=item.capability_args)
                conf = NetConf(item.network_name, item.network.version, Fields(items), items)
                args = CmdArgs("DEL", item.attachment.container_id, item.netns, item.attachment.ifname, "", (), {})
                there = self.rules.ports(item.network_name, item.attachment)
                for mapping in portmap.parse_leniently(args, conf).mappings:
                    own_ip = str(mapping.only_to or "")
                    port = HostPort(mapping.host_port, mapping.container_port, mapping.protocol, own_ip)
                    confirmed = True if port.key in there else None if self.rules.unseen else False
                    yield HostPort(port.host_port, port.container_port, port.protocol, own_ip, confirmed)


def _state(item: CachedAttachment, presence: Presence, inside: NetworkNamespace | None, outside: Link | None) -> State:
    if presence is Presence.GONE:
        return State.GONE
    if outside:
        return State.OK
    if presence is Presence.UNKNOWN and item.netns:
        return State.UNKNOWN
    if inside is None or inside.links is None:
        return State.NOT_SEEN
    return State.OK if item.attachment.ifname in inside.links else State.NO_INTERFACE


def _by_name(pod: Pod) -> tuple[str, str, Attachment]:
    return pod.network, pod.pod, pod.attachment
