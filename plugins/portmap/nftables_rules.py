"""The nftables rules of host ports: tables, chains, the rules of an attachment, and the owner of a rule.

One rule: pure values. Tables, chains and comments are the reference's (1.9), so that either can remove the other's
rules. The comment is only the container ID, so network and attachment are stored in the rule's userdata, which `nft`
does not read.

Why a list of rules, and no maps from ports to addresses: the reference's DEL deletes rules by their comment. Elements
of a map would remain, and forward to a deleted pod; and its CHECK counts rules, so it would fail on a rule with a map
for each container.

Hairpin: the reference masquerades only what a container sends to itself. Here it is all traffic from the pod's subnet
through a host port, as with iptables. A rule before each port's rule marks that traffic, so that other traffic between
pods (to a service's address, or direct) keeps its source.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv4Address, ip_network
from typing import NamedTuple

from cni.address import Network
from kernel.netfilter import nft_owner, nft_rule
from kernel.netfilter.nft import Chain, Hook, Rule, Table
from kernel.netfilter.nft_owner import HASH_BYTES, OWNER, owner_id
from kernel.netfilter.nft_rule import MatchedDestination
from plugins.portmap import conditions
from plugins.portmap.port_conflicts import ForeignRule
from plugins.portmap.spec import HostPorts, PortMapping
from plugins.portmap.tables import TABLES

_DSTNAT, _SRCNAT = -100, 100  # priorities
_NETWORK = 0x71  # type of our second item in a rule's userdata; the first is the owner
_OWNER_HEAD = bytes((OWNER, 2 * HASH_BYTES))
_OWNERS = re.compile(b"(?=" + re.escape(_OWNER_HEAD) + b"(.{%d}))" % (2 * HASH_BYTES), re.DOTALL)
_LOCALHOST = IPv4Address("127.0.0.1")
_ALL: dict[int, Network] = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}


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
ALL = (nft_rule.jump("hostip_hostports"), nft_rule.jump("hostports"))
ENTRY = nft_rule.to_this_host() + nft_rule.jump("hostports_all")


class DesiredRule(NamedTuple):
    """A desired rule, in the format of `nft list` and as bytes; `mapping` is the mapping that it belongs to."""

    text: str
    expressions: bytes
    mapping: PortMapping | None = None


def port_chains(version: int) -> tuple[Chain, Chain]:
    """Returns the chains with port rules, in the order of evaluation.

    The first has the rules with a host address of the reference 1.6 to 1.8.
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


def entry_rules(host_ports: HostPorts, version: int) -> list[bytes]:
    """Returns the accepted rules of a base chain: ours, and the reference's with the same conditions."""
    compiled = conditions.compile_conditions(host_ports.conditions.get(version, ()), version)
    return [ENTRY] if len(compiled) > 1 else [ENTRY, compiled[0] + ENTRY]


def entry_conditions(rule: Rule) -> bytes:
    """Returns the conditions of a base chain's jump, in the form of any version of the reference."""
    before = nft_rule.split_expressions(rule.expressions)[:-1]
    local = nft_rule.to_this_host()
    count = len(nft_rule.split_expressions(local))
    if nft_rule.is_same_rule(local, b"".join(before[-count:])):
        before = before[:-count]
    return b"".join(before)


def port_rules(host_ports: HostPorts, version: int) -> list[DesiredRule]:
    """Returns the rules of chain hostports, in order: for each port first the hairpin mark rule, then its DNAT rule."""
    desired = []
    subnet = host_ports.addresses[version].network
    hairpin = host_ports.snat and not host_ports.masq_all
    source, mark = nft_rule.source(subnet), nft_rule.mark_statement(host_ports.mark_bit)
    before = conditions.compile_conditions(host_ports.conditions.get(version, ()), version)
    for mapping in host_ports.mappings_for(version):
        for condition in before:
            text, match, action = _port_rule(host_ports, version, mapping, condition)
            if hairpin:
                marked = source + match + mark + action
                desired.append(DesiredRule(f"{family(version)} saddr {subnet} {text}", marked, mapping))
            desired.append(DesiredRule(text, match + action, mapping))
    return desired


def example(version: int) -> bytes:
    """Returns a rule that needs every kernel feature that the other rules need."""
    return nft_rule.mark_statement(0) + nft_rule.transport("tcp") + nft_rule.dnat(_ALL[version].network_address, 1)


def reference_port_rules(host_ports: HostPorts, version: int) -> list[list[DesiredRule]]:
    """Returns the reference's rules for each port, without conditions, or with those that our ADD copies into them."""
    compiled = conditions.compile_conditions(host_ports.conditions.get(version, ()), version)
    desired = []
    for mapping in host_ports.mappings_for(version):
        rules = [_port_rule(host_ports, version, mapping, condition) for condition in dict.fromkeys((b"", *compiled))]
        desired.append([DesiredRule(text, match + action, mapping) for text, match, action in rules])
    return desired


