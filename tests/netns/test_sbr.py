"""ADD of sbr: a rule and a table for each address of the interface, and routes that leave table main."""

import pytest

from tests.support.sbr_network import GATEWAY, GATEWAY6, IPV4, IPV6, connect, rules, state, table

SUBNET = "10.1.0.0/24 dev eth0 scope link prefsrc 10.1.0.2"
SUBNET6 = "fd00:1::/64 dev eth0 metric 256"
DEFAULT = f"default gateway {GATEWAY} dev eth0"
DEFAULT6 = f"default gateway {GATEWAY6} dev eth0 metric 1024"
LINK_LOCAL = "fe80::/64 dev eth0 metric 256"


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
@pytest.mark.parametrize("defaults", [(), (GATEWAY,)])
def test_one_address(sbr, host, sandbox, defaults, version):
    """An address gets a rule for table 100 with its subnet and default route, and table main loses them."""
    prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY], defaults=defaults, version=version)
    sbr = sbr.having(cniVersion=version)
    assert sbr.add(sandbox, prev_result)["ips"][0]["address"] == IPV4
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 100"]
    assert table(sandbox, 100) == [SUBNET, DEFAULT]
    assert table(sandbox, "main") == [LINK_LOCAL]
    sbr.having(cniVersion=max(version, "0.4.0")).check(sandbox, {**prev_result, "cniVersion": max(version, "0.4.0")})


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_results_of_the_first_versions(sbr, host, sandbox, version):
    """A result without interfaces has the addresses of this interface."""
    connect(host, sandbox, IPV4, gateways=[GATEWAY])
    prev_result = {"cniVersion": version, "ip4": {"ip": IPV4, "gateway": GATEWAY}, "dns": {}}
    assert sbr.having(cniVersion=version).add(sandbox, prev_result) == prev_result
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 100"]
    assert table(sandbox, 100) == [SUBNET, DEFAULT]


def test_two_addresses_of_one_subnet(sbr, host, sandbox):
    """The gateway of one address serves the other address of its subnet, which has none in the result."""
    prev_result = connect(host, sandbox, IPV4, "10.1.0.3/24", gateways=[GATEWAY])
    sbr.add(sandbox, prev_result)
    assert rules(sandbox) == ["32764: from 10.1.0.3 lookup 101", "32765: from 10.1.0.2 lookup 100"]
    assert table(sandbox, 100) == table(sandbox, 101) == [SUBNET, DEFAULT]


def test_dual_stack(sbr, host, sandbox):
    """IPv4 and IPv6 have a table each, with the routes of their own IP version only."""
    prev_result = connect(host, sandbox, IPV4, IPV6, gateways=[GATEWAY, GATEWAY6], defaults=[GATEWAY, GATEWAY6])
    sbr.add(sandbox, prev_result)
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 100", "32765: from fd00:1::2 lookup 101"]
    assert table(sandbox, 100) == [SUBNET, DEFAULT]
    assert table(sandbox, 101) == [DEFAULT6, SUBNET6, LINK_LOCAL]
    assert table(sandbox, "main") == [LINK_LOCAL]
    sbr.check(sandbox, prev_result)
    sbr.delete(sandbox, prev_result)
    assert (rules(sandbox), table(sandbox, 100), table(sandbox, 101)) == ([], [], [])


def test_routes_of_a_version_without_address_stay(sbr, host, sandbox):
    """Routes of an IP version that has no address in prevResult stay in table main: no rule leads to a copy."""
    prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY])
    sandbox.ip("address", "add", IPV6, "dev", "eth0", "nodad")
    sbr.add(sandbox, prev_result)
    assert table(sandbox, "main") == [SUBNET6, LINK_LOCAL]


