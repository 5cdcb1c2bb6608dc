"""Which attachments may be running: the paths of their namespaces, corrected by the kernel's interfaces.

One rule: an interface proves only that an attachment is running. One whose path is missing is running if its veth
exists, or its address is configured in a namespace that leads to its network. Where all attachments of a network look
gone and a veth of its bridge leads into a namespace that was not found, this is not the runtime's view, and nothing is
gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from attachment.presence import Presence
from cni.address import Address
from kernel.link import Link
from podwire.attachments import CachedAttachment
from podwire.networks import Network
from podwire.node.links import Kernel, NetworkNamespace
from podwire.node.records import Records, bridge_names

_OF_A_MASTER = ("macvlan", "macvtap", "ipvlan", "vlan")


@dataclass(frozen=True)
class Targets:
    """The host interfaces that pods of a network are behind: `bridges`, `masters`, or a host veth each (`routed`).

    With `any_link` the network has a plugin that is not known, or no configuration is left of it.
    """

    bridges: frozenset[str]
    masters: frozenset[str]
    routed: bool
    any_link: bool

    @classmethod
    def of(cls, configurations: Iterable[Network]) -> Targets:
        """Reads them in the configurations that one network has, or with which its attachments were made."""
        known = list(configurations)
        first = [one.plugins[0] for one in known]
        masters = frozenset(str(plugin["master"]) for plugin in first if "master" in plugin)
        kinds = {str(plugin["type"]) for plugin in first if "master" not in plugin}
        names = frozenset(name for one in known for name in bridge_names(one))
        return cls(names, masters, "ptp" in kinds, not first or bool(kinds - {"bridge", "ptp"}))

    def are_behind(self, kernel: Kernel, inside: NetworkNamespace, ifname: str) -> bool:
        """Tells whether an interface in a namespace leads to one of them."""
        if self.any_link:
            return True
        if end := kernel.host_veth(inside, ifname):
            master = kernel.by_index.get(end.master)
            return self.routed or master is None or master.name in self.bridges
        own = (inside.links or {}).get(ifname)
        lower = kernel.by_index.get(own.lower) if own and own.kind in _OF_A_MASTER else None
        return lower is not None and lower.name in self.masters


@dataclass(frozen=True)
class Presences:
    """Whether the attachments of a node may be running, judged by one look at it."""

    records: Records
    kernel: Kernel
    _targets: dict[str, Targets] = field(default_factory=dict)
    _hidden: dict[str, list[Link]] = field(default_factory=dict)

    @cached_property
    def by_file(self) -> Mapping[str, Presence]:
        """Whether the namespace of each attachment in the cache exists, by its file."""
        found = {item.path: self._corrected(item) for item in self.records.cached}
        by_network: dict[str, list[str]] = {}
        for item in self.records.cached:
            by_network.setdefault(item.network_name, []).append(item.path)
        for network, paths in by_network.items():
            if all(found[path] is Presence.GONE for path in paths) and self.hidden_ports(network):
                found |= dict.fromkeys(paths, Presence.UNKNOWN)
        return found

    def places(self, network: str, address: Address) -> list[tuple[NetworkNamespace, str]]:
        """Returns where an address of a network is in use: the namespaces and the interfaces that have it.

        Only those count that lead to the network's bridge, master or host veth: another network may have equal ranges.
        """
        found = self.kernel.interfaces_by_address.get(address, [])
        return [place for place in found if self._targets_of(network).are_behind(self.kernel, *place)]

    def hidden_ports(self, network: str) -> list[Link]:
        """Returns the veths on a network's bridges that lead into namespaces which were not found, or not entered."""
        if network not in self._hidden:
            names = self._targets_of(network).bridges
            masters = {own.index for own in self.kernel.links if own.name in names}
            ports = (own for own in self.kernel.links if own.kind == "veth" and own.master in masters)
            self._hidden[network] = [own for own in ports if own.lower_nsid is not None and self._is_hidden(own)]
        return self._hidden[network]

    def _corrected(self, item: CachedAttachment) -> Presence:
        """Returns what the path proves, unless the kernel proves that the attachment is running."""
        if item.presence in (Presence.HERE, Presence.ELSEWHERE) or not item.netns:
            return item.presence
        result = item.typed_result
        # The host veth is listed last. A bridge may be listed before it, and its MAC address may also be a port's.
        on_host = [interface for interface in result.interfaces if not interface.sandbox]
        mac = on_host[-1].mac.lower() if on_host else ""
        if mac and any(link.kind == "veth" and link.mac.lower() == mac for link in self.kernel.links):
            return Presence.ELSEWHERE  # it was renamed: by its name it has been looked up with the path
        users = (place for ip in result.ips for place in self.places(item.network_name, ip.address.ip))
        if any(inside.path not in self._others for inside, _ in users):
            return Presence.ELSEWHERE
        return item.presence

    @cached_property
    def _others(self) -> set[str]:
        """The namespaces of attachments that are at their paths: an address in them is theirs."""
        found = (
            self.kernel.namespaces.get(item.netns) for item in self.records.cached if item.presence is Presence.HERE
        )
        return {inside.path for inside in found if inside}

    def _is_hidden(self, port: Link) -> bool:
        inside = self.kernel.namespace_behind(port)
        return inside is None or inside.links is None

    def _targets_of(self, network: str) -> Targets:
        if network not in self._targets:
            made = (item.network for item in self.records.cached if item.network_name == network and item.network)
            configured = [self.records.networks[network]] if network in self.records.networks else []
            self._targets[network] = Targets.of([*configured, *made])
        return self._targets[network]
