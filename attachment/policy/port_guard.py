"""The guard of a pod's port: it passes packets from the pod's addresses only, so no pod borrows those of another.

A policy knows pods by their addresses. Without the guard a pod could shed its policies, or reach what a neighbour may
reach, by another source address. The rules never change; a pod is represented by elements of sets. Ports that are not
in set `ports`, as of networks without networkPolicy, cost one look-up.

    table bridge podwire_guard, hook prerouting, before br_netfilter: frames whose source is the pod's MAC address, and
        IPv4 from its addresses; DHCP from 0.0.0.0; ARP of its addresses and probes (RFC 5227);
        IPv6 from its addresses and the link-local address of its MAC address (EUI-64); neighbour advertisements of
        these only; from :: to link-local groups (duplicate address detection, MLD);
        no router advertisement, redirect, VLAN tag or other protocol
    the same table, hook forward: frames to a guarded port from others of the bridge whose destination is the pod's MAC
        and IP address. Policies do not see by whom multicasts, broadcasts and packets to link-local addresses are
        received, so only ARP, neighbour discovery and DHCP's answers pass; nor do they know a pod's link-local address,
        from which only these pass to others of the bridge. Frames from and to the node pass other hooks.
    table inet podwire_guard, hook prerouting, before connection tracking (ptp, where the host is the only neighbour):
        IPv4 and IPv6 in the same way; the host ignores router advertisements and redirects there
"""

from __future__ import annotations

import struct
from ipaddress import IPv6Address
from typing import NamedTuple

from attachment.policy.records import PodRecord
from attachment.policy.table import GUARD_BRIDGE_TABLE, GUARD_TABLE
from cni.address import Address, parse_mac
from cni.errors import internal
from kernel.errors import KernelError
from kernel.netfilter import base_table, nft, nft_rule, nft_set
from kernel.netfilter import nft_expression as expression
from kernel.netfilter.base_table import BaseTable, TextRule
from kernel.netfilter.nft import Chain, Hook, Table
from kernel.netfilter.nft_dry_run import dry_run
from kernel.netfilter.nft_expression import EQ, LINK_HEADER, NETWORK_HEADER, SECOND_REGISTER, TRANSPORT_HEADER
from kernel.netfilter.nft_rule import ACCEPT, DROP
from kernel.netfilter.nft_set import ADDRESS, INTERFACE_NAME, MAC_ADDRESS, Element, Part, Set, interface_key
from kernel.netfilter.owned import REPAIR_HINT
from process import record

_PREROUTING, _FIRST = 0, -300  # NF_INET_PRE_ROUTING and NF_BR_PRE_ROUTING; raw, and dstnat in bridges
_FORWARD, _BEFORE_BR_NETFILTER = 2, -200  # NF_BR_FORWARD
_THIRD = 14  # NFT_REG32_06, behind an interface's name (16 bytes) and a MAC address (8)
_ETHER_TYPE = {4: b"\x08\x00", 6: b"\x86\xdd"}
_ARP = b"\x08\x06"
_ARP_OF_IPV4 = b"\x00\x01\x08\x00\x06\x04"  # the types and sizes of the addresses in an ARP message
_UDP, _ICMPV6 = bytes([17]), bytes([58])
_SOURCE = {4: (NETWORK_HEADER, 12, 4), 6: (NETWORK_HEADER, 8, 16)}
_DESTINATION = {4: (NETWORK_HEADER, 16, 4), 6: (NETWORK_HEADER, 24, 16)}
_LINK_LOCAL_GROUPS = b"\xff\x02"
_ADVERTISEMENT = 136  # ICMPv6 type; at offset 8 is the target
_FORGED = {134: "nd-router-advert", 136: "nd-neighbor-advert", 137: "nd-redirect"}


class Guard(NamedTuple):
    """The objects of one kind of port: `macs` is None if the port's MAC address does not matter."""

    base: BaseTable
    ports: Set
    macs: Set | None
    addresses: dict[int, Set]


def _sets(table: Table, *parts: Part) -> tuple[Set, dict[int, Set]]:
    ports = Set(table, "ports", (INTERFACE_NAME,), "guarded ports")
    comment = "the addresses of each guarded port"
    return ports, {n: Set(table, f"addresses{n}", (*parts, part), comment) for n, part in ADDRESS.items()}


def _field(where: tuple[int, int, int], data: bytes) -> bytes:
    """Matches a field of the packet that equals `data`."""
    return expression.payload(*where) + expression.compare(EQ, data)


