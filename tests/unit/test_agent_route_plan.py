"""The plan of the routes to the other nodes, the order of its changes, and the holder of a network of two nodes."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import route_plan
from agent.holders import Holders
from agent.node import Node
from agent.route_diff import ObjectChange, RouteDiff
from agent.route_plan import ConnectedNetwork, InternalNetwork, ObjectKind, Peer, Plan, Situation
from kernel.protocol_route import NextHop, Prefix, format_prefix, pack_network

TUNNEL, LAN, SECOND_LAN, BRIDGE = 9, 2, 3, 5


def packed(*texts: str) -> tuple[bytes, ...]:
    """Returns networks and addresses as the plan has them."""
    return tuple(pack_network(ip_network(text)) if "/" in text else ip_address(text).packed for text in texts)


def connected(text: str, ifindex: int, *, is_for_pods: bool = False) -> ConnectedNetwork:
    return ConnectedNetwork(packed(text)[0], ifindex, f"eth{ifindex}", is_for_pods)


HERE = Situation(
    mode="auto",
    networks=packed("10.244.1.0/24", "fd00:1::/64"),
    addresses=packed("2001:db8::1", "192.0.2.1"),
    connected=(
        connected("2001:db8::/64", LAN),
        connected("fd00:1::/64", BRIDGE, is_for_pods=True),
        connected("192.0.2.0/25", SECOND_LAN),
        connected("192.0.2.0/24", LAN),
        connected("10.244.1.0/24", BRIDGE, is_for_pods=True),
    ),
    tunnel_ifindex=TUNNEL,
    internal_networks=(
        InternalNetwork(0, ip_address("192.0.2.1").packed, packed("192.0.2.0/24")[0]),
        InternalNetwork(0, ip_address("2001:db8::1").packed, packed("2001:db8::/64")[0]),
    ),
    underlay=ip_address("192.0.2.1").packed,
)
DUAL = ("10.244.2.0/24", "fd00:2::/64")
IPV6 = HERE._replace(
    addresses=HERE.addresses[:1], internal_networks=HERE.internal_networks[1:], underlay=HERE.addresses[0]
)


def planned(situation: Situation, *addresses: str, networks: tuple[str, ...] = DUAL) -> Plan:
    """Returns the plan for a node called "peer"."""
    peer = Peer("peer", packed(*networks), packed(*addresses))
    return route_plan.plan_peer(peer, peer.networks, situation)


def shown(plan: Plan) -> list[str]:
    """Returns the objects of a plan as text."""
    lines = []
    for dst, hop in plan.objects[ObjectKind.ROUTE].items():
        assert isinstance(hop, NextHop)
        gateway = str(ip_address(hop.gateway))
        lines.append(f"{format_prefix(dst)} via {gateway} dev {hop.ifindex}{' onlink' * hop.onlink}")
    for kind in (ObjectKind.NEIGHBOUR, ObjectKind.FORWARDING):
        for key, value in plan.objects[kind].items():
            assert isinstance(value, bytes)
            pair = [item.hex(":") if len(item) == 6 else str(ip_address(item)) for item in (key, value)]
            lines.append(" -> ".join(pair))
    return lines


DIRECT4, DIRECT6 = "10.244.2.0/24 via 192.0.2.200 dev 2", "fd00:2::/64 via 2001:db8::2 dev 2"
MAC = route_plan.mac_of("peer").hex(":")
LINK_LOCAL = str(ip_address(route_plan.link_local_of(route_plan.mac_of("peer"))))
TUNNEL4 = ["10.244.2.0/24 via 10.244.2.0 dev 9 onlink", f"10.244.2.0 -> {MAC}"]
TUNNEL6 = [f"fd00:2::/64 via {LINK_LOCAL} dev 9", f"{LINK_LOCAL} -> {MAC}"]


@pytest.mark.parametrize(
    ("mode", "addresses", "objects"),
    [
        ("auto", ["192.0.2.200"], [DIRECT4, *TUNNEL6, f"{MAC} -> 192.0.2.200"]),
        ("auto", ["192.0.2.20", "2001:db8::2"], ["10.244.2.0/24 via 192.0.2.20 dev 3", DIRECT6]),
        ("auto", ["198.51.100.2", "192.0.2.200"], [DIRECT4, *TUNNEL6, f"{MAC} -> 192.0.2.200"]),
        (
            "auto",
            ["192.0.2.201", "192.0.2.200"],
            ["10.244.2.0/24 via 192.0.2.201 dev 2", *TUNNEL6, f"{MAC} -> 192.0.2.201"],
        ),
        ("auto", ["198.51.100.2", "2001:db8:9::2"], [*TUNNEL4, *TUNNEL6, f"{MAC} -> 198.51.100.2"]),
        ("auto", ["198.51.100.2", "2001:db8::2"], [*TUNNEL4, DIRECT6, f"{MAC} -> 198.51.100.2"]),
        ("vxlan", ["192.0.2.200", "2001:db8::2"], [*TUNNEL4, *TUNNEL6, f"{MAC} -> 192.0.2.200"]),
        ("direct", ["192.0.2.200", "2001:db8::2"], [DIRECT4, DIRECT6]),
        ("none", ["192.0.2.200"], []),
    ],
)
def test_objects_of_a_node(mode, addresses, objects):
    """A node in the network of this node's address is direct, by the link that the kernel prefers."""
    plan = planned(HERE._replace(mode=mode), *addresses)
    assert sorted(shown(plan)) == sorted(objects)
    assert (plan.problems, plan.unchanged) == ((), ())


