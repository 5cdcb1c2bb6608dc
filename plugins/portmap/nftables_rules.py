"""The nftables rules of host ports: tables, chains, the rules of an attachment, and the owner of a rule.

This module is pure. Tables, chains and comments equal those of the reference plugin 1.9, so that each plugin can
remove the rules of the other. A comment contains only the container ID, so podwire stores network and attachment in
the rule's userdata, where `nft` ignores them.

Each port has a rule; there is no nftables map from ports to addresses. DEL of the reference plugin deletes rules by
comment, so map elements would remain and forward to a deleted pod. Its CHECK counts rules, so it would fail with one
map rule for each container.

Hairpin: the reference plugin masquerades only connections from the container to itself. podwire masquerades all
connections from the pod's subnet through a host port, as with iptables. A mark rule before the DNAT rule of each port
selects them, so that other connections between pods (direct, or to a Service) keep their source address.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv4Address, ip_network
from typing import NamedTuple

from cni.address import Network
from kernel.netfilter import nft_owner, nft_rule
from kernel.netfilter.nft import IPV4, IPV6, Chain, Hook, NftRule, Table
from kernel.netfilter.nft_owner import HASH_BYTES, OWNER, owner_id
from kernel.netfilter.nft_rule import MatchedDestination
from plugins.portmap import conditions
from plugins.portmap.conf import HostPorts, PortMapping
from plugins.portmap.port_conflicts import ForeignRule

# The names and the comment of the reference plugin; the loopback guard has a chain in these tables, too.
TABLES = {version: Table(family, "cni_hostport", "CNI portmap plugin") for version, family in ((4, IPV4), (6, IPV6))}

_DSTNAT, _SRCNAT = -100, 100  # priorities
_NETWORK_TYPE = 0x71  # type of the second item that podwire stores in userdata, after the owner
_OWNER_HEADER = bytes((OWNER, 2 * HASH_BYTES))
_OWNERS = re.compile(b"(?=" + re.escape(_OWNER_HEADER) + b"(.{%d}))" % (2 * HASH_BYTES), re.DOTALL)
_LOCALHOST = IPv4Address("127.0.0.1")
_ANY_ADDRESS: dict[int, Network] = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}


class Chains(NamedTuple):
    """The chains of one table, in the order of creation."""

    hostports: Chain
    hostip_hostports: Chain
    hostports_all: Chain
    prerouting: Chain
    output: Chain
    masquerading: Chain


def _chains(table: Table) -> Chains:
    return Chains(
        Chain(table, "hostports"),
        Chain(table, "hostip_hostports"),
        Chain(table, "hostports_all"),
        Chain(table, "prerouting", Hook("nat", 0, _DSTNAT)),  # NF_INET_PRE_ROUTING
        Chain(table, "output", Hook("nat", 3, _DSTNAT)),  # NF_INET_LOCAL_OUT
        Chain(table, "masquerading", Hook("nat", 4, _SRCNAT)),  # NF_INET_POST_ROUTING
    )


CHAINS = {version: _chains(table) for version, table in TABLES.items()}
HOSTPORTS_ALL_RULES = (nft_rule.jump("hostip_hostports"), nft_rule.jump("hostports"))
BASE_CHAIN_RULE = nft_rule.to_this_host() + nft_rule.jump("hostports_all")


class DesiredRule(NamedTuple):
    """A desired rule: its text as `nft list` prints it, its expressions for the kernel, and its mapping."""

    text: str
    expressions: bytes
    mapping: PortMapping | None = None


def port_chains(version: int) -> tuple[Chain, Chain]:
    """Returns the chains with DNAT rules, in the order of evaluation.

    Only the reference plugin 1.6 to 1.8 writes to the first chain: its rules with a host address.
    """
    chains = CHAINS[version]
    return chains.hostip_hostports, chains.hostports


def attachment_chains(version: int) -> tuple[Chain, ...]:
    """Returns the chains with rules of attachments."""
    return *port_chains(version), CHAINS[version].masquerading


def required_chains(host_ports: HostPorts, version: int) -> list[Chain]:
    """Returns the chains that these host ports need."""
    chains = CHAINS[version]
    return [chain for chain in chains if host_ports.snat or chain != chains.masquerading]


def valid_base_chain_rules(host_ports: HostPorts, version: int) -> list[bytes]:
    """Returns the valid rules of a base chain: podwire's, and the reference plugin's with the same conditions."""
    compiled_conditions = conditions.compile_conditions(host_ports.conditions.get(version, ()), version)
    if len(compiled_conditions) > 1:
        return [BASE_CHAIN_RULE]
    return [BASE_CHAIN_RULE, compiled_conditions[0] + BASE_CHAIN_RULE]


def base_chain_conditions(rule: NftRule) -> bytes:
    """Returns the conditions in a base chain's rule, as written by any version of the reference plugin."""
    before = nft_rule.split_expressions(rule.expressions)[:-1]
    local = nft_rule.to_this_host()
    count = len(nft_rule.split_expressions(local))
    if nft_rule.is_same_rule(local, b"".join(before[-count:])):
        before = before[:-count]
    return b"".join(before)


