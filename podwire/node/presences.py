"""Which attachments may be running: by the paths of their namespaces, corrected by the kernel's interfaces.

Interfaces can only prove that an attachment is running, never that it is not. An attachment whose path is
missing is running if its veth exists, or if its address is configured in a namespace connected to its network. If every
path of a network is missing and a veth on its bridge has its peer in an unknown namespace, podwire does not share the
runtime's view of the file system, and no attachment of that network counts as gone.
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
class HostLinks:
    """The host interfaces that a network's pods are connected to: `bridges`, `masters`, or a host veth each (`routed`).

    `any_link`: the network has an unknown plugin, or its configuration no longer exists, so any interface may do.
    """

    bridges: frozenset[str]
    masters: frozenset[str]
    routed: bool
    any_link: bool

    @classmethod
    def of(cls, configurations: Iterable[Network], kernel: Kernel) -> HostLinks:
        """Returns those of one network: of its configuration and of those that its attachments were created with."""
        known = list(configurations)
        first = [one.plugins[0] for one in known]
        masters = frozenset(kernel.real_name(str(plugin["master"])) for plugin in first if "master" in plugin)
        kinds = {str(plugin["type"]) for plugin in first if "master" not in plugin}
        names = frozenset(name for one in known for name in bridge_names(one, kernel))
        return cls(names, masters, "ptp" in kinds, not first or bool(kinds - {"bridge", "ptp"}))

    def are_connected_to(self, kernel: Kernel, namespace: NetworkNamespace, ifname: str) -> bool:
        """Returns whether an interface in a namespace is connected to one of them."""
        if self.any_link:
            return True
        if host_veth := kernel.host_veth(namespace, ifname):
            master = kernel.by_index.get(host_veth.master)
            return self.routed or master is None or master.name in self.bridges
        link = (namespace.links or {}).get(ifname)
        lower = kernel.by_index.get(link.iflink) if link and link.kind in _OF_A_MASTER else None
        return lower is not None and lower.name in self.masters


@dataclass(frozen=True)
class Presences:
    """The attachments of a node that may be running, by one snapshot of files and kernel."""

    records: Records
    kernel: Kernel
    _host_links: dict[str, HostLinks] = field(default_factory=dict)
    _hidden: dict[str, list[Link]] = field(default_factory=dict)

    @cached_property
    def by_file(self) -> Mapping[str, Presence]:
        """Whether the namespace of each attachment in the cache exists, by the path of its cache file."""
        presences = {item.path: self._corrected(item) for item in self.records.cached}
        by_network: dict[str, list[str]] = {}
        for item in self.records.cached:
            by_network.setdefault(item.network_name, []).append(item.path)
        for network, paths in by_network.items():
            if all(presences[path] is Presence.GONE for path in paths) and self.hidden_ports(network):
                presences |= dict.fromkeys(paths, Presence.UNKNOWN)
        return presences

    def interfaces_with(self, network: str, address: Address) -> list[tuple[NetworkNamespace, str]]:
        """Returns the interfaces of a network that have an address, as (namespace, ifname).

        They must be connected to the network's bridge, master or host veth: another network may have equal ranges.
        """
        users = self.kernel.interfaces_by_address.get(address, [])
        return [user for user in users if self._host_links_of(network).are_connected_to(self.kernel, *user)]

    def hidden_ports(self, network: str) -> list[Link]:
        """Returns the veths on a network's bridges whose peer is in a namespace that is unknown or was not entered."""
        if network not in self._hidden:
            names = self._host_links_of(network).bridges
            masters = {link.index for link in self.kernel.links if link.name in names}
            ports = (link for link in self.kernel.links if link.kind == "veth" and link.master in masters)
            self._hidden[network] = [port for port in ports if port.iflink_nsid is not None and self._is_hidden(port)]
        return self._hidden[network]

    def _corrected(self, item: CachedAttachment) -> Presence:
        """Returns the presence by the path, unless the kernel proves that the attachment is running."""
        if item.presence in (Presence.HERE, Presence.ELSEWHERE) or not item.netns:
            return item.presence
        result = item.typed_result
        # The host veth is listed last. A bridge may be listed before it, and its MAC address may also be a port's.
        on_host = [interface for interface in result.interfaces if not interface.sandbox]
        mac = on_host[-1].mac.lower() if on_host else ""
        if mac and any(link.kind == "veth" and link.mac.lower() == mac for link in self.kernel.links):
            return Presence.ELSEWHERE  # the host veth was renamed: the lookup by its name came with the path's
        users = (user for ip in result.ips for user in self.interfaces_with(item.network_name, ip.address.ip))
        if any(namespace.path not in self._occupied for namespace, _ in users):
            return Presence.ELSEWHERE
        return item.presence

    @cached_property
    def _occupied(self) -> set[str]:
        """The paths of the namespaces that exist at the path of an attachment: addresses in them are that one's."""
        namespaces = (
            self.kernel.namespaces.get(item.netns) for item in self.records.cached if item.presence is Presence.HERE
        )
        return {namespace.path for namespace in namespaces if namespace}

    def _is_hidden(self, port: Link) -> bool:
        namespace = self.kernel.namespace_behind(port)
        return namespace is None or namespace.links is None

    def _host_links_of(self, network: str) -> HostLinks:
        if network not in self._host_links:
            self._host_links[network] = HostLinks.of(self.records.configurations.get(network, ()), self.kernel)
        return self._host_links[network]
