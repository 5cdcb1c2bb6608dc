"""The host ports of an attachment, independent of the backend.

These are pure values; the backends turn them into packet-filter rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni.address import Address, Cidr
from process.values import dataclass, field


@dataclass(frozen=True)
class PortMapping:
    """A published host port: `protocol` is "tcp", "udp" or "sctp"; `host_ip` None means every address of the host."""

    host_port: int
    container_port: int
    protocol: str
    host_ip: Address | None = None

    @property
    def bound_ip(self) -> Address | None:
        """The host address that the mapping is limited to, None if it has no `host_ip`, or 0.0.0.0 or ::."""
        return None if self.host_ip is None or self.host_ip.is_unspecified else self.host_ip

    def applies_to(self, version: int) -> bool:
        """Returns whether the mapping applies to IP `version` (4 or 6)."""
        return self.host_ip is None or self.host_ip.version == version

    def overlaps(self, protocol: str, host_port: int, host_ip: Address | None) -> bool:
        """Returns whether a packet can match both this mapping and `host_port`; `host_ip` None means every address."""
        same_port = (self.protocol, self.host_port) == (protocol, host_port)
        return same_port and (self.bound_ip is None or host_ip in (None, self.bound_ip))

    def __str__(self) -> str:
        ip = self.bound_ip
        address = "" if ip is None else f"[{ip}]:" if ip.version == 6 else f"{ip}:"
        return f"{address}{self.host_port}/{self.protocol}"


@dataclass(frozen=True)
class HostPorts:
    """The host ports of one attachment.

    `addresses`: at most one pod address for each IP version, with the prefix length of its subnet (10.22.0.2/16).
    `snat`: masquerade connections from the host's loopback and from the pod's subnet.
    `masq_all`: masquerade all connections.
    `mark_bit`: the bit of the packet mark that selects packets to masquerade.
    `external_mark_chain`: the iptables chain that sets the packet mark instead; "" for portmap's own chain.
    `conditions`: additional matches in the language of the backend, by IP version.
    `refuse_conflicts`: ADD fails if another running container has published the same port.
    `host_interfaces`: the host's interfaces in prevResult.
    `host_veth`: the pod's host veth among them, "" if prevResult does not list it.
    """

    network: str
    container_id: str
    ifname: str
    mappings: tuple[PortMapping, ...] = ()
    addresses: Mapping[int, Cidr] = field(default_factory=dict)
    snat: bool = True
    masq_all: bool = False
    mark_bit: int = 13
    external_mark_chain: str = ""
    conditions: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    refuse_conflicts: bool = False
    netns: str = ""
    host_interfaces: tuple[str, ...] = ()
    host_veth: str = ""

    @property
    def ip_versions(self) -> tuple[int, ...]:
        """The IP versions for which rules exist: those of the pod's addresses, in order."""
        return tuple(sorted(self.addresses))

    def mappings_for(self, version: int) -> tuple[PortMapping, ...]:
        """Returns the mappings that apply to IP `version`, in order."""
        return tuple(mapping for mapping in self.mappings if mapping.applies_to(version))
