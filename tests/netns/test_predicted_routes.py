"""The prediction of a packet's route, compared with the choice of the kernel that routes it."""

from ipaddress import ip_address
from socket import if_nametoindex

import pytest

from kernel import fib
from kernel.fib import packet_to
from kernel.netfilter.packet import Packet
from kernel.rtnl import Socket
from podwire.predictions import routing
from process.values import replace
from tests.support.namespaces import Namespace

POD, NODE, REMOTE = (ip_address(text) for text in ("10.22.0.2", "192.0.2.1", "198.51.100.9"))
POD6, NODE6, REMOTE6 = (ip_address(text) for text in ("fd00:22::2", "2001:db8::1", "2001:db8:9::9"))
PACKETS = {
    "pod to another machine": packet_to(REMOTE, POD, "cni0", port=443, source_port=40000),
    "pod to another machine, IPv6": packet_to(REMOTE6, POD6, "cni0", port=443, source_port=40000),
    "pod to the node": packet_to(NODE, POD, "cni0", port=10250),
    "node to pod": packet_to(POD, port=8080),
    "node to pod, IPv6": packet_to(POD6, port=8080),
    "node to another machine": packet_to(REMOTE, protocol=17, port=53),
    "node from its address": packet_to(REMOTE, NODE, port=80),
    "node, marked": packet_to(REMOTE, NODE, mark=0x4000, port=80),
    "another machine to a pod": packet_to(POD, REMOTE, "up0", port=80, source_port=50000),
    "broadcast": packet_to(ip_address("192.0.2.255"), NODE, protocol=17, port=67),
}
# Commands of iproute2, without `ip`; each line is a node of its own.
CHANGES = {
    "nothing": "",
    "blackhole": "route add blackhole 198.51.100.0/24",
    "prohibit in a table": "route add prohibit default table 77; rule add iif cni0 lookup 77 priority 60",
    "unreachable, IPv6": "-6 route add unreachable 2001:db8:9::/48",
    "throw": "route add throw 198.51.100.0/24 table 77; rule add lookup 77 priority 60",
    "rule refuses": "rule add from 10.22.0.0/16 to 198.51.100.0/24 prohibit priority 70",
    "rule inverted": "rule add not to 10.22.0.0/16 blackhole priority 70",
    "goto": "rule add iif cni0 goto 200 priority 50; rule add to 198.51.100.0/24 blackhole priority 60; "
    "rule add lookup main priority 200",
    "goto is jumped over": "rule add to 198.51.100.0/24 goto 32766 priority 50; rule add unreachable priority 60",
    "mark": "route add default via 192.0.2.3 table 88; rule add fwmark 0x4000/0xf000 lookup 88 priority 60",
    "suppressed default": "rule add lookup main suppress_prefixlength 0 priority 60; "
    "route add default via 192.0.2.3 table 88; rule add lookup 88 priority 61",
    "port": "rule add ipproto tcp dport 80-443 blackhole priority 60",
    "source port": "rule add ipproto tcp sport 40000 prohibit priority 60",
    "users": "rule add uidrange 0-0 blackhole priority 60",
    "other users": "rule add uidrange 1000-2000 blackhole priority 60",
    "type of service": "rule add tos 0x10 blackhole priority 60",
    "outgoing interface": "rule add oif up0 blackhole priority 60",
    "metrics": "route add default via 192.0.2.7 metric 10; route add default via 192.0.2.8 metric 5",
    "next hops": "route replace default nexthop via 192.0.2.7 nexthop via 192.0.2.8",
    "next hop object": "nexthop add id 5 blackhole; route add 198.51.100.0/24 nhid 5",
    "pods' subnet is local": "route add local 10.22.0.0/24 dev lo",
    "narrow route": "route add 10.22.0.2/32 via 192.0.2.9; -6 route add fd00:22::2/128 via 2001:db8::9",
    "no table main": "rule del lookup main",
}


@pytest.fixture
def routed_host(host: Namespace) -> Namespace:
    """A node with an uplink, default routes, and a bridge of pods, that forwards."""
    host.ip("link", "add", "up0", "type", "veth", "peer", "up1")
    host.ip("link", "add", "cni0", "type", "bridge")
    host.ip("link", "add", "veth1", "master", "cni0", "type", "veth", "peer", "eth1")
    for name in ("up0", "up1", "cni0", "veth1", "eth1"):
        host.ip("link", "set", name, "up")
    for address, name in (("192.0.2.1/24", "up0"), ("10.22.0.1/24", "cni0")):
        host.ip("address", "add", address, "dev", name)
    for address, name in (("2001:db8::1/64", "up0"), ("fd00:22::1/64", "cni0")):
        host.ip("address", "add", address, "dev", name, "nodad")
    host.ip("route", "add", "default", "via", "192.0.2.254")
    host.ip("-6", "route", "add", "default", "via", "2001:db8::fe")
    for name in ("ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"):
        host.run("sysctl", "-qw", f"net/{name}=1")
    return host


def compare(socket: Socket, packet: Packet, predicted: routing.Choice) -> list[str]:
    """Returns how the prediction differs from the kernel's choice."""
    index = if_nametoindex(packet.iif) if packet.iif else 0
    answer = fib.look_up(socket, packet, index)
    if answer.route is None or answer.route.kind in fib.REFUSALS:
        return (
            []
            if predicted.kind in ("", routing.MARTIAN, *fib.REFUSALS)
            else [f"the kernel refuses it, not {predicted}"]
        )
    # While there is no policy rule, the kernel keeps the table local in the table main.
    chosen, route = answer.route, predicted.route
    is_same = route is not None and replace(route, table=chosen.table) == chosen
    return [] if is_same else [f"the kernel chooses {chosen}, not {predicted}"]


@pytest.mark.every_case
@pytest.mark.parametrize("change", CHANGES)
def test_prediction_is_the_kernels_choice(routed_host, change):
    """The predicted route of each packet, or its refusal, is the kernel's, whatever rules and routes there are."""
    for line in filter(None, CHANGES[change].split("; ")):
        routed_host.ip(*line.split())
    with routed_host.entered(), Socket() as socket:
        lists = routing.read_fib(socket)
        differing = {
            name: differences
            for name, packet in PACKETS.items()
            if (differences := compare(socket, packet, lists.look_up(packet)))
        }
    assert differing == {}