def _protocol(number: bytes) -> bytes:
    return expression.meta(expression.META_L4PROTO) + expression.compare(EQ, number)


def _ether_type(number: bytes) -> bytes:
    return _field((LINK_HEADER, 12, 2), number)


def _icmpv6_type(number: int) -> bytes:
    return _ether_type(_ETHER_TYPE[6]) + _protocol(_ICMPV6) + _field((TRANSPORT_HEADER, 0, 1), bytes([number]))


_COUNTED_DROP = expression.ANY_COUNTER + DROP  # a counter that starts at 0
_INTERFACE = expression.meta(expression.META_IIFNAME)
_ETHER_SOURCE, _ETHER_DESTINATION, _ARP_SOURCE = (LINK_HEADER, 6, 6), (LINK_HEADER, 0, 6), (NETWORK_HEADER, 8, 6)
_ARP_ADDRESS = (NETWORK_HEADER, 14, 4)


def _pair(mac: tuple[int, int, int]) -> bytes:
    """Matches an interface and a MAC address that are in `macs`."""
    return _INTERFACE + expression.payload(*mac, SECOND_REGISTER) + expression.lookup("macs")


def _triple(
    mac: tuple[int, int, int], address: tuple[int, int, int], version: int, interface: bytes = _INTERFACE
) -> bytes:
    """Matches an interface, a MAC address and an IP address that are in `addresses4` or `addresses6`."""
    load = expression.payload(*mac, SECOND_REGISTER) + expression.payload(*address, _THIRD)
    return interface + load + expression.lookup(f"addresses{version}")


def _bridge_rules() -> tuple[TextRule, ...]:
    is4, is6, is_arp = _ether_type(_ETHER_TYPE[4]), _ether_type(_ETHER_TYPE[6]), _ether_type(_ARP)
    arp = is_arp + _field((NETWORK_HEADER, 0, 6), _ARP_OF_IPV4)
    port = "iifname . ether saddr"
    from4, from6 = _triple(_ETHER_SOURCE, _SOURCE[4], 4), _triple(_ETHER_SOURCE, _SOURCE[6], 6)
    target = _triple(_ETHER_SOURCE, (TRANSPORT_HEADER, 8, 16), 6)
    dhcp = _field(_SOURCE[4], bytes(4)) + _field(_DESTINATION[4], b"\xff" * 4) + _protocol(_UDP)
    dhcp += nft_rule.destination_port(67)
    groups = _field(_SOURCE[6], bytes(16)) + _field((*_DESTINATION[6][:2], 2), _LINK_LOCAL_GROUPS) + _protocol(_ICMPV6)
    owned_arp = _triple(_ETHER_SOURCE, _ARP_ADDRESS, 4) + _triple(_ARP_SOURCE, _ARP_ADDRESS, 4)
    probe = _field(_ARP_ADDRESS, bytes(4)) + _pair(_ETHER_SOURCE) + _pair(_ARP_SOURCE)
    return (
        TextRule(f"{port} . ip saddr @addresses4 accept", is4 + from4 + ACCEPT),
        TextRule(f"{port} . arp saddr ip @addresses4, also of arp saddr ether, accept", arp + owned_arp + ACCEPT),
        TextRule(
            f"{port} . nd target @addresses6 {port} . ip6 saddr @addresses6 accept",
            _icmpv6_type(_ADVERTISEMENT) + target + from6 + ACCEPT,
        ),
        *(TextRule(f"icmpv6 type {name} drop", _icmpv6_type(n) + _COUNTED_DROP) for n, name in _FORGED.items()),
        TextRule(f"{port} . ip6 saddr @addresses6 accept", is6 + from6 + ACCEPT),
        TextRule(f"arp saddr ip 0.0.0.0 {port} @macs accept", arp + probe + ACCEPT),
        TextRule(
            f"ip6 saddr :: ip6 daddr ff02::/16 meta l4proto icmpv6 {port} @macs accept",
            is6 + groups + _pair(_ETHER_SOURCE) + ACCEPT,
        ),
        TextRule(
            f"ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp dport 67 {port} @macs accept",
            is4 + dhcp + _pair(_ETHER_SOURCE) + ACCEPT,
        ),
        TextRule("drop", _COUNTED_DROP),
    )