def port_rules(host_ports: HostPorts, version: int) -> list[DesiredRule]:
    """Returns the rules of chain hostports, in order: for each port the mark rule for hairpin, then the DNAT rule."""
    desired = []
    subnet = host_ports.addresses[version].network
    hairpin = host_ports.snat and not host_ports.masq_all
    source, mark = nft_rule.source(subnet), nft_rule.mark_statement(host_ports.mark_bit)
    compiled_conditions = conditions.compile_conditions(host_ports.conditions.get(version, ()), version)
    for mapping in host_ports.mappings_for(version):
        for condition in compiled_conditions:
            text, match, action = _port_rule(host_ports, version, mapping, condition)
            if hairpin:
                marked = source + match + mark + action
                desired.append(DesiredRule(f"{nft_family(version)} saddr {subnet} {text}", marked, mapping))
            desired.append(DesiredRule(text, match + action, mapping))
    return desired


def probe_rule(version: int) -> bytes:
    """Returns a rule that uses every kernel feature that port rules use."""
    address = _ANY_ADDRESS[version].network_address
    return nft_rule.mark_statement(0) + nft_rule.transport("tcp") + nft_rule.dnat(address, 1)


def reference_port_rules(host_ports: HostPorts, version: int) -> list[list[DesiredRule]]:
    """Returns, for each port, the forms of the reference plugin's rule: without and with conditions.

    ADD of podwire copies the conditions into the reference plugin's rules.
    """
    compiled_conditions = conditions.compile_conditions(host_ports.conditions.get(version, ()), version)
    desired = []
    for mapping in host_ports.mappings_for(version):
        rules = [
            _port_rule(host_ports, version, mapping, condition)
            for condition in dict.fromkeys((b"", *compiled_conditions))
        ]
        desired.append([DesiredRule(text, match + action, mapping) for text, match, action in rules])
    return desired


def _port_rule(host_ports: HostPorts, version: int, mapping: PortMapping, condition: bytes) -> tuple[str, bytes, bytes]:
    """Returns the DNAT rule of a port: its text, its match and its action."""
    address = host_ports.addresses[version].ip
    text, match = "", condition
    if mapping.bound_ip:
        text = f"{nft_family(version)} daddr {mapping.bound_ip} "
        match += nft_rule.destination(mapping.bound_ip)
    if nft_rule.parse_destination(condition).protocol != mapping.protocol:
        match += nft_rule.transport(mapping.protocol)
    match += nft_rule.destination_port(mapping.host_port)
    host = f"[{address}]" if version == 6 else str(address)
    text += f"{mapping.protocol} dport {mapping.host_port} dnat to {host}:{mapping.container_port}"
    return text, match, nft_rule.dnat(address, mapping.container_port)


def masquerading_rules(host_ports: HostPorts, version: int) -> list[DesiredRule]:
    """Returns the rules of chain masquerading, in order."""
    if not host_ports.snat:
        return []
    if host_ports.masq_all:
        return [_masquerading_rule(host_ports, version, _ANY_ADDRESS[version])]
    bit = f"0x{1 << host_ports.mark_bit:08x}"
    subnet = host_ports.addresses[version].network
    hairpin = _masquerading_rule(
        host_ports, version, subnet, f" meta mark & {bit} == {bit}", nft_rule.mark_match(host_ports.mark_bit)
    )
    return [hairpin, *_localhost_masquerading_rules(host_ports, version)]


def reference_masquerading_rules(host_ports: HostPorts, version: int) -> list[DesiredRule]:
    """Returns the reference plugin's rules of chain masquerading."""
    if not host_ports.snat or host_ports.masq_all:
        return masquerading_rules(host_ports, version)
    return [
        _masquerading_rule(host_ports, version, ip_network(host_ports.addresses[version].ip)),
        *_localhost_masquerading_rules(host_ports, version),
    ]


def _localhost_masquerading_rules(host_ports: HostPorts, version: int) -> list[DesiredRule]:
    return [_masquerading_rule(host_ports, version, ip_network(_LOCALHOST))] if version == 4 else []


