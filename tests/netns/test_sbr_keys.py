"""The keys of sbr: "table", "gateways" and "addSourceHints", and the errors of bad input."""

import pytest

from tests.support.sbr_network import GATEWAY, GATEWAY6, IPV4, IPV6, connect, connect_both, rules, state, table

SUBNET = "10.1.0.0/24 dev eth0 scope link prefsrc 10.1.0.2"
LINK_LOCAL = "fe80::/64 dev eth0 metric 256"


@pytest.fixture
def prev_result(host, sandbox):
    """The result of a dual-stack interface with default routes in table main."""
    return connect_both(host, sandbox)


@pytest.mark.parametrize("number", [100, 254, 5000, 4294967295])
def test_table(sbr, sandbox, prev_result, number):
    """With "table" ADD creates rules only, DEL removes them, and both change no route."""
    routes = state(sandbox)["routes"]
    net = sbr.having(table=number)
    assert net.add(sandbox, prev_result) == prev_result
    name = "main" if number == 254 else number
    assert rules(sandbox) == [f"32765: from 10.1.0.2 lookup {name}", f"32765: from fd00:1::2 lookup {name}"]
    assert state(sandbox)["routes"] == routes
    net.add(sandbox, prev_result)
    net.check(sandbox, prev_result)
    net.delete(sandbox, prev_result)
    assert state(sandbox) == {"rules": [], "routes": routes}


def test_table_without_the_interface(sbr, sandbox, prev_result):
    """With "table" CHECK, STATUS and DEL need no interface, as with the reference plugin."""
    net = sbr.having(table=5000)
    net.add(sandbox, prev_result, ifname="eth0")
    sandbox.ip("link", "delete", "eth0")
    net.check(sandbox, prev_result)
    net.having(cniVersion="1.1.0").run("STATUS").assert_silent()
    net.delete(sandbox, prev_result)
    assert rules(sandbox) == []


def test_del_with_table_removes_rules_of_this_table_only(sbr, sandbox, prev_result):
    """DEL with "table" leaves the rules of the same address for other tables."""
    sbr.add(sandbox, prev_result)
    before = state(sandbox)
    net = sbr.having(table=5000)
    net.add(sandbox, prev_result)
    net.delete(sandbox, prev_result)
    assert state(sandbox) == before


def test_del_without_table_leaves_the_rules_of_a_configured_one(sbr, sandbox, prev_result):
    """DEL without "table" leaves a rule for a table with routes of other interfaces only."""
    sandbox.ip("link", "set", "lo", "up")
    sandbox.ip("route", "add", "10.5.0.0/16", "dev", "lo", "table", "5000")
    sandbox.ip("rule", "add", "from", "10.1.0.2", "lookup", "5000")
    sbr.add(sandbox, prev_result)
    sbr.delete(sandbox, prev_result)
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 5000"]


@pytest.mark.parametrize(
    ("gateways", "default", "default6"),
    [
        (["10.1.0.77"], "10.1.0.77", GATEWAY6),
        (["fd00:1::77"], GATEWAY, "fd00:1::77"),
        (["fd00:1::77", "10.1.0.77"], "10.1.0.77", "fd00:1::77"),
        (["::ffff:10.1.0.77"], "10.1.0.77", GATEWAY6),
    ],
)
def test_gateways(sbr, sandbox, prev_result, gateways, default, default6):
    """A configured gateway wins over prevResult's and over a default route in table main."""
    net = sbr.having(gateways=gateways)
    net.add(sandbox, prev_result)
    assert table(sandbox, 100) == [SUBNET, f"default gateway {default} dev eth0"]
    assert f"default gateway {default6} dev eth0 metric 1024" in table(sandbox, 101)
    assert len([line for line in table(sandbox, 101) if line.startswith("default")]) == 1
    net.check(sandbox, prev_result)
    net.delete(sandbox, prev_result)
    assert (rules(sandbox), table(sandbox, 100), table(sandbox, 101)) == ([], [], [])