def _port_rule(host_ports: HostPorts, version: int, mapping: PortMapping, before: bytes) -> tuple[str, bytes, bytes]:
    """Returns the text, the match and the action of a port's rule."""
    address = host_ports.addresses[version].ip
    text, match = "", before
    if mapping.bound_ip:
        text = f"{family(version)} daddr {mapping.bound_ip} "
        match += nft_rule.destination(mapping.bound_ip)
    if nft_rule.parse_destination(before).protocol != mapping.protocol:
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
        return [_masquerade(host_ports, version, _ALL[version])]
    bit = f"0x{1 << host_ports.mark_bit:08x}"
    subnet = host_ports.addresses[version].network
    hairpin = _masquerade(
        host_ports, version, subnet, f" meta mark & {bit} == {bit}", nft_rule.mark_match(host_ports.mark_bit)
    )
    return [hairpin, *_from_localhost(host_ports, version)]


def reference_masquerading_rules(host_ports: HostPorts, version: int) -> list[DesiredRule]:
    """Returns the reference's rules of chain masquerading."""
    if not host_ports.snat or host_ports.masq_all:
        return masquerading_rules(host_ports, version)
    return [
        _masquerade(host_ports, version, ip_network(host_ports.addresses[version].ip)),
        *_from_localhost(host_ports, version),
    ]


def _from_localhost(host_ports: HostPorts, version: int) -> list[DesiredRule]:
    return [_masquerade(host_ports, version, ip_network(_LOCALHOST))] if version == 4 else []


def _masquerade(
    host_ports: HostPorts, version: int, source: Network, text: str = "", further: bytes = b""
) -> DesiredRule:
    address, ip = host_ports.addresses[version].ip, family(version)
    shown = source if source.prefixlen < source.max_prefixlen else source.network_address
    expressions = nft_rule.source(source) + nft_rule.destination(address) + further + nft_rule.masquerade()
    return DesiredRule(f"{ip} saddr {shown} {ip} daddr {address}{text} masquerade", expressions)


def family(version: int) -> str:
    """Returns nft's name of an IP version."""
    return "ip" if version == 4 else "ip6"


def comment(container_id: str) -> str:
    """Returns a container's comment, cut to the length that `nft` accepts."""
    return container_id.encode()[: nft_rule.COMMENT_MAX].decode(errors="ignore")


def userdata(host_ports: HostPorts) -> bytes:
    """Returns the userdata of an attachment's rules: comment, owner, and the network's name if it fits."""
    owner = (OWNER, owner_id(host_ports.network, host_ports.container_id, host_ports.ifname))
    short = nft_rule.comment_userdata(host_ports.container_id, owner)
    long = nft_rule.comment_userdata(host_ports.container_id, owner, (_NETWORK, host_ports.network.encode()[:255]))
    return long if len(long) <= nft_rule.USERDATA_MAX else short


def owner(rule: Rule) -> bytes:
    """Returns the owner in a rule's userdata, b"" for the reference's rules."""
    return nft_owner.parse_owner(rule.userdata)


def network(rule: Rule) -> str:
    """Returns the network's name in a rule's userdata, "" if there is none."""
    return nft_rule.parse_userdata(rule.userdata).get(_NETWORK, b"").decode(errors="replace")


def names_no_owner(message: bytes) -> bool:
    """Returns, from the undecoded message, whether a rule may be the reference's."""
    return _OWNER_HEAD not in message


def may_be_stale(network: bytes, kept: Collection[bytes], message: bytes) -> bool:
    """Returns, from the undecoded message, whether a rule may be the network's and of none of the `kept` owners.

    True for the reference's rules.
    """
    if any(owner in kept for owner in _OWNERS.findall(message)):
        return False
    return network in message or names_no_owner(message)


def cannot_be_copied(expressions: bytes) -> bool:
    """Returns whether the expressions use an anonymous set, which belongs to one rule."""
    return b"lookup\0" in expressions


def belongs_to(rule: Rule, host_ports: HostPorts) -> bool:
    """Returns whether a rule is the attachment's.

    A rule of the reference plugin is if its comment names the container and it has one of the attachment's addresses,
    or if no address is known.
    """
    rule_owner = owner(rule)
    if rule_owner:
        return rule_owner == owner_id(host_ports.network, host_ports.container_id, host_ports.ifname)
    if rule.comment != comment(host_ports.container_id):
        return False
    addresses = [nft_rule.compared_value(address.ip.packed) for address in host_ports.addresses.values()]
    return not addresses or any(address in rule.expressions for address in addresses)


def condition_targets(host_ports: HostPorts, version: int) -> list[MatchedDestination]:
    """Returns the alternatives of the attachment's conditions, as targets."""
    return [
        nft_rule.parse_destination(each)
        for each in conditions.compile_conditions(host_ports.conditions.get(version, ()), version)
    ]


def foreign_rule(rule: Rule, host_ports: HostPorts, targets: Collection[MatchedDestination]) -> ForeignRule | None:
    """Returns a rule as a foreign rule; None for one of this container on any network, and for one without a port.

    `targets` come from `condition_targets`.
    """
    if rule.comment == comment(host_ports.container_id) and rule.comment:
        return None
    protocol, port, address, further = nft_rule.parse_destination(rule.expressions)
    if not protocol or not port:
        return None
    whole = len(rule.comment.encode()) < nft_rule.COMMENT_MAX  # a comment of full length may have been cut
    met = any(
        (not further or nft_rule.is_same_rule(target.further, further))
        and (not address or target.address in (None, address))
        for target in targets
    )
    return ForeignRule(protocol, port, address, network(rule), rule.comment if whole else "", conditional=not met)
