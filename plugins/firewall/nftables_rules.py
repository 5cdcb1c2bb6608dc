"""The firewall's nftables objects: table, chains and their rules, sets, and the elements of an attachment.

This module is pure. Rules never change: a pod is represented by elements of sets. An element names its owner in its
comment, and in an item of its userdata that `nft` ignores.

    table inet podwire_firewall {
        set pods4 { type ipv4_addr; elements = { 10.22.0.2 comment "net: a, if: eth0, id: c" } }
        set members4 { type ifname . ipv4_addr; elements = { "cni0" . 10.22.0.2 comment "net: a, if: eth0, id: c" } }
        set policed { type ifname; elements = { "cni0" } }
        set inside { type ifname . ifname; elements = { "cni0" . "cni0" } }
        ...

A bridge is in `policed` as long as it has members, and in `inside` if these may reach each other. The sets `members4`
and `members6` only list the members: no rule refers to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from ipaddress import ip_address
from os import fsdecode

from cni.conf import Attachment
from kernel.netfilter import nft, nft_owner, nft_rule
from kernel.netfilter.base_table import BaseTable
from kernel.netfilter.nft import Chain, Hook, Table
from kernel.netfilter.nft_set import ADDRESS, INTERFACE_NAME, Element, Set, interface_key
from plugins.firewall.spec import ISOLATED, FirewallSpec
from process.values import dataclass

_FORWARD, _FILTER, _FILTER_BRIDGED = 2, 0, -200  # NF_INET_FORWARD and NF_BR_FORWARD, priorities
_VERSIONS = (4, 6)
_COMMENT = re.compile(r"net: (?P<network>[^,]*), if: (?P<ifname>.*), id: (?P<container_id>[^,]*)", re.DOTALL)
_QUOTE = "%22"  # a comment cannot have double quotes, and an interface's name no %

TABLE = Table(nft.INET, "podwire_firewall", "made by podwire's firewall plugin; chain admin is yours, the rest is not")
BRIDGE_TABLE = Table(nft.BRIDGE, TABLE.name, "made by podwire's firewall plugin")

PODS = {
    version: Set(TABLE, f"pods{version}", (ADDRESS[version],), "packets from these pods are accepted")
    for version in _VERSIONS
}
MEMBERS = {
    version: Set(TABLE, f"members{version}", (INTERFACE_NAME, ADDRESS[version]), "pods with an ingressPolicy")
    for version in _VERSIONS
}
POLICED = Set(TABLE, "policed", (INTERFACE_NAME,), "bridges with an ingressPolicy")
SAME_BRIDGE_PAIRS = Set(TABLE, "inside", (INTERFACE_NAME, INTERFACE_NAME), "bridges with ingressPolicy same-bridge")
PORTS = Set(BRIDGE_TABLE, "isolated", (INTERFACE_NAME,), "ports of pods with ingressPolicy isolated")

ADMIN = Chain(TABLE, "admin", comment="for the administrator's rules")
POLICIES = Chain(TABLE, "policies", comment="ingressPolicy")
ENTRY = Chain(TABLE, "forward", Hook("filter", _FORWARD, _FILTER))
BRIDGED = Chain(BRIDGE_TABLE, "forward", Hook("filter", _FORWARD, _FILTER_BRIDGED))


@dataclass(frozen=True)
class ElementFilter:
    """A filter for elements of certain owners.

    `matches_owner` returns whether an owner ID matches; each element of such an owner contains one of `hints`.
    """

    hints: tuple[bytes, ...]
    matches_owner: Callable[[bytes], bool]

    @classmethod
    def of_attachment(cls, spec: FirewallSpec) -> ElementFilter:
        """Returns the filter for the elements of an attachment."""
        owner_id = spec_owner(spec)
        return cls((owner_id, _names(spec).encode()), owner_id.__eq__)

    @classmethod
    def stale(cls, network: str, valid: Collection[Attachment]) -> ElementFilter:
        """Returns the filter for the elements of a network's attachments that are not `valid`."""
        prefix = nft_owner.hash_name(network)
        valid_owners = {nft_owner.owner_id(network, item.container_id, item.ifname) for item in valid}
        hints = prefix, f"net: {network}, ".encode()
        return cls(hints, lambda owner_id: owner_id.startswith(prefix) and owner_id not in valid_owners)

    def has(self, element: Element) -> bool:
        """Returns whether an element matches; one that names no owner never does."""
        owner_id = element_owner(element)
        return bool(owner_id) and self.matches_owner(owner_id)


