"""Routes of one protocol number on the real kernel, compared with what iproute2 prints."""

from ipaddress import ip_address, ip_network

import pytest

from kernel import protocol_route
from kernel.protocol_route import OTHER, UNREACHABLE, NextHop, ProtocolRoute, format_prefix, pack_network
from kernel.rtnl import Socket
from tests.support.namespaces import Namespace
from tests.support.netstate import shown

PROTOCOL, METRIC = 112, 1120
DST, DST6 = pack_network(ip_network("10.244.2.0/24")), pack_network(ip_network("fd00:2::/64"))
GATEWAY, GATEWAY6 = ip_address("192.0.2.2").packed, ip_address("2001:db8::2").packed


@pytest.fixture
def socket(host: Namespace, socket: Socket) -> Socket:
    """A netlink socket on a host with a link `up0` in 192.0.2.0/24 and 2001:db8::/64."""
    host.ip("link", "add", "up0", "type", "veth", "peer", "up1")
    host.ip("address", "add", "192.0.2.1/24", "dev", "up0")
    host.ip("address", "add", "2001:db8::1/64", "dev", "up0", "nodad")
    for name in ("up0", "up1"):
        host.ip("link", "set", name, "up")
    return socket


def listed(socket: Socket) -> set[ProtocolRoute]:
    return set(protocol_route.list_of_protocol(socket, PROTOCOL))


def test_routes_are_set_replaced_listed_and_deleted(host, socket):
    """A route is replaced in one request, whatever its next hop was, and deleted; other routes stay."""
    host.ip("route", "add", "10.244.2.0/24", "via", "192.0.2.9")
    host.ip("-6", "route", "add", "fd00:2::/64", "via", "2001:db8::9")
    before = host.ip("route") + host.ip("-6", "route")
    up0 = shown(host, "up0")["ifindex"]
    for hop, hop6 in (
        (NextHop(up0, GATEWAY), NextHop(up0, GATEWAY6)),
        (NextHop(up0, ip_address("10.244.2.0").packed, onlink=True), NextHop(up0, ip_address("fe80::2").packed)),
        (UNREACHABLE, UNREACHABLE),
        (NextHop(up0, GATEWAY), NextHop(up0, GATEWAY6)),
    ):
        for _ in range(2):
            socket.change(
                protocol_route.set_request(DST, hop, METRIC, PROTOCOL),
                protocol_route.set_request(DST6, hop6, METRIC, PROTOCOL),
            )
        assert listed(socket) == {
            ProtocolRoute(DST, METRIC, PROTOCOL, hop),
            ProtocolRoute(DST6, METRIC, PROTOCOL, hop6),
        }
    assert "10.244.2.0/24 via 192.0.2.2 dev up0 proto 112 metric 1120" in host.ip("route")
    for _ in range(2):
        socket.change(*(protocol_route.delete_request(dst, METRIC, PROTOCOL) for dst in (DST, DST6)))
    assert host.ip("route") + host.ip("-6", "route") == before


def test_a_deletion_does_not_hit_the_route_of_another_program(host, socket):
    """A route with the same destination and metric, but another protocol, is not deleted."""
    host.ip("route", "add", "10.244.2.0/24", "via", "192.0.2.9", "metric", str(METRIC))
    host.ip("-6", "route", "add", "fd00:2::/64", "via", "2001:db8::9", "metric", str(METRIC))
    before = host.ip("route") + host.ip("-6", "route")
    socket.change(*(protocol_route.delete_request(dst, METRIC, PROTOCOL) for dst in (DST, DST6)))
    assert host.ip("route") + host.ip("-6", "route") == before


def test_other_routes_of_the_protocol_are_listed(host, socket):
    """Routes of the protocol with several next hops are listed as OTHER; those of other tables are not listed."""
    host.ip("route", "add", "10.9.0.0/24", "proto", "112", "nexthop", "via", "192.0.2.8", "nexthop", "via", "192.0.2.9")
    host.ip("route", "add", "blackhole", "10.8.0.0/24", "proto", "112", "metric", "7")
    host.ip("route", "add", "10.7.0.0/24", "via", "192.0.2.9", "proto", "112", "table", "77")
    assert listed(socket) == {
        ProtocolRoute(pack_network(ip_network("10.9.0.0/24")), 0, PROTOCOL, OTHER),
        ProtocolRoute(pack_network(ip_network("10.8.0.0/24")), 7, PROTOCOL, OTHER),
    }


def test_shadowing_routes_are_listed(host, socket):
    """Routes to the same destination with a lower metric are listed, those with a higher one are not."""
    host.ip("route", "add", "10.244.2.0/24", "via", "192.0.2.9", "metric", "5")
    host.ip("route", "add", "10.244.2.0/24", "via", "192.0.2.9", "metric", "5000")
    host.ip("route", "add", "10.244.3.0/24", "via", "192.0.2.9", "metric", "5")
    host.ip("-6", "route", "add", "fd00:2::/64", "via", "2001:db8::9", "metric", "6")
    routes = protocol_route.list_shadowing(socket, frozenset((DST, DST6)), METRIC)
    assert [(route.dst, route.metric) for route in routes] == [(DST, 5), (DST6, 6)]


def test_connected_networks_are_listed(host, socket):
    """Connected networks are those of addresses and of DHCP, without single addresses, link-local ones and others."""
    host.ip("address", "add", "198.51.100.1/32", "dev", "up0")
    host.ip("address", "add", "169.254.7.1/16", "dev", "up0")
    host.ip("route", "add", "10.66.0.0/16", "dev", "up0")
    host.ip("route", "add", "10.67.0.0/16", "dev", "up0", "proto", "dhcp", "metric", "202")
    host.ip("link", "add", "second0", "type", "bridge")
    host.ip("link", "set", "second0", "up")
    for metric, address in (("100", "192.0.2.77/24"), ("9", "10.67.0.7/16")):
        host.ip("address", "add", address, "dev", "second0", "metric", metric)
    up0, second0 = (shown(host, name)["ifindex"] for name in ("up0", "second0"))
    assert [(format_prefix(each.dst), each.hop.ifindex) for each in protocol_route.list_connected(socket)] == [
        ("2001:db8::/64", up0),
        ("192.0.2.0/24", up0),
        ("192.0.2.0/24", second0),
        ("10.67.0.0/16", second0),
        ("10.67.0.0/16", up0),
    ]
