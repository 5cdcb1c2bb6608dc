"""Guards a pod's port: it accepts packets from the pod's own addresses only, so a pod cannot use another pod's address.

Policies identify pods by their addresses. Without the guard, a pod could evade its policies, or get the access of
another pod, with another source address. The rules never change; each pod has elements in their sets. A port that is
not in the set `ports`, such as one of a network without networkPolicy, costs one look-up.

    table bridge podwire_guard, hook prerouting, before br_netfilter: frames whose source is the pod's MAC address, and
        IPv4 from its addresses; DHCP from 0.0.0.0; ARP of its addresses and probes (RFC 5227);
        IPv6 from its addresses and the link-local address of its MAC address (EUI-64); neighbour advertisements of
        these only; from :: to link-local groups (duplicate address detection, MLD);
        no router advertisement, redirect, VLAN tag or other protocol
    the same table, hook forward: frames from other ports of the bridge to a guarded port, if their destination is the
        pod's MAC and IP address. Policies cannot select the receivers of multicasts, broadcasts and packets to
        link-local addresses, so of these only ARP, neighbour discovery and DHCP replies pass. Policies do not know a
        pod's link-local address, either: from it, only neighbour discovery, MLD and DHCP requests pass to other ports.
        Frames from and to the node pass other hooks.
    table inet podwire_guard, hook prerouting, before connection tracking (ptp, where the host is the only neighbour):
        IPv4 and IPv6 in the same way; the host ignores router advertisements and redirects there
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import NamedTuple

from attachment.policy.records import PodRecord
from attachment.policy.table import GUARD_BRIDGE_TABLE, GUARD_TABLE
from cni.address import Address, parse_mac
from kernel.netfilter import base_table, nft, nft_rule, nft_set
from kernel.netfilter.base_table import BaseTable
from kernel.netfilter.nft import Chain, Hook, NftSocket, Table
from kernel.netfilter.nft_set import ADDRESS, INTERFACE_NAME, MAC_ADDRESS, Element, Part, Set, interface_key
from kernel.netfilter.owned import repairable_error
from process import record

_PREROUTING = Hook("filter", 0, -300)  # NF_INET_PRE_ROUTING and NF_BR_PRE_ROUTING; raw, and dstnat in bridges
_FORWARD = Hook("filter", 2, -200)  # NF_BR_FORWARD, before br_netfilter
_ARP = "arp htype 1 arp ptype ip arp hlen 6 arp plen 4"
_FROM_UNSPECIFIED = "ip6 saddr :: ip6 daddr ff02::/16 meta l4proto ipv6-icmp"

_BRIDGE_RULES = {
    Chain(GUARD_BRIDGE_TABLE, "guard"): (
        "iifname . ether saddr . ip saddr @addresses4 accept",
        f"{_ARP} iifname . ether saddr . arp saddr ip @addresses4 "
        "iifname . arp saddr ether . arp saddr ip @addresses4 accept",
        "icmpv6 type nd-neighbor-advert iifname . ether saddr . icmpv6 taddr @addresses6 "
        "iifname . ether saddr . ip6 saddr @addresses6 accept",
        "icmpv6 type nd-router-advert counter drop",
        "icmpv6 type 136-137 counter drop",  # neighbour advertisement, redirect
        "iifname . ether saddr . ip6 saddr @addresses6 accept",
        f"{_ARP} arp saddr ip 0.0.0.0 iifname . ether saddr @macs iifname . arp saddr ether @macs accept",
        f"{_FROM_UNSPECIFIED} iifname . ether saddr @macs accept",
        "ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp dport 67 iifname . ether saddr @macs accept",
        "counter drop",
    ),
    Chain(GUARD_BRIDGE_TABLE, "prerouting", _PREROUTING): ("iifname @ports goto guard",),
    Chain(GUARD_BRIDGE_TABLE, "delivery"): (
        "oifname . ether daddr . ip daddr @addresses4 accept",
        "ether type arp accept",
        "icmpv6 type 133-137 accept",
        "ether type ip udp sport 67 udp dport 68 accept",
        "ether type ip6 udp sport 547 udp dport 546 accept",
        "ip6 daddr fe80::/10 counter drop",
        "oifname . ether daddr . ip6 daddr @addresses6 accept",
        "counter drop",
    ),
    # Frames that a pod sends to other ports from its link-local address, which no policy can select.
    Chain(GUARD_BRIDGE_TABLE, "link-local"): (
        "icmpv6 type 130-137 return",  # multicast listeners, neighbour discovery
        "icmpv6 type mld2-listener-report return",
        "udp dport 547 return",
        "counter drop",
    ),
    Chain(GUARD_BRIDGE_TABLE, "forward", _FORWARD): (
        "iifname @ports ip6 saddr fe80::/10 jump link-local",
        "oifname @ports goto delivery",
    ),
}
_ROUTED_RULES = {
    Chain(GUARD_TABLE, "guard"): (
        "iifname . ip saddr @addresses4 accept",
        "iifname . ip6 saddr @addresses6 accept",
        f"{_FROM_UNSPECIFIED} accept",
        "counter drop",
    ),
    Chain(GUARD_TABLE, "prerouting", _PREROUTING): ("iifname @ports goto guard",),
}


class Guard(NamedTuple):
    """The table and sets of one kind of guard; `macs` is None if the guard ignores MAC addresses."""

    base: BaseTable
    ports: Set
    macs: Set | None
    addresses: dict[int, Set]


def _build(table: Table, rules: dict[Chain, tuple[str, ...]], *parts: Part) -> Guard:
    """Returns a guard; `parts` are the parts of a key in `addresses4` and `addresses6` that precede the address."""
    comment = "the addresses of each guarded port"
    ports = Set(table, "ports", (INTERFACE_NAME,), "guarded ports")
    macs = Set(table, "macs", parts, "the MAC address of each guarded port") if MAC_ADDRESS in parts else None
    addresses = {n: Set(table, f"addresses{n}", (*parts, part), comment) for n, part in ADDRESS.items()}
    sets = (ports, *([macs] if macs else []), *addresses.values())
    return Guard(BaseTable.compile(table, sets, rules), ports, macs, addresses)


BRIDGE, ROUTED = "bridge", "routed"
_GUARDS = {
    BRIDGE: _build(GUARD_BRIDGE_TABLE, _BRIDGE_RULES, INTERFACE_NAME, MAC_ADDRESS),
    ROUTED: _build(GUARD_TABLE, _ROUTED_RULES, INTERFACE_NAME),
}


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
        # If a parallel ADD has created the table, these requests replace its rules with the same ones.
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
        raise repairable_error(f"the port of the pod is not guarded: {problem}")


def list_ports(socket: NftSocket) -> set[str]:
    """Returns the names of all guarded ports, none without the tables; raises KernelError."""
    keys_of_all = (key for guard in _GUARDS.values() for key in nft_set.list_keys(socket, guard.ports))
    return {key.rstrip(b"\0").decode() for key in keys_of_all}


def keys(pod: PodRecord) -> list[tuple[Set, bytes]]:
    """Returns the elements of a pod, each as set and key; none if its record has an unknown guard."""
    guard = _GUARDS.get(pod.guard)
    by_set = _keys(guard, pod) if guard else {}
    return [(element_set, key) for element_set, of_set in by_set.items() for key in of_set]


def get_problem(kind: str) -> str:
    """Returns why this kernel cannot guard ports, "" if it can; validates the table without creating it."""
    try:
        with nft.open_socket() as socket:
            return base_table.find_obstacle(socket, _GUARDS[kind].base, "this kernel cannot guard the ports of pods")
    except nft.UnavailableError as error:
        return str(error)


def _keys(guard: Guard, pod: PodRecord) -> dict[Set, list[bytes]]:
    """Returns the keys of a pod's elements, by set; that of the set `ports`, which enables the guard, is last."""
    port = interface_key(pod.host_veth)
    mac = parse_mac(pod.mac)
    pod_addresses: list[Address] = [*pod.addresses, _link_local(mac)]
    prefix = port + mac + bytes(2) if guard.macs else port
    keys: dict[Set, list[bytes]] = {}
    for address in pod_addresses:
        keys.setdefault(guard.addresses[address.version], []).append(prefix + address.packed)
    if guard.macs:
        keys[guard.macs] = [prefix]
    return {**keys, guard.ports: [port]}


def _link_local(mac: bytes) -> IPv6Address:
    """Returns the link-local address of a MAC address (RFC 4291, appendix A)."""
    return IPv6Address(b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:])