@pytest.mark.parametrize(
    ("situation", "addresses", "networks", "problem", "is_unchanged"),
    [
        (HERE, [], DUAL[:1], "its Node object has no InternalIP", True),
        (HERE, ["192.0.2.1"], DUAL[:1], "its InternalIP 192.0.2.1 is also this node's", True),
        (HERE, ["192.0.2.9"], ("10.244.0.0/16",), "overlaps with this node's podCIDR 10.244.1.0/24", True),
        (HERE, ["192.0.2.9"], ("192.0.2.64/26",), "192.0.2.64/26 overlaps with 192.0.2.0/25", True),
        (HERE, ["2001:db8:9::2"], DUAL[:1], "its Node object has no IPv4 InternalIP, which VXLAN uses", True),
        (IPV6, ["192.0.2.9"], DUAL[:1], "this node has no IPv4 InternalIP, which VXLAN uses", True),
        (HERE._replace(mode="direct"), ["192.0.2.9"], DUAL[1:], "no IPv6 InternalIP for fd00:2::/64", True),
        (HERE._replace(mode="direct"), ["198.51.100.2"], DUAL[:1], "198.51.100.2 is in no network connected", False),
        (HERE._replace(tunnel_ifindex=0), ["198.51.100.2"], DUAL[:1], "this node has no VXLAN device", False),
        (HERE._replace(addresses=()), ["198.51.100.2"], DUAL[:1], "this node has no InternalIP", True),
        (HERE._replace(underlay=b""), ["198.51.100.2"], DUAL[:1], "no interface of this node has its InternalIP", True),
    ],
)
def test_problems_of_a_node(situation, addresses, networks, problem, is_unchanged):
    """A node that cannot be reached is a problem with a reason; with wrong data its objects stay as they are."""
    plan = planned(situation, *addresses, networks=networks)
    assert shown(plan) == []
    assert [problem in text for text in plan.problems] == [True]
    assert plan.unchanged == (packed(*networks) if is_unchanged else ())


def test_the_underlay_of_an_ipv6_node_is_ipv6():
    """If the nodes have only IPv6 addresses, forwarding entries have the other node's IPv6 address."""
    plan = planned(IPV6, "2001:db8:9::2")
    assert f"{MAC} -> 2001:db8:9::2" in shown(plan)