def _delivery_rules() -> tuple[TextRule, ...]:
    port, out = "oifname . ether daddr", expression.meta(expression.META_OIFNAME)
    is4, is6 = _ether_type(_ETHER_TYPE[4]), _ether_type(_ETHER_TYPE[6])
    to4, to6 = (_triple(_ETHER_DESTINATION, _DESTINATION[version], version, out) for version in (4, 6))
    discovery = is6 + _protocol(_ICMPV6) + expression.payload(TRANSPORT_HEADER, 0, 1)
    ports = {4: struct.pack(">HH", 67, 68), 6: struct.pack(">HH", 547, 546)}
    dhcp = {version: _protocol(_UDP) + _field((TRANSPORT_HEADER, 0, 4), pair) for version, pair in ports.items()}
    return (
        TextRule(f"{port} . ip daddr @addresses4 accept", is4 + to4 + ACCEPT),
        TextRule("arp accept", _ether_type(_ARP) + ACCEPT),
        TextRule("icmpv6 type 133-137 accept", discovery + expression.between(EQ, bytes([133]), bytes([137])) + ACCEPT),
        TextRule("udp sport 67 udp dport 68 accept", is4 + dhcp[4] + ACCEPT),
        TextRule("udp sport 547 udp dport 546 accept", is6 + dhcp[6] + ACCEPT),
        TextRule("ip6 daddr fe80::/10 drop", is6 + _is_link_local(_DESTINATION[6]) + _COUNTED_DROP),
        TextRule(f"{port} . ip6 daddr @addresses6 accept", is6 + to6 + ACCEPT),
        TextRule("drop", _COUNTED_DROP),
    )


def _link_local_rules() -> tuple[TextRule, ...]:
    """Returns the rules of what a pod sends to the bridge from its link-local address, which no policy knows."""
    types = ((130, 137), (143, 143))  # multicast listeners, neighbour discovery
    load = _protocol(_ICMPV6) + expression.payload(TRANSPORT_HEADER, 0, 1)
    return (
        *(
            TextRule(
                f"icmpv6 type {first}-{last} return",
                load + expression.between(EQ, bytes([first]), bytes([last])) + nft_rule.RETURN,
            )
            for first, last in types
        ),
        TextRule("udp dport 547 return", _protocol(_UDP) + nft_rule.destination_port(547) + nft_rule.RETURN),
        TextRule("drop", _COUNTED_DROP),
    )


def _is_link_local(field: tuple[int, int, int]) -> bytes:
    """Matches an address in fe80::/10."""
    load = expression.payload(field[0], field[1], 2) + expression.bitwise(b"\xff\xc0")
    return load + expression.compare(EQ, b"\xfe\x80")


def _routed_rules() -> tuple[TextRule, ...]:
    rules = []
    for version, ip in ((4, "ip"), (6, "ip6")):
        load = expression.payload(*_SOURCE[version], SECOND_REGISTER) + expression.lookup(f"addresses{version}")
        matches = nft_rule.of_version(version) + _INTERFACE + load
        rules.append(TextRule(f"iifname . {ip} saddr @addresses{version} accept", matches + ACCEPT))
    groups = _field(_SOURCE[6], bytes(16)) + _field((*_DESTINATION[6][:2], 2), _LINK_LOCAL_GROUPS) + _protocol(_ICMPV6)
    text = "ip6 saddr :: ip6 daddr ff02::/16 meta l4proto icmpv6 accept"
    return (
        *rules,
        TextRule(text, nft_rule.of_version(6) + groups + ACCEPT),
        TextRule("drop", _COUNTED_DROP),
    )


def _base(table: Table, sets: tuple[Set, ...], rules: tuple[TextRule, ...]) -> BaseTable:
    entry, guard = Chain(table, "prerouting", Hook("filter", _PREROUTING, _FIRST)), Chain(table, "guard")
    goto = TextRule("iifname @ports goto guard", nft_rule.input_interface_in("ports") + nft_rule.goto(guard.name))
    return BaseTable(table, sets, (guard, entry), {guard: rules, entry: (goto,)}, {guard: len(rules) + 1, entry: 1})


