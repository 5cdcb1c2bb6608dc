r"""The rules of host ports in iptables' words: those that are wanted, and those that are found.

One rule: pure; a rule is the line by which `iptables -S` lists it, which iptables-restore takes as well.

    -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT                     (and OUTPUT)
    -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net\" id: \"cid\"" -m multiport --dports 8080,8081
        -j CNI-DN-x                                                                     an entry
    -A CNI-DN-x -s 10.22.0.0/16 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK      hairpin: mark to masquerade
    -A CNI-DN-x -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
    -A CNI-DN-x -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.22.0.2:80
    -A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from cni.address import Address, Network
from kernel.netfilter.iptables_chains import ContainerChains, quoted
from plugins.portmap.spec import HostPorts, PortMapping
from process.values import dataclass

DNAT, SETMARK, MASQ = "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"
CHAINS = ContainerChains(DNAT, "CNI-DN-", "dnat ", "host port")
# Before 0.7.0 the reference masqueraded in chains of their own; nobody makes them any more, DEL and GC remove them.
OLD_CHAINS = ContainerChains("CNI-HOSTPORT-SNAT", "CNI-SN-", "snat ", "host port")

_PORTS_OF_A_RULE = 15  # XT_MULTI_PORTS (linux/netfilter/xt_multiport.h)
_LOCALHOST = IPv4Network("127.0.0.1/32")

_RULE = re.compile(
    r"-A (?P<chain>\S+)(?: -s (?P<source>\S+))?(?: -d (?P<destination>\S+))?"
    r" -p (?P<protocol>\w+)(?: -m (?:tcp|udp|sctp))? --dport (?P<port>\d+)"
    r" -j (?P<target>\S+)(?: --to-destination (?P<to>\S+))?"
)
_COMMENT = r'(?: -m comment --comment (?:"(?:[^"\\]|\\.)*"|[^\s"]+))?'
_PLAIN_ENTRY = re.compile(rf"-A \S+ -p \w+{_COMMENT} -m multiport --dports [\d,]+ -j \S+")
_PROTOCOL = re.compile(r"(?<!!) -p (\w+) ")
_PORTS = re.compile(r"(?<!!) -m multiport --dports ([\d,]+) ")
_TARGET = re.compile(r" -[jg] (\S+)$")
_OWNER = re.compile(r' --comment "dnat name: \\"(?P<network>[^"\\]+)\\" id: \\"(?P<container_id>[^"\\]+)\\"" ')


def chain_of(wanted: HostPorts) -> str:
    """Returns the name of the container's chain."""
    return CHAINS.name(wanted.network, wanted.container_id)


def mark_of(wanted: HostPorts) -> int:
    """Returns the mark of packets to masquerade."""
    return 1 << wanted.mark_bit


def shared_chains(wanted: HostPorts) -> tuple[str, ...]:
    """Returns the chains that all containers share, as far as these host ports need them."""
    return (DNAT, SETMARK, MASQ) if wanted.snat and not wanted.external_mark_chain else (DNAT,)


def shared_rules(wanted: HostPorts) -> list[str]:
    """Returns the rules in those chains, and the way into them."""
    found = [f"-A {chain} -m addrtype --dst-type LOCAL -j {DNAT}" for chain in ("PREROUTING", "OUTPUT")]
    if MASQ in shared_chains(wanted):
        mark = f"{mark_of(wanted):#x}/{mark_of(wanted):#x}"
        found += [
            f'-A {SETMARK} -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark {mark}',
            f"-A {MASQ} -m mark --mark {mark} -j MASQUERADE",
            f'-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j {MASQ}',
        ]
    return found


@dataclass(frozen=True)
class ChainRule:
    """One rule of a container's chain; a network that is everything is None, `to` is of DNAT ("10.22.0.2:80")."""

    chain: str
    target: str
    protocol: str
    port: int
    source: Network | None = None
    destination: Network | None = None
    to: str = ""

    @property
    def host_ip(self) -> Address | None:
        """The host's address that the rule is for, None for all of them."""
        one = self.destination is not None and self.destination.prefixlen == self.destination.max_prefixlen
        return self.destination.network_address if self.destination is not None and one else None

    @property
    def leads_to(self) -> Address | None:
        """The address to which packets go, None when it is not to be read."""
        try:
            return ip_address(self.to.rpartition(":")[0].strip("[]"))
        except ValueError:
            return None

    def __str__(self) -> str:
        source = f" -s {self.source}" if self.source else ""
        destination = f" -d {self.destination}" if self.destination else ""
        to = f" --to-destination {self.to}" if self.to else ""
        return (
            f"-A {self.chain}{source}{destination} -p {self.protocol} -m {self.protocol} --dport {self.port}"
            f" -j {self.target}{to}"
        )


