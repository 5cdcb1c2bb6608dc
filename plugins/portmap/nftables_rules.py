"""What host ports are in nftables: tables, chains, the rules of an attachment, and whose a rule is.

One rule: pure values. Tables, chains and comments are the reference's (1.9), so that either removes the other's; the
comment is the container ID only, so in a rule's userdata stands also, where `nft` does not look, which attachment of
which network it belongs to.

Why rules, one after another, and no maps from ports to addresses: the reference's DEL deletes rules by their comment.
Elements of a map would outlive it and lead to a pod that is gone; and its CHECK counts rules, so a rule with a map of
its own for each container would fail that.

Hairpin: where the reference masquerades what a container sends to itself only, here it is what comes from the whole
subnet by one of the host ports, as with iptables. A rule of its own in front of a port's marks that, so that whatever
else goes from pod to pod (a service's address, or none in between) keeps its source.
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
from plugins.portmap.port_conflicts import Claim
from plugins.portmap.spec import HostPorts, PortMapping
from plugins.portmap.tables import TABLES

_DSTNAT, _SRCNAT = -100, 100  # priorities
_NETWORK = 0x71  # type of our own item in a rule's userdata, beside its owner
_OWNER_HEAD = bytes((OWNER, 2 * HASH_BYTES))
_OWNERS = re.compile(b"(?=" + re.escape(_OWNER_HEAD) + b"(.{%d}))" % (2 * HASH_BYTES), re.DOTALL)
_LOCALHOST = IPv4Address("127.0.0.1")
_ALL: dict[int, Network] = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}


class Chains(NamedTuple):
    """The chains of one table, in the order in which they are made."""

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


class Expected(NamedTuple):
    """A rule that ought to be there, as `nft list` prints it and as bytes; `mapping` is the port that it is for."""

    text: str
    expressions: bytes
    mapping: PortMapping | None = None


def with_ports(version: int) -> tuple[Chain, Chain]:
    """Returns the chains with rules of ports, in the order in which packets pass them.

    The first has those with a host address of 1.6 to 1.8 of the reference.
    """
    own = CHAINS[version]
    return own.hostip_hostports, own.hostports


def with_rules(version: int) -> tuple[Chain, ...]:
    """Returns the chains with rules of attachments."""
    return *with_ports(version), CHAINS[version].masquerading


def needed(wanted: HostPorts, version: int) -> list[Chain]:
    """Returns the chains that there must be."""
    own = CHAINS[version]
    return [chain for chain in own if wanted.snat or chain != own.masquerading]


def entries(wanted: HostPorts, version: int) -> list[bytes]:
    """Returns the rules by which a base chain may lead on: ours, and the reference's with our own conditions."""
    found = conditions.compiled(wanted.conditions.get(version, ()), version)
    return [ENTRY] if len(found) > 1 else [ENTRY, found[0] + ENTRY]


def entry_conditions(rule: Rule) -> bytes:
    """Returns what a base chain demands before it leads on, as any version of the reference makes it."""
    before = nft_rule.split_expressions(rule.expressions)[:-1]
    local = nft_rule.to_this_host()
    count = len(nft_rule.split_expressions(local))
    if nft_rule.is_same_rule(local, b"".join(before[-count:])):
        before = before[:-count]
    return b"".join(before)


def port_rules(wanted: HostPorts, version: int) -> list[Expected]:
    """Returns the rules of chain hostports, in order: for each port first what marks the hairpin, then its own."""
    found = []
    subnet = wanted.addresses[version].network
    hairpin = wanted.snat and not wanted.masq_all
    source, mark = nft_rule.source(subnet), nft_rule.mark_statement(wanted.mark_bit)
    before = conditions.compiled(wanted.conditions.get(version, ()), version)
    for mapping in wanted.of(version):
        for condition in before:
            text, match, action = _port_rule(wanted, version, mapping, condition)
            if hairpin:
                marked = source + match + mark + action
                found.append(Expected(f"{family(version)} saddr {subnet} {text}", marked, mapping))
            found.append(Expected(text, match + action, mapping))
    return found


def example(version: int) -> bytes:
    """Returns a rule of which the kernel needs all that the others need."""
    return nft_rule.mark_statement(0) + nft_rule.transport("tcp") + nft_rule.dnat(_ALL[version].network_address, 1)


def reference_port_rules(wanted: HostPorts, version: int) -> list[list[Expected]]:
    """Returns what the reference makes for each port, its conditions elsewhere, or put before the rule by our ADD."""
    compiled = conditions.compiled(wanted.conditions.get(version, ()), version)
    found = []
    for mapping in wanted.of(version):
        rules = [_port_rule(wanted, version, mapping, condition) for condition in dict.fromkeys((b"", *compiled))]
        found.append([Expected(text, match + action, mapping) for text, match, action in rules])
    return found


def _port_rule(wanted: HostPorts, version: int, mapping: PortMapping, before: bytes) -> tuple[str, bytes, bytes]:
    """Returns the text of a port's rule, what it matches, and what it does."""
    address = wanted.addresses[version].ip
    text, match = "", before
    if mapping.only_to:
        text = f"{family(version)} daddr {mapping.only_to} "
        match += nft_rule.destination(mapping.only_to)
    if nft_rule.parse_destination(before).protocol != mapping.protocol:
        match += nft_rule.transport(mapping.protocol)
    match += nft_rule.destination_port(mapping.host_port)
    host = f"[{address}]" if version == 6 else str(address)
    text += f"{mapping.protocol} dport {mapping.host_port} dnat to {host}:{mapping.container_port}"
    return text, match, nft_rule.dnat(address, mapping.container_port)