def _masquerading_rule(
    host_ports: HostPorts, version: int, source: Network, text: str = "", match: bytes = b""
) -> DesiredRule:
    address, family = host_ports.addresses[version].ip, nft_family(version)
    source_text = source if source.prefixlen < source.max_prefixlen else source.network_address
    expressions = nft_rule.source(source) + nft_rule.destination(address) + match + nft_rule.masquerade()
    return DesiredRule(f"{family} saddr {source_text} {family} daddr {address}{text} masquerade", expressions)


def nft_family(version: int) -> str:
    """Returns the nftables family of an IP version, as nft names it."""
    return "ip" if version == 4 else "ip6"


def comment(container_id: str) -> str:
    """Returns the comment of a container's rules: the container ID, cut to the length that `nft` accepts."""
    return container_id.encode()[: nft_rule.COMMENT_MAX].decode(errors="ignore")


def userdata(host_ports: HostPorts) -> bytes:
    """Returns the userdata of an attachment's rules: comment, owner, and the name of the network if it fits."""
    owner = (OWNER, owner_id(host_ports.network, host_ports.container_id, host_ports.ifname))
    without_network = nft_rule.comment_userdata(host_ports.container_id, owner)
    with_network = nft_rule.comment_userdata(
        host_ports.container_id, owner, (_NETWORK_TYPE, host_ports.network.encode()[:255])
    )
    return with_network if len(with_network) <= nft_rule.USERDATA_MAX else without_network


def owner(rule: NftRule) -> bytes:
    """Returns the owner in a rule's userdata, b"" for a rule of the reference plugin."""
    return nft_owner.parse_owner(rule.userdata)


def network(rule: NftRule) -> str:
    """Returns the name of the network in a rule's userdata, "" if there is none."""
    return nft_rule.parse_userdata(rule.userdata).get(_NETWORK_TYPE, b"").decode(errors="replace")


def has_no_owner(message: bytes) -> bool:
    """Returns whether the rule in an undecoded message has no owner, like the reference plugin's rules."""
    return _OWNER_HEADER not in message


def may_be_stale(network_hash: bytes, valid_owners: Collection[bytes], message: bytes) -> bool:
    """Returns whether the rule in an undecoded message may belong to the network and to none of the `valid_owners`.

    True for a rule without owner, as the reference plugin creates it.
    """
    if any(owner in valid_owners for owner in _OWNERS.findall(message)):
        return False
    return network_hash in message or has_no_owner(message)


def cannot_be_copied(expressions: bytes) -> bool:
    """Returns whether the expressions refer to an anonymous set, which only one rule can use."""
    return b"lookup\0" in expressions


def belongs_to(rule: NftRule, host_ports: HostPorts) -> bool:
    """Returns whether a rule belongs to the attachment.

    A rule of the reference plugin does if its comment names the container and it contains one of the attachment's
    addresses. If the addresses are unknown, the comment is enough.
    """
    rule_owner = owner(rule)
    if rule_owner:
        return rule_owner == owner_id(host_ports.network, host_ports.container_id, host_ports.ifname)
    if rule.comment != comment(host_ports.container_id):
        return False
    addresses = [nft_rule.compared_value(address.ip.packed) for address in host_ports.addresses.values()]
    return not addresses or any(address in rule.expressions for address in addresses)


def condition_destinations(host_ports: HostPorts, version: int) -> list[MatchedDestination]:
    """Returns what the conditions match: one destination for each alternative that they compile to."""
    return [
        nft_rule.parse_destination(each)
        for each in conditions.compile_conditions(host_ports.conditions.get(version, ()), version)
    ]


def foreign_rule(
    rule: NftRule, host_ports: HostPorts, destinations: Collection[MatchedDestination]
) -> ForeignRule | None:
    """Returns a rule as a foreign rule; None for a rule of this container on any network, and for a rule without port.

    `destinations` are those of `condition_destinations`.
    """
    if rule.comment == comment(host_ports.container_id) and rule.comment:
        return None
    protocol, port, address, other_matches = nft_rule.parse_destination(rule.expressions)
    if not protocol or not port:
        return None
    may_be_cut = len(rule.comment.encode()) >= nft_rule.COMMENT_MAX
    has_same_conditions = any(
        (not other_matches or nft_rule.is_same_rule(destination.other_matches, other_matches))
        and (not address or destination.address in (None, address))
        for destination in destinations
    )
    container_id = "" if may_be_cut else rule.comment
    return ForeignRule(protocol, port, address, network(rule), container_id, conditional=not has_same_conditions)
