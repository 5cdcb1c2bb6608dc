r"""The iptables rules of host ports: builds the desired rules, and parses existing rules.

This module is pure. A rule is a line in the format of `iptables -S`, which iptables-restore accepts as well.

    -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT                     (and OUTPUT)
    -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net\" id: \"cid\"" -m multiport --dports 8080,8081
        -j CNI-DN-x                                                                     jump rule
    -A CNI-DN-x -s 10.22.0.0/16 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK      mark rule: hairpin
    -A CNI-DN-x -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK      mark rule: 127.0.0.1
    -A CNI-DN-x -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.22.0.2:80        DNAT rule
    -A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ

A mark rule sets a bit of the packet mark; CNI-HOSTPORT-MASQ masquerades packets that have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from cni.address import Address, Network
from kernel.netfilter.iptables_chains import ChainScheme, quoted
from plugins.portmap.host_ports import HostPorts, PortMapping
from process.values import dataclass

DNAT, SETMARK, MASQ = "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"
DNAT_CHAINS = ChainScheme(DNAT, "CNI-DN-", "dnat ", "host port")
# Chains in which the reference plugin before 0.7.0 masqueraded. ADD does not create them; DEL and GC delete them.
OLD_CHAINS = ChainScheme("CNI-HOSTPORT-SNAT", "CNI-SN-", "snat ", "host port")

_PORTS_PER_RULE = 15  # XT_MULTI_PORTS (linux/netfilter/xt_multiport.h)
_LOCALHOST = IPv4Network("127.0.0.1/32")

_RULE = re.compile(
    r"-A (?P<chain>\S+)(?: -s (?P<source>\S+))?(?: -d (?P<destination>\S+))?"
    r" -p (?P<protocol>\w+)(?: -m (?:tcp|udp|sctp))? --dport (?P<port>\d+)"
    r" -j (?P<target>\S+)(?: --to-destination (?P<to>\S+))?"
)
_COMMENT = r'(?: -m comment --comment (?:"(?:[^"\\]|\\.)*"|[^\s"]+))?'
_UNCONDITIONAL_JUMP = re.compile(rf"-A \S+ -p \w+{_COMMENT} -m multiport --dports [\d,]+ -j \S+")
_PROTOCOL = re.compile(r"(?<!!) -p (\w+) ")
_PORTS = re.compile(r"(?<!!) -m multiport --dports ([\d,]+) ")
_TARGET = re.compile(r" -[jg] (\S+)$")
_OWNER = re.compile(r' --comment "dnat name: \\"(?P<network>[^"\\]+)\\" id: \\"(?P<container_id>[^"\\]+)\\"" ')


def chain_name(host_ports: HostPorts) -> str:
    """Returns the name of the container's chain."""
    return DNAT_CHAINS.name(host_ports.network, host_ports.container_id)


def packet_mark(host_ports: HostPorts) -> int:
    """Returns the packet mark that selects packets to masquerade."""
    return 1 << host_ports.mark_bit


def shared_chains(host_ports: HostPorts) -> tuple[str, ...]:
    """Returns the shared chains that these host ports need."""
    return (DNAT, SETMARK, MASQ) if host_ports.snat and not host_ports.external_mark_chain else (DNAT,)


def shared_rules(host_ports: HostPorts) -> list[str]:
    """Returns the rules in the shared chains, and the rules of built-in chains that jump to them."""
    rules = [f"-A {chain} -m addrtype --dst-type LOCAL -j {DNAT}" for chain in ("PREROUTING", "OUTPUT")]
    if MASQ in shared_chains(host_ports):
        mark = f"{packet_mark(host_ports):#x}/{packet_mark(host_ports):#x}"
        rules += [
            f'-A {SETMARK} -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark {mark}',
            f"-A {MASQ} -m mark --mark {mark} -j MASQUERADE",
            f'-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j {MASQ}',
        ]
    return rules


@dataclass(frozen=True)
class ChainRule:
    """A rule of a container's chain, as `iptables -S` lists it.

    `source` and `destination` None match any address; `to` is the destination of a DNAT rule ("10.22.0.2:80").
    """

    chain: str
    target: str
    protocol: str
    port: int
    source: Network | None = None
    destination: Network | None = None
    to: str = ""

    @property
    def host_ip(self) -> Address | None:
        """The host address that the rule matches, None for all or for a network."""
        is_address = self.destination is not None and self.destination.prefixlen == self.destination.max_prefixlen
        return self.destination.network_address if self.destination is not None and is_address else None

    @property
    def dnat_ip(self) -> Address | None:
        """The address in `to`, None if it cannot be parsed."""
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