def chain_rules(wanted: HostPorts, version: int) -> list[tuple[PortMapping, list[ChainRule], ChainRule]]:
    """Returns what belongs into the container's chain: for each mapping rules that mark packets, and the DNAT rule."""
    found = []
    own = wanted.addresses[version]
    sources: list[Network | None] = []
    if wanted.snat and wanted.masq_all:
        sources = [None]
    elif wanted.snat:
        sources = [own.network if own.network.prefixlen else None, *([_LOCALHOST] if version == 4 else [])]
    ip = str(own.ip) if version == 4 else f"[{own.ip}]"
    target = wanted.external_mark_chain or SETMARK
    for mapping in wanted.of(version):
        place = ip_network(mapping.only_to) if mapping.only_to else None
        to = f"{ip}:{mapping.container_port}"
        dnat = ChainRule(chain_of(wanted), "DNAT", mapping.protocol, mapping.host_port, None, place, to)
        marks = [
            ChainRule(dnat.chain, target, mapping.protocol, mapping.host_port, source, place) for source in sources
        ]
        found.append((mapping, marks, dnat))
    return found


def entries(wanted: HostPorts, version: int) -> list[str]:
    """Returns the rules that lead to the container's chain: by protocol, with the ports of all mappings (reference)."""
    words = "".join(f" {quoted(word)}" for word in wanted.conditions.get(version, ()))
    comment = quoted(CHAINS.comment(wanted.network, wanted.container_id))
    found = []
    for protocol in sorted({mapping.protocol for mapping in wanted.mappings}):
        ports = [str(mapping.host_port) for mapping in wanted.mappings if mapping.protocol == protocol]
        for start in range(0, len(ports), _PORTS_OF_A_RULE):
            group = ",".join(ports[start : start + _PORTS_OF_A_RULE])
            found.append(
                f"-A {DNAT} -p {protocol} -m comment --comment {comment} -m multiport --dports {group}{words}"
                f" -j {chain_of(wanted)}"
            )
    return found


@dataclass(frozen=True)
class Entry:
    """One rule of CNI-HOSTPORT-DNAT as it was found; no `ports`, or no `protocol`, where it does not name them.

    `conditional` tells that it has further conditions, `network` and `container_id` whose it is, "" if it does not.
    """

    line: str
    target: str
    protocol: str
    ports: tuple[int, ...]
    conditional: bool
    network: str
    container_id: str


def found_entries(listing: Iterable[str]) -> list[Entry]:
    """Returns the rules of CNI-HOSTPORT-DNAT, in order."""
    return [_entry(line) for line in listing if line.startswith(f"-A {DNAT} ")]


def found_chain_rules(listing: Iterable[str], chain: str) -> list[ChainRule]:
    """Returns the rules of a container's chain that have the form of ours, in order; others are none of them."""
    return list(_chain_rules(listing, f"-A {chain} "))


def _chain_rules(listing: Iterable[str], start: str) -> Iterator[ChainRule]:
    for line in listing:
        match = _RULE.fullmatch(line) if line.startswith(start) else None
        if match:
            source, destination = _network(match["source"]), _network(match["destination"])
            protocol, port, to = match["protocol"], int(match["port"]), match["to"] or ""
            yield ChainRule(match["chain"], match["target"], protocol, port, source, destination, to)


def _entry(line: str) -> Entry:
    protocol, ports, target, owner = (pattern.search(line) for pattern in (_PROTOCOL, _PORTS, _TARGET, _OWNER))
    return Entry(
        line=line,
        target=target[1] if target else "",
        protocol=protocol[1] if protocol else "",
        ports=tuple(map(int, ports[1].split(","))) if ports else (),
        conditional=not _PLAIN_ENTRY.fullmatch(line),
        network=owner["network"] if owner else "",
        container_id=owner["container_id"] if owner else "",
    )


def _network(text: str | None) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text) if text else None
    except ValueError:  # iptables can match on bits that are no prefix
        return None