BASE = BaseTable.compile(
    TABLE,
    (*PODS.values(), *MEMBERS.values(), POLICED, SAME_BRIDGE_PAIRS),
    {
        ADMIN: (),
        POLICIES: ("iifname . oifname @inside return", "iifname @policed oifname @policed drop"),
        ENTRY: (
            "jump admin",
            "jump policies",
            "ct state established,related ip daddr @pods4 accept",
            "ip saddr @pods4 accept",
            "ct state established,related ip6 daddr @pods6 accept",
            "ip6 saddr @pods6 accept",
        ),
    },
)
BRIDGE_BASE = BaseTable.compile(BRIDGE_TABLE, (PORTS,), {BRIDGED: ("iifname @isolated drop", "oifname @isolated drop")})
OWNED = (*PODS.values(), *MEMBERS.values(), PORTS)  # the sets with elements of attachments


def required_tables(spec: FirewallSpec) -> list[BaseTable]:
    """Returns the tables that an attachment needs."""
    return [BASE, BRIDGE_BASE] if isolated_ports(spec) else [BASE]


def desired_elements(spec: FirewallSpec) -> dict[Set, list[Element]]:
    """Returns the elements of an attachment, by set."""
    data = userdata(spec)
    elements: dict[Set, list[Element]] = {element_set: [] for element_set in OWNED}
    for address in spec.addresses:
        if spec.accepts:
            elements[PODS[address.version]].append(Element(address.packed, data))
        if spec.bridge:
            key = interface_key(spec.bridge) + address.packed
            elements[MEMBERS[address.version]].append(Element(key, data))
    elements[PORTS] = [Element(interface_key(name), data) for name in isolated_ports(spec)]
    return elements


def isolated_ports(spec: FirewallSpec) -> tuple[str, ...]:
    """Returns the attachment's bridge ports if they are to be isolated."""
    return spec.ports if spec.policy == ISOLATED else ()


def render_key(element_set: Set, key: bytes) -> str:
    """Returns a key as `nft list` prints it."""
    parts, rest = [], key
    for part in element_set.key:
        data, rest = rest[: part.size], rest[part.size :]
        parts.append(f'"{fsdecode(data.rstrip(bytes(1)))}"' if part is INTERFACE_NAME else str(ip_address(data)))
    return " . ".join(parts)


def bridge_of(key: bytes) -> bytes:
    """Returns the part of a member's key that is the bridge."""
    return key[: INTERFACE_NAME.size]


def spec_owner(spec: FirewallSpec) -> bytes:
    """Returns the owner ID of an attachment."""
    return nft_owner.owner_id(spec.network, spec.container_id, spec.ifname)


def userdata(spec: FirewallSpec, *further: tuple[int, bytes], label: str = "") -> bytes:
    """Returns the userdata of an attachment's elements: comment with the prefix `label`, owner ID, `further` items."""
    return nft_rule.comment_userdata(label + _names(spec), (nft_owner.OWNER, spec_owner(spec)), *further)


def _names(spec: FirewallSpec) -> str:
    ifname = spec.ifname.replace('"', _QUOTE)
    return f"net: {spec.network}, if: {ifname}, id: {spec.container_id}"


def element_owner(element: Element) -> bytes:
    """Returns the owner ID of an element, b"" if it names none.

    An element that `nft` has listed and loaded has only its comment, from which the ID follows if it is not truncated.
    """
    owner_id = nft_owner.parse_owner(element.userdata)
    network, *attachment = element_names(element)
    return owner_id or (nft_owner.owner_id(network, *attachment) if network else b"")


def element_names(element: Element) -> tuple[str, str, str]:
    """Returns network, container ID and interface of an element's comment, "" if it is truncated."""
    comment = nft_rule.parse_comment(element.userdata)
    names = _COMMENT.search(comment)
    if not names or len(comment.encode()) >= nft_rule.COMMENT_MAX:
        return "", "", ""
    return names["network"], names["container_id"], names["ifname"].replace(_QUOTE, '"')
