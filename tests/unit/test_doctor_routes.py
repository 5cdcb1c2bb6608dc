"""The commands against default routes through the pods' interfaces."""

from ipaddress import ip_address, ip_network
from types import SimpleNamespace
from typing import Any

from kernel.fib import UNICAST, FibRoute, FibRule, packet_to
from kernel.link import Link
from podwire.doctor import route_fixes, routes
from podwire.doctor.pods import VethPod
from podwire.predictions.routing import Choice, Fib
from tests.support.unit_node import new_node, run_check

MAIN = FibRule(4, 32766, "lookup", 254)
SUBNET = ip_network("10.9.0.0/24")
CNI0, UPLINK, VETH = (Link(index, name, "", 1500, 1, "", 0, 0, None, 6) for index, name in enumerate("abc", 1))


def routed(*hops: tuple[int, str]) -> Fib:
    """Returns a table main with routes (ifindex, destination) by increasing metric, and the route to the pods."""
    defaults = (
        FibRoute(UNICAST, ip_network(to), metric=number, hops=((link, None),)) for number, (link, to) in enumerate(hops)
    )
    return Fib([MAIN], [*defaults, FibRoute(UNICAST, SUBNET, hops=((CNI0.index, None),))])


def test_default_route_through_a_pod(tmp_path):
    """The command deletes the default route by a pod's interface, and no other route."""
    node = new_node(tmp_path)
    node.links, node.pod_interfaces = (CNI0, UPLINK, VETH), frozenset([VETH.name])
    node.fib = routed((VETH.index, "0.0.0.0/0"), (UPLINK.index, "0.0.0.0/0"), (VETH.index, "10.8.0.0/24"))
    pod: Any = SimpleNamespace(item=node.interfaces[0], key="")
    finding = routes._through_pods(node, pod, Choice(UNICAST), VETH.name)
    assert finding.fix == f"ip route del default dev {VETH.name}"


def test_default_route_back_to_the_pods(tmp_path):
    """If the first default route of table main sends pods' packets back to their bridge, its deletion lets them out."""
    node = new_node(tmp_path)
    node.links, node.pod_interfaces = (CNI0, UPLINK), frozenset()
    node.fib = routed((CNI0.index, "0.0.0.0/0"), (UPLINK.index, "0.0.0.0/0"))
    attachment: Any = SimpleNamespace(typed_result=SimpleNamespace(ips=[]))
    pod = VethPod(node.interfaces[0], attachment, (ip_address("10.9.0.2"),), (), "", None, CNI0)
    packet = packet_to(ip_address("192.0.2.9"), ip_address("10.9.0.2"), CNI0.name)
    command, _ = route_fixes.from_pod(node, pod, packet, node.fib.look_up(packet))
    assert command == f"ip route del default dev {CNI0.name}"


def test_other_route_to_the_subnet_behind_that_of_the_bridge(tmp_path):
    """A route to the pods' subnet by another interface is found after the route of the network's bridge."""
    node = new_node(tmp_path)
    node.addresses = {}
    node.links = tuple(Link(n, name, "", 1500, 0, "bridge", 0, 0, None, 6) for n, name in ((2, "cni0"), (3, "lan")))
    node.fib = Fib([MAIN], [FibRoute(UNICAST, SUBNET, hops=((n, None),)) for n in (2, 3)])
    (finding,) = run_check(node, "host")
    assert 'by interface "lan"' in finding.text