def masquerading_rules(wanted: HostPorts, version: int) -> list[Expected]:
    """Returns the rules of chain masquerading, in order."""
    if not wanted.snat:
        return []
    if wanted.masq_all:
        return [_masquerade(wanted, version, _ALL[version])]
    bit = f"0x{1 << wanted.mark_bit:08x}"
    subnet = wanted.addresses[version].network
    hairpin = _masquerade(wanted, version, subnet, f" meta mark & {bit} == {bit}", nft_rule.mark_match(wanted.mark_bit))
    return [hairpin, *_from_localhost(wanted, version)]


def reference_masquerading_rules(wanted: HostPorts, version: int) -> list[Expected]:
    """Returns what the reference makes there."""
    if not wanted.snat or wanted.masq_all:
        return masquerading_rules(wanted, version)
    return [_masquerade(wanted, version, ip_network(wanted.addresses[version].ip)), *_from_localhost(wanted, version)]


def _from_localhost(wanted: HostPorts, version: int) -> list[Expected]:
    return [_masquerade(wanted, version, ip_network(_LOCALHOST))] if version == 4 else []


def _masquerade(wanted: HostPorts, version: int, source: Network, text: str = "", further: bytes = b"") -> Expected:
    address, ip = wanted.addresses[version].ip, family(version)
    shown = source if source.prefixlen < source.max_prefixlen else source.network_address
    expressions = nft_rule.source(source) + nft_rule.destination(address) + further + nft_rule.masquerade()
    return Expected(f"{ip} saddr {shown} {ip} daddr {address}{text} masquerade", expressions)


def family(version: int) -> str:
    """Returns what nft calls an IP version."""
    return "ip" if version == 4 else "ip6"


def comment(container_id: str) -> str:
    """Returns a container's comment as `nft` can have it."""
    return container_id.encode()[: nft_rule.COMMENT_MAX].decode(errors="ignore")


def userdata(wanted: HostPorts) -> bytes:
    """Returns comment and owner of an attachment's rules; the network's name only where it fits."""
    owner = (OWNER, owner_id(wanted.network, wanted.container_id, wanted.ifname))
    short = nft_rule.comment_userdata(wanted.container_id, owner)
    long = nft_rule.comment_userdata(wanted.container_id, owner, (_NETWORK, wanted.network.encode()[:255]))
    return long if len(long) <= nft_rule.USERDATA_MAX else short


def owner(rule: Rule) -> bytes:
    """Returns what stands there, b"" in the reference's rules."""
    return nft_owner.parse_owner(rule.userdata)


def network(rule: Rule) -> str:
    """Returns the network whose name stands there, "" where it does not."""
    return nft_rule.parse_userdata(rule.userdata).get(_NETWORK, b"").decode(errors="replace")


def names_no_owner(message: bytes) -> bool:
    """Tells by the message alone whether a rule may be the reference's."""
    return _OWNER_HEAD not in message


def may_be_stale(network: bytes, kept: Collection[bytes], message: bytes) -> bool:
    """Tells by the message alone whether a rule may be of a network and of none of the `kept` owners.

    The reference's rules may be.
    """
    if any(owner in kept for owner in _OWNERS.findall(message)):
        return False
    return network in message or names_no_owner(message)


def cannot_be_copied(expressions: bytes) -> bool:
    """Tells whether expressions look something up in a set, which belongs to one rule."""
    return b"lookup\0" in expressions


def is_of(rule: Rule, wanted: HostPorts) -> bool:
    """Tells whether a rule is the attachment's.

    Of the reference's rules it is the container's that have one of the attachment's addresses, or all of them when no
    address is known.
    """
    own = owner(rule)
    if own:
        return own == owner_id(wanted.network, wanted.container_id, wanted.ifname)
    if rule.comment != comment(wanted.container_id):
        return False
    addresses = [nft_rule.compared_value(address.ip.packed) for address in wanted.addresses.values()]
    return not addresses or any(address in rule.expressions for address in addresses)


def own_targets(wanted: HostPorts, version: int) -> list[MatchedDestination]:
    """Returns what the attachment's conditions demand: one of these."""
    return [
        nft_rule.parse_destination(each) for each in conditions.compiled(wanted.conditions.get(version, ()), version)
    ]


def claim_of(rule: Rule, wanted: HostPorts, targets: Collection[MatchedDestination]) -> Claim | None:
    """Returns whose a port is by a rule; None for a rule of this container, on whatever network, and of no port.

    `targets` are of `own_targets`.
    """
    if rule.comment == comment(wanted.container_id) and rule.comment:
        return None
    protocol, port, address, further = nft_rule.parse_destination(rule.expressions)
    if not protocol or not port:
        return None
    whole = len(rule.comment.encode()) < nft_rule.COMMENT_MAX  # one that may have been cut names nobody for sure
    met = any(
        (not further or nft_rule.is_same_rule(own.further, further)) and (not address or own.address in (None, address))
        for own in targets
    )
    return Claim(protocol, port, address, network(rule), rule.comment if whole else "", conditional=not met)