@pytest.mark.parametrize(
    ("addresses", "gateway", "expected"),
    [
        ((IPV6,), "fe80::1", ["default gateway fe80::1 dev eth0 metric 1024", SUBNET6, LINK_LOCAL]),
        ((IPV4,), "169.254.1.1", [SUBNET, "169.254.1.1 dev eth0 scope link", "default gateway 169.254.1.1 dev eth0"]),
    ],
)
def test_default_route_via_another_subnet(sbr, host, sandbox, addresses, gateway, expected):
    """A default route via a gateway beyond the subnet is copied (openshift/containernetworking-plugins#222)."""
    prev_result = connect(host, sandbox, *addresses)
    if gateway == "169.254.1.1":
        sandbox.ip("route", "add", gateway, "dev", "eth0")
    sandbox.ip("route", "add", "default", "via", gateway, "dev", "eth0")
    sbr.add(sandbox, prev_result)
    assert table(sandbox, 100) == sorted(expected)
    assert table(sandbox, "main") == [LINK_LOCAL]


def test_all_parts_of_a_route_are_copied(sbr, host, sandbox):
    """Copies keep metric, metrics, protocol, preference, flags and several next hops."""
    prev_result = connect(host, sandbox, IPV4, IPV6, gateways=[GATEWAY, GATEWAY6])
    for words in (
        "192.0.2.0/24 via 10.1.0.9 mtu 1300 advmss 1200 metric 7 proto static",
        "198.51.100.0/24 nexthop via 10.1.0.8 weight 3 nexthop via 10.1.0.9",
        "203.0.113.0/24 via 192.0.2.99 onlink src 10.1.0.2",
        "2001:db8:1::/48 via fd00:1::9 mtu 1400 metric 5 pref high",
        "2001:db8:2::/48 nexthop via fd00:1::8 nexthop via fd00:1::9",
    ):
        dst, *rest = words.split()
        device = ["dev", "eth0"] if "nexthop" not in rest else []
        sandbox.ip("route", "add", dst, *rest, *device)
    before = [sandbox.ip(version, "route", "show", "table", "main") for version in ("-4", "-6")]
    sbr.add(sandbox, prev_result)
    for version, number, text in (("-4", "100", before[0]), ("-6", "101", before[1])):
        moved = sandbox.ip(version, "route", "show", "table", number).splitlines()
        assert {line.strip() for line in moved if not line.startswith("default")} == set(
            map(str.strip, text.splitlines())
        )


def test_tables_in_use_are_skipped(sbr, host, sandbox):
    """Tables of rules, tables with routes, and tables of prevResult's routes are not free."""
    prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY])
    connect(host, sandbox, "10.9.0.2/24", ifname="other")
    sandbox.ip("rule", "add", "fwmark", "1", "lookup", "100")
    sandbox.ip("route", "add", "10.77.0.0/16", "dev", "other", "table", "101")
    sandbox.ip("route", "add", "blackhole", "default", "table", "102")
    sandbox.ip("-6", "rule", "add", "from", "fd00:9::/64", "lookup", "103")
    sandbox.ip("route", "add", "10.76.0.0/16", "dev", "eth0", "table", "104")
    prev_result["routes"] = [{"dst": "10.76.0.0/16", "table": 104}]
    before = state(sandbox)
    sbr.add(sandbox, prev_result)
    assert "32764: from 10.1.0.2 lookup 105" in rules(sandbox)
    assert table(sandbox, 105) == [SUBNET, DEFAULT]
    sbr.delete(sandbox, prev_result)
    sandbox.ip("route", "add", "10.1.0.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src", "10.1.0.2")
    assert state(sandbox) == before


def test_reserved_tables_are_skipped(sbr, host, sandbox):
    """The tables default, main and local are never chosen."""
    prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY])
    for number in range(100, 253):
        sandbox.ip("rule", "add", "from", "192.0.2.1", "lookup", str(number))
    sbr.add(sandbox, prev_result)
    assert [line.partition(": ")[2] for line in rules(sandbox) if "10.1.0.2" in line] == ["from 10.1.0.2 lookup 256"]
    sbr.check(sandbox, prev_result)