def node_of(addresses: list[str], networks: tuple[str, ...]) -> tuple[Peer, Situation]:
    """Returns a node with addresses as other nodes see it, and its situation: a link for each address (24 bits)."""
    links = sorted({ip_network(f"{each}/24", strict=False) for each in addresses}, key=str)
    known = [connected(str(network), 2 + index) for index, network in enumerate(links)]
    mine = [
        InternalNetwork(position, each, network.network)
        for position, each in enumerate(packed(*addresses))
        for network in known
        if route_plan.contains(network.network, each)
    ]
    peer = Peer("peer", packed(*networks), packed(*addresses))
    situation = Situation("auto", peer.networks, peer.addresses, tuple(known), TUNNEL, tuple(mine), peer.addresses[0])
    return peer, situation


LANS = st.permutations(["10.1.0", "10.2.0", "10.3.0", "10.4.0"]).flatmap(
    lambda lans: st.integers(1, 4).map(lambda count: lans[:count])
)


@given(LANS, LANS)
def test_both_ends_decide_alike(mine, other):
    """Of two nodes with any InternalIPs in any order both are direct to the other, or neither is."""
    one, here = node_of([f"{lan}.1" for lan in mine], ("10.244.1.0/24",))
    two, there = node_of([f"{lan}.2" for lan in other], ("10.244.2.0/24",))
    hop, back = route_plan.direct_hop(two, two.networks[0], here), route_plan.direct_hop(one, one.networks[0], there)
    assert (hop is None) == (back is None) == (not set(mine) & set(other))
    if hop and back:
        assert hop.gateway[:3] == back.gateway[:3]
        ends: list[object] = []
        for peer, here_of in ((two, here), (one, there)):
            plan = route_plan.plan_peer(peer, peer.networks, here_of._replace(mode="vxlan"))
            ends += plan.objects[ObjectKind.FORWARDING].values()
        assert ends == [hop.gateway, back.gateway]


def test_a_node_keeps_the_addresses_that_its_object_loses():
    """A node keeps its addresses of an IP version of which its object has none any more, another node none of them."""
    before = Peer("peer", (), packed("192.0.2.9", "192.0.2.10", "2001:db8::9"), "uid")
    nothing = route_plan.keep_addresses(before._replace(addresses=()), before)
    assert nothing == before._replace(former_addresses=before.addresses)
    without_ipv6 = route_plan.keep_addresses(before._replace(addresses=packed("192.0.2.77")), nothing)
    assert without_ipv6.addresses == packed("192.0.2.77", "2001:db8::9")
    assert without_ipv6.former_addresses == packed("2001:db8::9")
    last = route_plan.keep_addresses(before._replace(addresses=()), without_ipv6)
    assert last.former_addresses == without_ipv6.addresses
    assert route_plan.keep_addresses(before, nothing) == before
    assert route_plan.keep_addresses(before._replace(addresses=(), uid="another"), before).addresses == ()
    # Such a node may use the tunnel, or other nodes to it: not all of them know the address.
    assert [route_plan.needs_tunnel(peer, HERE) for peer in (before, nothing, without_ipv6)] == [False, False, True]


def test_objects_of_this_node():
    """A node has an unreachable route per pod network, and with a device its first addresses."""
    plan = route_plan.plan_node(HERE)
    assert list(map(format_prefix, plan.objects[ObjectKind.UNREACHABLE])) == ["10.244.1.0/24", "fd00:1::/64"]
    assert list(map(format_prefix, plan.objects[ObjectKind.ADDRESS])) == ["10.244.1.0/32", "fd00:1::/128"]
    assert not route_plan.plan_node(HERE._replace(tunnel_ifindex=0)).objects[ObjectKind.ADDRESS]
    assert route_plan.plan_node(HERE._replace(mode="none")) == Plan(route_plan.new_objects())


@pytest.mark.parametrize("is_for_pods", [True, False])
def test_this_nodes_pod_network_overlaps_with_its_lan(is_for_pods):
    """A pod network that overlaps with the LAN is a problem, also if the LAN is on a bridge."""
    lan = connected("192.0.2.0/24", LAN, is_for_pods=is_for_pods)
    plan = route_plan.plan_node(HERE._replace(networks=packed("192.0.2.128/25"), connected=(lan,)))
    assert plan.unchanged == packed("192.0.2.128/25")
    assert plan.problems == (
        'its podCIDR 192.0.2.128/25 overlaps with 192.0.2.0/24, which is connected to this node\'s "eth2"',
    )