def test_gateway_that_the_result_lacks(sbr, host, sandbox):
    """Without a gateway in the address, the default route of prevResult names it, else there is no default route."""
    prev_result = connect(host, sandbox, IPV4, IPV6)
    sbr.add(sandbox, prev_result)
    assert not [line for line in table(sandbox, 100) + table(sandbox, 101) if line.startswith("default")]
    sbr.check(sandbox, prev_result)
    with_routes = {**prev_result, "routes": [{"dst": "0.0.0.0/0", "gw": GATEWAY}, {"dst": "::/0", "gw": GATEWAY6}]}
    assert sbr.check_error(sandbox, with_routes) == f"Expected default route via {GATEWAY} in table 100 is missing"
    sbr.add(sandbox, with_routes)
    assert f"default gateway {GATEWAY} dev eth0" in table(sandbox, 100)
    assert f"default gateway {GATEWAY6} dev eth0 metric 1024" in table(sandbox, 101)
    sbr.check(sandbox, with_routes)


def test_source_hints(sbr, sandbox, prev_result):
    """With "addSourceHints" table main keeps the routes to the subnets, with source addresses, and loses the others."""
    sandbox.ip("route", "add", "192.0.2.0/24", "via", GATEWAY)
    net = sbr.having(addSourceHints=True)
    net.add(sandbox, prev_result)
    assert table(sandbox, "main") == [SUBNET, "fd00:1::/64 dev eth0 prefsrc fd00:1::2 metric 1024", LINK_LOCAL]
    assert table(sandbox, 100) == [
        SUBNET,
        f"192.0.2.0/24 gateway {GATEWAY} dev eth0",
        f"default gateway {GATEWAY} dev eth0",
    ]
    net.check(sandbox, prev_result)
    net.delete(sandbox, prev_result)
    assert rules(sandbox) == []


UNPARSED = "failed to parse network configuration: "


@pytest.mark.parametrize(
    ("keys", "msg"),
    [
        (
            {"gateways": [GATEWAY, "10.1.0.2", "::1"]},
            "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)",
        ),
        ({"gateways": ["0.0.0.0"]}, "invalid static gateway IP address: 0.0.0.0"),
        ({"gateways": ["x"]}, "invalid static gateway IP address: x"),
        ({"gateways": ["10.1.0.0/24"]}, "invalid static gateway IP address: 10.1.0.0/24"),
        ({"gateways": [GATEWAY, "10.1.0.2"]}, "gateways list contains multiple IPv4 addresses: 10.1.0.1 and 10.1.0.2"),
        ({"gateways": ["::1", "::2"]}, "gateways list contains multiple IPv6 addresses: ::1 and ::2"),
        ({"gateways": "10.1.0.1"}, f'{UNPARSED}"gateways" must be a list, not a string'),
        ({"table": "100"}, f'{UNPARSED}"table" must be an integer, not a string'),
        ({"table": 0}, f'{UNPARSED}"table" must be between 1 and 4294967295, not 0'),
        ({"table": -1}, f'{UNPARSED}"table" must be between 1 and 4294967295, not -1'),
        ({"addSourceHints": 1}, f'{UNPARSED}"addSourceHints" must be true or false, not a number'),
    ],
)
def test_invalid_keys(sbr, sandbox, prev_result, keys, msg):
    """An invalid key is refused with code 7 before any change; DEL ignores it, and STATUS reports it."""
    net = sbr.having(**keys)
    error = net.add_error(sandbox, prev_result)
    assert (error["code"], error["msg"]) == (7, msg)
    status = net.having(cniVersion="1.1.0").run("STATUS", None).error()
    assert (status["code"], status["msg"]) == (50, f"sbr does not work on this node: {msg}")
    sbr.add(sandbox, prev_result)
    net.delete(sandbox, prev_result)
    assert rules(sandbox) == []


def test_without_prev_result(sbr, sandbox, prev_result):
    """Without prevResult, without addresses in it, and without addresses of this interface, ADD is refused."""
    assert sbr.add_error(sandbox, None)["msg"] == "This plugin must be called as chained plugin"
    missing = "No IP addresses supplied on interface: eth0"
    assert sbr.add_error(sandbox, {**prev_result, "ips": []})["msg"] == missing
    others = [{**ip, "interface": 0} for ip in prev_result["ips"]]
    assert sbr.add_error(sandbox, {**prev_result, "ips": others})["msg"] == missing
    error = sbr.add_error(sandbox, {"cniVersion": "0.2.0"})
    assert error["msg"].startswith("could not parse prevResult: ")


def test_without_the_interface(sbr, sandbox, prev_result):
    """ADD and CHECK of a missing interface fail with the reference plugin's text."""
    sandbox.ip("link", "delete", "eth0")
    expected = "Cannot find network interface eth0: Link not found"
    assert sbr.add_error(sandbox, prev_result)["msg"] == expected
    assert sbr.check_error(sandbox, prev_result) == expected