def _bridge_guard() -> Guard:
    ports, addresses = _sets(GUARD_BRIDGE_TABLE, INTERFACE_NAME, MAC_ADDRESS)
    macs = Set(GUARD_BRIDGE_TABLE, "macs", (INTERFACE_NAME, MAC_ADDRESS), "the MAC address of each guarded port")
    base = _base(GUARD_BRIDGE_TABLE, (ports, macs, *addresses.values()), _bridge_rules())
    forward = Chain(GUARD_BRIDGE_TABLE, "forward", Hook("filter", _FORWARD, _BEFORE_BR_NETFILTER))
    delivery, rules = Chain(GUARD_BRIDGE_TABLE, "delivery"), _delivery_rules()
    link_local, local_rules = Chain(GUARD_BRIDGE_TABLE, "link-local"), _link_local_rules()
    from_local = nft_rule.input_interface_in("ports") + _ether_type(_ETHER_TYPE[6]) + _is_link_local(_SOURCE[6])
    entries = (
        TextRule("iifname @ports ip6 saddr fe80::/10 jump link-local", from_local + nft_rule.jump(link_local.name)),
        TextRule("oifname @ports goto delivery", nft_rule.output_interface_in("ports") + nft_rule.goto(delivery.name)),
    )
    base = base._replace(
        chains=(*base.chains, delivery, link_local, forward),
        rules={**base.rules, delivery: rules, link_local: local_rules, forward: entries},
        uses={**base.uses, delivery: len(rules) + 1, link_local: len(local_rules) + 1, forward: len(entries)},
    )
    return Guard(base, ports, macs, addresses)


def _routed_guard() -> Guard:
    ports, addresses = _sets(GUARD_TABLE, INTERFACE_NAME)
    return Guard(_base(GUARD_TABLE, (ports, *addresses.values()), _routed_rules()), ports, None, addresses)


BRIDGE, ROUTED = "bridge", "routed"
_GUARDS = {BRIDGE: _bridge_guard(), ROUTED: _routed_guard()}


def add(pod: PodRecord) -> None:
    """Guards a pod's port; creates the table if it is missing. Raises KernelError."""
    guard = _GUARDS[pod.guard]
    comment = nft_rule.comment_userdata(f"net: {pod.network}, if: {pod.ifname}, id: {pod.container_id}")
    elements = [
        request
        for element_set, keys in _keys(guard, pod).items()
        for request in nft_set.add_element_requests(element_set, (Element(key, comment) for key in keys))
    ]
    with nft.open_socket() as socket, record.timed_step("guard the port"):
        # If another ADD creates the table meanwhile, this one only flushes and adds the same rules.
        nft.retry(lambda: nft.change(socket, *base_table.missing_table_requests(socket, guard.base), *elements))


def check(pod: PodRecord) -> None:
    """Checks that the pod's port is guarded; raises CniError(999), KernelError."""
    guard = _GUARDS[pod.guard]
    with nft.open_socket() as socket:
        problem = base_table.find_problem(socket, guard.base)
        for element_set, keys in _keys(guard, pod).items() if not problem else ():
            existing = nft_set.list_elements(socket, element_set, nft_set.byte_filter(keys))
            if not {item.key for item in existing}.issuperset(keys):
                problem = f'set {element_set} has no element of "{pod.host_veth}"'
    if problem:
        raise internal(f"the port of the pod is not guarded: {problem}", REPAIR_HINT)


def keys(pod: PodRecord) -> list[tuple[Set, bytes]]:
    """Returns the elements of a pod: set and key; none if the record names no known guard."""
    guard = _GUARDS.get(pod.guard)
    by_set = _keys(guard, pod) if guard else {}
    return [(element_set, key) for element_set, of_set in by_set.items() for key in of_set]


def get_problem(kind: str) -> str:
    """Returns why this kernel cannot guard ports, "" if it can; validates the table without creating it."""
    base = _GUARDS[kind].base
    try:
        with nft.open_socket() as socket:
            try:
                dry_run(socket, *base_table.table_requests(base))
            except KernelError as error:
                if base_table.differs(socket, base):
                    return f"another program created table {base.table.name} with other properties ({error})"
                return f"this kernel cannot guard the ports of pods: {error}"
    except nft.UnavailableError as error:
        return str(error)
    return ""


def _keys(guard: Guard, pod: PodRecord) -> dict[Set, list[bytes]]:
    """Returns the keys of a pod's elements, by set; the port is last, so that it is guarded as long as it is listed."""
    port = interface_key(pod.host_veth)
    mac = parse_mac(pod.mac)
    owned: list[Address] = [*pod.addresses, _link_local(mac)]
    start = port + mac + bytes(2) if guard.macs else port
    keys: dict[Set, list[bytes]] = {}
    for address in owned:
        keys.setdefault(guard.addresses[address.version], []).append(start + address.packed)
    if guard.macs:
        keys[guard.macs] = [start]
    return {**keys, guard.ports: [port]}


def _link_local(mac: bytes) -> IPv6Address:
    """Returns the link-local address of a MAC address (RFC 4291, appendix A)."""
    return IPv6Address(b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:])