def test_the_mac_address_depends_on_the_name_only():
    """MAC addresses are locally administered unicast addresses, different for each name, the same for ever."""
    macs = {route_plan.mac_of(f"node-{number}") for number in range(1000)}
    assert len(macs) == 1000
    assert {mac[0] & 3 for mac in macs} == {2}
    assert route_plan.mac_of("node-1").hex(":") == "86:66:ad:15:bd:6e"
    assert str(ip_address(route_plan.link_local_of(bytes.fromhex("0a0000000102")))) == "fe80::800:ff:fe00:102"


def test_a_node_becomes_a_peer():
    """A peer has the networks and addresses of the Node, in its order."""
    addresses = (ip_address("2001:db8::1"), ip_address("192.0.2.1"))
    node = Node("peer", "uid", (ip_network("10.244.2.0/24"),), addresses)
    assert route_plan.peer_of(node) == Peer("peer", packed("10.244.2.0/24"), packed("2001:db8::1", "192.0.2.1"), "uid")
    assert not route_plan.needs_tunnel(route_plan.peer_of(node), HERE)
    assert route_plan.needs_tunnel(route_plan.peer_of(node), HERE._replace(mode="vxlan"))
    assert route_plan.needs_tunnel(route_plan.peer_of(node)._replace(addresses=packed("198.51.100.2")), HERE)


def compared(existing: Plan, desired: Plan, unchanged: tuple[Prefix, ...] = ()) -> list[ObjectChange]:
    diff = RouteDiff(existing.objects, unchanged, TUNNEL)
    diff.add(desired)
    return diff.changes([list(table) for table in existing.objects])


def test_changes_are_ordered():
    """Forwarding entries come before routes, deletions last and in the opposite order; nothing equal is sent."""
    near, far = planned(HERE, "192.0.2.9", networks=DUAL[:1]), planned(HERE, "198.51.100.2", networks=DUAL[:1])
    (network,) = packed("10.244.2.0/24")
    gateway, mac = network[:-1], route_plan.mac_of("peer")
    assert compared(near, far) == [
        ObjectChange(ObjectKind.FORWARDING, mac, packed("198.51.100.2")[0]),
        ObjectChange(ObjectKind.NEIGHBOUR, gateway, mac),
        ObjectChange(ObjectKind.ROUTE, network, NextHop(TUNNEL, gateway, onlink=True)),
    ]
    assert compared(far, near) == [
        ObjectChange(ObjectKind.ROUTE, network, NextHop(SECOND_LAN, packed("192.0.2.9")[0])),
        ObjectChange(ObjectKind.NEIGHBOUR, gateway, None),
        ObjectChange(ObjectKind.FORWARDING, mac, None),
    ]
    assert compared(far, far) == []
    assert [change.kind for change in compared(far, Plan(route_plan.new_objects()))] == [3, 2, 1]


def test_objects_of_unchanged_networks_are_kept():
    """For an unchanged network neither its route nor the entries that the route needs change."""
    far, elsewhere = planned(HERE, "198.51.100.2"), planned(HERE, "198.51.100.3")
    unchanged = packed(DUAL[0])
    assert compared(far, elsewhere, unchanged) == []
    assert {change.key for change in compared(far, Plan(route_plan.new_objects()), unchanged)} == {
        packed(DUAL[1])[0],
        route_plan.link_local_of(route_plan.mac_of("peer")),
    }
    assert packed(DUAL[0])[0] not in {change.key for change in compared(Plan(route_plan.new_objects()), far, unchanged)}
    assert compared(far, Plan(route_plan.new_objects(), unchanged=packed(*DUAL))) == []


def test_a_network_belongs_to_the_first_node_until_it_drops_it():
    """The first node that names a network has it, then the next one that waits."""
    holders, (network,) = Holders(), packed("10.244.2.0/24")
    for name in ("one", "two", "three", "two"):
        holders.add(network, name)
    history = [holders.holder_of(network)]
    for name in ("two", "one", "three", "three"):
        holders.remove(network, name)
        history.append(holders.holder_of(network))
    assert history == ["one", "one", "three", None, None]