def desired_chain_rules(host_ports: HostPorts, version: int) -> list[tuple[PortMapping, list[ChainRule], ChainRule]]:
    """Returns the rules of the container's chain: for each mapping the mark rules and the DNAT rule."""
    rules = []
    pod = host_ports.addresses[version]
    sources: list[Network | None] = []
    if host_ports.snat and host_ports.masq_all:
        sources = [None]
    elif host_ports.snat:
        sources = [pod.network if pod.network.prefixlen else None, *([_LOCALHOST] if version == 4 else [])]
    ip = str(pod.ip) if version == 4 else f"[{pod.ip}]"
    target = host_ports.external_mark_chain or SETMARK
    for mapping in host_ports.mappings_for(version):
        destination = ip_network(mapping.bound_ip) if mapping.bound_ip else None
        to = f"{ip}:{mapping.container_port}"
        dnat_rule = ChainRule(
            chain_name(host_ports), "DNAT", mapping.protocol, mapping.host_port, None, destination, to
        )
        mark_rules = [
            ChainRule(dnat_rule.chain, target, mapping.protocol, mapping.host_port, source, destination)
            for source in sources
        ]
        rules.append((mapping, mark_rules, dnat_rule))
    return rules


def desired_jump_rules(host_ports: HostPorts, version: int) -> list[str]:
    """Returns the jump rules to the container's chain, by protocol, with up to 15 ports each.

    They contain the ports of all mappings, whatever the IP version, as in the reference plugin.
    """
    words = "".join(f" {quoted(word)}" for word in host_ports.conditions.get(version, ()))
    comment = quoted(DNAT_CHAINS.comment(host_ports.network, host_ports.container_id))
    rules = []
    for protocol in sorted({mapping.protocol for mapping in host_ports.mappings}):
        ports = [str(mapping.host_port) for mapping in host_ports.mappings if mapping.protocol == protocol]
        for start in range(0, len(ports), _PORTS_PER_RULE):
            group = ",".join(ports[start : start + _PORTS_PER_RULE])
            rules.append(
                f"-A {DNAT} -p {protocol} -m comment --comment {comment} -m multiport --dports {group}{words}"
                f" -j {chain_name(host_ports)}"
            )
    return rules


@dataclass(frozen=True)
class JumpRule:
    """An existing rule of CNI-HOSTPORT-DNAT; `target` is the chain that it jumps to, "" if there is none.

    `protocol` and `ports` are empty if the rule matches all of them, or does not have the form that ADD creates.
    `conditional`: the rule has additional matches. `network` and `container_id` name the owner, "" if it is unknown.
    """

    line: str
    target: str
    protocol: str
    ports: tuple[int, ...]
    conditional: bool
    network: str
    container_id: str


def parse_jump_rules(listing: Iterable[str]) -> list[JumpRule]:
    """Returns the rules of CNI-HOSTPORT-DNAT, in order."""
    return [_parse_jump_rule(line) for line in listing if line.startswith(f"-A {DNAT} ")]


def parse_chain_rules(listing: Iterable[str], chain: str) -> list[ChainRule]:
    """Returns the rules of a container's chain that have the form that ADD creates, in order; skips other rules."""
    return list(_chain_rules(listing, f"-A {chain} "))


def _chain_rules(listing: Iterable[str], start: str) -> Iterator[ChainRule]:
    for line in listing:
        match = _RULE.fullmatch(line) if line.startswith(start) else None
        if match:
            source, destination = _network(match["source"]), _network(match["destination"])
            protocol, port, to = match["protocol"], int(match["port"]), match["to"] or ""
            yield ChainRule(match["chain"], match["target"], protocol, port, source, destination, to)


def _parse_jump_rule(line: str) -> JumpRule:
    protocol, ports, target, owner = (pattern.search(line) for pattern in (_PROTOCOL, _PORTS, _TARGET, _OWNER))
    return JumpRule(
        line=line,
        target=target[1] if target else "",
        protocol=protocol[1] if protocol else "",
        ports=tuple(map(int, ports[1].split(","))) if ports else (),
        conditional=not _UNCONDITIONAL_JUMP.fullmatch(line),
        network=owner["network"] if owner else "",
        container_id=owner["container_id"] if owner else "",
    )


def _network(text: str | None) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text) if text else None
    except ValueError:  # iptables also accepts masks that are not a prefix
        return None
