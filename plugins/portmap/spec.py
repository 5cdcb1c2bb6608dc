"""The host ports of an attachment, independent of the backend.

One rule: pure values; the backends turn them into rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni.address import Address, Interface
from process.values import dataclass, field


@dataclass(frozen=True)
class PortMapping:
    """One host port: `protocol` is "tcp", "udp" or "sctp"; `host_ip` None stands for every address of the host."""

    host_port: int
    container_port: int
    protocol: str
    host_ip: Address | None = None

    @property
    def bound_ip(self) -> Address | None:
        """The only host address whose port is mapped, None for all; 0.0.0.0 and :: are all of their family."""
        return None if self.host_ip is None or self.host_ip.is_unspecified else self.host_ip

    def applies_to(self, version: int) -> bool:
        """Returns whether the mapping applies to IP `version` (4 or 6)."""
        return self.host_ip is None or self.host_ip.version == version

    def overlaps(self, protocol: str, host_port: int, host_ip: Address | None) -> bool:
        """Returns whether a packet can match both this mapping and that port; `host_ip` None is every address."""
        same_port = (self.protocol, self.host_port) == (protocol, host_port)
        return same_port and (self.bound_ip is None or host_ip in (None, self.bound_ip))

    def __str__(self) -> str:
        ip = self.bound_ip
        address = "" if ip is None else f"[{ip}]:" if ip.version == 6 else f"{ip}:"
        return f"{address}{self.host_port}/{self.protocol}"


@dataclass(frozen=True)
class HostPorts:
    """The host ports of one attachment.

    `addresses` are the pod's by IP version, with the prefix of their subnet (10.22.0.2/16), at most one of each. With
    `snat` traffic from the host's loopback and from the pod's own subnet is masqueraded, with `masq_all` all of it;
    these packets have bit `mark_bit` set in their mark, which iptables sets in `external_mark_chain` if there is one.
    `conditions` are extra match words in the backend's language, by IP version. With `refuse_conflicts` a port that
    another running container uses is an error. `host_interfaces` are those that prevResult lists on the host,
    `host_veth` the host veth of the pod among them, "" if prevResult does not list it.
    """

    network: str
    container_id: str
    ifname: str
    mappings: tuple[PortMapping, ...] = ()
    addresses: Mapping[int, Interface] = field(default_factory=dict)
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
    def families(self) -> tuple[int, ...]:
        """The IP versions that have rules: those of the pod's addresses, 4 first."""
        return tuple(sorted(self.addresses))

    def mappings_for(self, version: int) -> tuple[PortMapping, ...]:
        """Returns the mappings that are for IP `version`, in order."""
        return tuple(mapping for mapping in self.mappings if mapping.applies_to(version))
