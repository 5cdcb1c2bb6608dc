"""vrf without a kernel: its configuration, the choice of a table, conflicts, and the requests that move routes."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest

from cni.errors import CniError
from kernel.address_copy import AddressCopy
from kernel.link import IFF_UP, Link
from kernel.route_copy import build_route
from kernel.rule import PolicyRule
from kernel.vrf import Vrf
from plugins.vrf import conf as vrf_conf
from plugins.vrf import membership, tables
from plugins.vrf.conf import VrfConf
from plugins.vrf.main import cmd_add, cmd_check, cmd_del
from plugins.vrf.membership import MAIN, VrfTarget
from tests.support.netconf import arguments, netconf, parse, refusal

BLUE = Vrf(9, "blue", "vrf", 7, "podwire", True)
ETH0 = Link(3, "eth0", "02:00:00:00:00:01", 1500, IFF_UP, "veth", 0, 4, 0, 6)
NET1 = ETH0._replace(index=5, name="net1")
INTO = VrfTarget(9, "blue", 7)


ARGS = arguments(CNI_NETNS="/no/such/netns")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"vrfname": "blue"}, VrfConf("blue", 0)),
        ({"vrfName": "blue", "table": 4294967295}, VrfConf("blue", 4294967295)),
        ({"vrfname": "blue", "table": 0}, VrfConf("blue", 0)),
    ],
)
def test_configuration(keys, expected):
    """A configuration has a name, and a table or none."""
    assert parse("vrf", keys) == expected
    assert vrf_conf.lenient_name(netconf("vrf", keys)) == "blue"


@pytest.mark.parametrize(
    ("keys", "msg"),
    [
        ({"table": 1}, "configuration is expected to have a valid vrf name"),
        ({"vrfname": ""}, "configuration is expected to have a valid vrf name"),
        ({"vrfname": "a/b"}, '"vrfname" is not a valid interface name: a/b'),
        ({"vrfname": "sixteen-letters!"}, '"vrfname" is not a valid interface name: sixteen-letters!'),
        ({"vrfname": 7}, '"vrfname" must be a string, not a number'),
        ({"vrfname": "blue", "table": -1}, '"table" must be'),
        ({"vrfname": "blue", "table": 1 << 32}, '"table" must be'),
    ],
)
def test_invalid_configuration(keys, msg):
    """An invalid name or table is code 7 for ADD; without a valid name DEL has nothing to delete."""
    failure = refusal("vrf", keys)
    assert (failure.code, msg in failure.msg) == (7, True)
    assert vrf_conf.lenient_name(netconf("vrf", keys)) == ("blue" if keys.get("vrfname") == "blue" else "")
    cmd_del(ARGS, netconf("vrf", keys))


@pytest.mark.parametrize("verb", [cmd_add, cmd_check])
def test_missing_prev_result(verb):
    """ADD and CHECK need prevResult, and say so with the reference plugin's text before they open the namespace."""
    with pytest.raises(CniError, match="missing prevResult from earlier plugin"):
        verb(ARGS, netconf("vrf", {"vrfname": "blue"}))


@pytest.mark.parametrize(
    ("vrfs", "rule_tables", "routes", "expected"),
    [
        ((), (), (), 1),
        ((1, 2, 4), (), (), 3),
        ((1,), (2,), {3}, 4),
        ((), (0, 253, 254, 255), {254}, 1),
        (range(1, 253), (), (), 256),
        (range(1, 1000), (), (), 1000),
    ],
)
def test_table_choice(vrfs, rule_tables, routes, expected):
    """The lowest table is chosen that no VRF, rule or route uses, and that is not the kernel's."""
    rules = [PolicyRule(4, b"", number, 100) for number in rule_tables]
    devices = [BLUE._replace(name=f"v{number}", table=number) for number in vrfs]
    assert tables.choose(devices, rules, routes) == expected


def test_conflicts():
    """A VRF with another table is refused; a shared table is described by its other users."""
    assert tables.table_conflict(BLUE, 0) is None
    assert tables.table_conflict(BLUE, 7) is None
    conflict = tables.table_conflict(BLUE, 8)
    assert conflict is not None
    assert conflict.msg == "VRF blue already exist with different routing table 7"
    rules = [PolicyRule(4, b"", 7, 100), PolicyRule(4, b"", 254, 32766)]
    assert tables.uses(7, "red", [BLUE], rules, {7}) == ["VRF blue", "routing rules"]
    assert tables.uses(7, "red", [], [], {7}) == ["other routes"]
    assert tables.uses(254, "red", [], rules, {254}) == ["the kernel"]
    assert tables.uses(8, "red", [BLUE], rules, {7}) == []


@pytest.mark.parametrize(("kind", "hint"), [("bridge", "it is a bridge; "), ("", "it is no virtual interface; ")])
def test_other_kinds_of_links(kind, hint):
    """A link that is not a VRF is refused with its kind."""
    with pytest.raises(CniError, match="Netlink blue is not a VRF") as caught:
        tables.require_vrf(BLUE._replace(kind=kind))
    assert caught.value.details.startswith(hint)


def route(dst, gateway="", link=ETH0, table=254, proto=3):
    built = build_route(link, ip_network(dst), gateway=ip_address(gateway) if gateway else None)
    return built._replace(table=table, values={**built.values, "proto": proto})


def sent(saved, to):
    """Returns the requests of a move as (destination, table, replaces) triples."""
    return [
        (request.description.removeprefix("add route "), bool(request.flags & 0x100))
        for request in membership._route_requests(ETH0, saved, to)
    ]


def test_routes_of_the_kernel_are_not_copied():
    """Connected routes and those of router advertisements are the kernel's, others through the interface are moved."""
    routes = [
        route("10.1.0.0/24", proto=2),
        route("::/0", "fe80::1", proto=9),
        route("0.0.0.0/0", "10.1.0.1"),
        route("192.0.2.0/24"),
        route("192.0.3.0/24", "10.1.0.1", table=300),
        route("192.0.4.0/24", "10.2.0.1", link=NET1),
    ]
    saved = membership.save(ETH0, [], routes)
    expected = [
        ("192.0.2.0/24 to table 7", False),
        ("192.0.3.0/24 via 10.1.0.1 to table 300", False),
        ("default via 10.1.0.1 to table 7", False),
    ]
    assert sent(saved, INTO) == expected
    assert sent(saved, MAIN) == [(text.replace("table 7", "table 254"), flag) for text, flag in expected]


def test_connected_route_that_is_missing_stays_missing():
    """A connected route that a plugin deleted is deleted from the new table; a missing one of another kind is not."""
    addresses = [address("10.1.0.2/24"), address("fd00:1::2/64"), address("fd00:3::2/64", flags=0x200)]
    addresses.append(address("fe80::2/64", scope=253))
    connected = [route("10.1.0.0/24", proto=2)]
    saved = membership.save(ETH0, addresses, connected)
    assert saved.unconnected == (ip_network("fd00:1::/64"),)
    assert [str(ip_address(copy.packed)) for copy in saved.addresses] == ["fd00:1::2", "fd00:3::2"]
    assert membership.save(ETH0._replace(flags=0), addresses, connected).unconnected == ()


def address(text, *, flags=0x80, scope=0):
    cidr = ip_interface(text)
    values = {"family": 2 if cidr.version == 4 else 10, "prefixlen": cidr.network.prefixlen, "scope": scope}
    return AddressCopy(values, (("IFA_ADDRESS", cidr.packed),), flags)