def test_stale_table_of_the_interface(sbr, host, sandbox):
    """A table without a rule, filled for the same interface earlier, is emptied and used again."""
    prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY])
    for dst in ("10.70.0.0/16", "default"):
        sandbox.ip("route", "add", dst, "via", "10.1.0.77", "dev", "eth0", "table", "100")
    sbr.add(sandbox, prev_result)
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 100"]
    assert table(sandbox, 100) == [SUBNET, DEFAULT]


def test_stale_rule_of_the_address(sbr, host, sandbox):
    """A rule that an earlier attachment with the address left is used again, with its table."""
    sandbox.ip("rule", "add", "from", "10.1.0.2", "lookup", "104")
    sbr.add(sandbox, connect(host, sandbox, IPV4, gateways=[GATEWAY]))
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 104"]
    assert table(sandbox, 104) == [SUBNET, DEFAULT]


def test_second_add_changes_nothing(sbr, host, sandbox):
    """A repeated ADD succeeds and changes nothing (the reference plugin adds a second rule, then fails)."""
    prev_result = connect(host, sandbox, IPV4, IPV6, gateways=[GATEWAY, GATEWAY6], defaults=[GATEWAY, GATEWAY6])
    for net in (sbr, sbr.having(gateways=["10.1.0.7"]), sbr.having(addSourceHints=True)):
        net.add(sandbox, prev_result)
        before = state(sandbox)
        net.add(sandbox, prev_result)
        assert state(sandbox) == before
    sbr.delete(sandbox, prev_result)
    assert rules(sandbox) == []


def test_several_interfaces(sbr, host, sandbox):
    """Each interface has its own tables, and ADD and DEL of one leave the routes and rules of the other."""
    results = {}
    for number, ifname in enumerate(("net1", "net2"), 1):
        pair = (f"10.{number}.0.2/24", f"fd00:{number}::2/64")
        gateways = [f"10.{number}.0.1", f"fd00:{number}::1"]
        results[ifname] = connect(host, sandbox, *pair, ifname=ifname, gateways=gateways)
    for ifname, result in results.items():
        sbr.add(sandbox, result, ifname=ifname)
    assert [line.partition(": ")[2] for line in rules(sandbox)] == [
        "from 10.2.0.2 lookup 102",
        "from 10.1.0.2 lookup 100",
        "from fd00:2::2 lookup 103",
        "from fd00:1::2 lookup 101",
    ]
    both = state(sandbox)
    for ifname, result in results.items():
        sbr.check(sandbox, result, ifname=ifname)
    sbr.delete(sandbox, results["net1"], ifname="net1")
    sbr.check(sandbox, results["net2"], ifname="net2")
    kept = [line for line in both["routes"] if "net1" not in line or "table 10" not in line]
    assert state(sandbox)["routes"] == kept
    sbr.delete(sandbox, results["net2"], ifname="net2")
    assert rules(sandbox) == []


def test_addresses_of_other_interfaces_are_ignored(sbr, host, sandbox):
    """Only addresses of CNI_IFNAME, and addresses without an index, get a rule."""
    prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY])
    prev_result["ips"][0].pop("interface")
    prev_result["ips"].append({"address": "10.5.0.2/24", "gateway": "10.5.0.1", "interface": 0})
    sbr.add(sandbox, prev_result)
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 100"]


@pytest.mark.parametrize("index", [2, 7, -1])
def test_index_of_no_interface(sbr, host, new_sandbox, reference, index):
    """An address whose index no interface of the result has gets its rule and table, as with the reference plugin."""
    states = []
    for number, bin_dir in enumerate((None, reference)):
        sandbox = new_sandbox()
        prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY], peer_name=f"peer{number}")
        prev_result["ips"][0]["interface"] = index
        sbr.with_plugin(bin_dir).add(sandbox, prev_result)
        states.append((rules(sandbox), sandbox.ip("route", "show", "table", "100")))
    assert states[0] == states[1]
