"""CHECK, DEL and rollback of sbr, and pods of both podwire and the reference plugin: rules and tables."""

import pytest

from tests.support.injection import run_injected
from tests.support.sbr_network import GATEWAY, GATEWAY6, IPV4, IPV6, connect, connect_both, rules, state, table


@pytest.fixture
def prev_result(host, sandbox):
    """The result of a dual-stack interface with default routes in table main."""
    return connect_both(host, sandbox)


@pytest.fixture
def result(sbr, sandbox, prev_result):
    """The result of ADD."""
    return sbr.add(sandbox, prev_result)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("rule delete from 10.1.0.2", "Expected rule from 10.1.0.2 is missing"),
        ("-6 rule delete from fd00:1::2", "Expected rule from fd00:1::2 is missing"),
        ("route delete default table 100", f"Expected default route via {GATEWAY} in table 100 is missing"),
        ("-6 route delete default table 101", f"Expected default route via {GATEWAY6} in table 101 is missing"),
        ("route delete 10.1.0.0/24 table 100", "Expected route to 10.1.0.0/24 in table 100 is missing"),
        ("-6 route delete fd00:1::/64 table 101", "Expected route to fd00:1::/64 in table 101 is missing"),
    ],
)
def test_check_finds_each_missing_part(sbr, sandbox, result, command, expected):
    """CHECK names a rule or route that is missing; ADD, which podwire repair runs, creates it again."""
    before = [table(sandbox, number) for number in (100, 101, "main")]
    sandbox.ip(*command.split())
    error = sbr.run("CHECK", sandbox, result).error()
    assert (error["code"], error["msg"]) == (999, expected)
    sbr.add(sandbox, result)
    sbr.check(sandbox, result)
    assert [table(sandbox, number) for number in (100, 101, "main")] == before
    assert len(rules(sandbox)) == 2


def test_check_of_a_configured_gateway(sbr, sandbox, result):
    """CHECK accepts another default route than prevResult's, but not another one than "gateways"."""
    sandbox.ip("route", "replace", "default", "via", "10.1.0.9", "dev", "eth0", "table", "100")
    sbr.check(sandbox, result)
    net = sbr.having(gateways=[GATEWAY])
    expected = f"Expected default route via {GATEWAY} in table 100 is missing"
    assert net.check_error(sandbox, result) == expected
    net.add(sandbox, result)
    net.check(sandbox, result)
    assert f"default gateway {GATEWAY} dev eth0" in table(sandbox, 100)


def test_check_of_a_configured_table(sbr, sandbox, prev_result):
    """CHECK with "table" names a missing rule."""
    net = sbr.having(table=5000)
    net.add(sandbox, prev_result)
    sandbox.ip("-6", "rule", "delete", "from", "fd00:1::2")
    expected = "Expected rule from fd00:1::2 lookup 5000 is missing"
    assert net.check_error(sandbox, prev_result) == expected


@pytest.mark.parametrize("deleted", ["eth0", "peer-eth0"])
@pytest.mark.parametrize("has_result", [True, False])
def test_del_without_the_interface(sbr, host, sandbox, result, deleted, has_result):
    """Without the interface DEL removes the rules of prevResult's addresses, and without both it does nothing."""
    (sandbox if deleted == "eth0" else host).ip("link", "delete", deleted)
    sbr.delete(sandbox, result if has_result else None)
    assert len(rules(sandbox)) == (0 if has_result else 2)


def test_del_without_prev_result(sbr, sandbox, result):
    """DEL without prevResult, and with an unusable one, removes the rules of the interface's addresses."""
    sbr.delete(sandbox)
    assert rules(sandbox) == []
    sbr.add(sandbox, result)
    sbr.delete(sandbox, {"cniVersion": "1.0.0", "ips": [{"address": "x"}]})
    assert (rules(sandbox), table(sandbox, 100), table(sandbox, 101)) == ([], [], [])


@pytest.mark.parametrize("has_result", [True, False])
def test_del_without_the_rules(sbr, sandbox, result, has_result):
    """DEL empties the tables of the addresses also if something else deleted the rules."""
    sandbox.ip("rule", "delete", "from", "10.1.0.2")
    sandbox.ip("-6", "rule", "delete", "from", "fd00:1::2")
    sbr.delete(sandbox, result if has_result else None)
    assert (rules(sandbox), table(sandbox, 100), table(sandbox, 101)) == ([], [], [])


def test_rules_of_others_stay(sbr, host, sandbox, prev_result):
    """DEL leaves rules with further conditions, of other addresses, and for tables of other interfaces."""
    connect(host, sandbox, "10.9.0.2/24", ifname="other")
    sandbox.ip("route", "add", "10.77.0.0/16", "dev", "other", "table", "200")
    for words in (
        "from 10.1.0.2 fwmark 1 lookup 100",
        "from 10.1.0.2 to 10.5.0.0/16 lookup 100",
        "from 10.1.0.2 iif other lookup 100",
        "from 10.1.0.2 oif other lookup 100",
        "from 10.1.0.2 tos 0x10 lookup 100",
        "from 10.1.0.2 ipproto tcp dport 80 lookup 100",
        "from 10.1.0.2 uidrange 0-5 lookup 100",
        "from 10.1.0.2 lookup 100 suppress_prefixlength 0",
        "not from 10.1.0.2 lookup 100",
        "from 10.1.0.2 lookup 200",
        "from 10.1.0.2 lookup main",
        "from 10.1.0.2 blackhole",
        "from 10.1.0.2 goto 32766",
        "from 10.1.0.0/24 lookup 100",
        "from 10.1.0.3 lookup 100",
    ):
        sandbox.ip("rule", "add", *words.split())
    before = rules(sandbox)
    sbr.add(sandbox, prev_result)
    assert len(rules(sandbox)) == len(before) + 2
    assert any("from 10.1.0.2 lookup 101" in line for line in rules(sandbox))
    sbr.delete(sandbox, prev_result)
    assert rules(sandbox) == before


def test_routes_of_a_shared_table_stay(sbr, host, sandbox, result):
    """DEL leaves the routes of a table to which another rule refers."""
    sandbox.ip("rule", "add", "fwmark", "7", "lookup", "100")
    before = table(sandbox, 100)
    sbr.delete(sandbox, result)
    assert [line.partition(": ")[2] for line in rules(sandbox)] == ["from all fwmark 0x7 lookup 100"]
    assert table(sandbox, 100) == before


def test_same_address_on_two_interfaces(sbr, host, sandbox):
    """DEL of one interface leaves the rule and table of another interface with the same address."""
    results = {name: connect(host, sandbox, IPV4, ifname=name, gateways=[GATEWAY]) for name in ("net1", "net2")}
    for name, prev_result in results.items():
        sbr.add(sandbox, prev_result, ifname=name)
    assert len(rules(sandbox)) == 2
    sbr.delete(sandbox, results["net1"], ifname="net1")
    sbr.check(sandbox, results["net2"], ifname="net2")
    assert len(rules(sandbox)) == 1
    assert table(sandbox, 100, "net1") + table(sandbox, 101, "net1") == []


@pytest.mark.parametrize("gateway", ["10.5.0.1", "2001:db8::1"])
@pytest.mark.parametrize("defaults", [[], [GATEWAY, GATEWAY6]])
def test_unreachable_gateway(sbr, host, sandbox, gateway, defaults):
    """A gateway that no route reaches is an error that names it, and no rule, table or missing route remains."""
    prev_result = connect(host, sandbox, IPV4, IPV6, gateways=[GATEWAY, GATEWAY6], defaults=defaults)
    error = sbr.having(gateways=[gateway]).add_error(sandbox, prev_result)
    reason = "network is unreachable" if "." in gateway else "no route to host"
    assert (error["code"], error["msg"]) == (999, f"Failed to add default route to {gateway}: {reason}")
    assert error["details"]
    sbr.add(sandbox, prev_result)
    sbr.check(sandbox, prev_result)


def test_unreachable_gateway_after_add(sbr, sandbox, prev_result):
    """A failed change of the gateway leaves the rules and tables of the earlier ADD."""
    sbr.add(sandbox, prev_result)
    sbr.having(gateways=["10.5.0.1"]).add_error(sandbox, prev_result)
    sbr.check(sandbox, prev_result)


FAULTS = [("sendto:error=ENOBUFS", hints, stale) for hints in (False, True) for stale in (False, True)]


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize(("fault", "hints", "stale"), [*FAULTS, ("recvfrom:error=ENOMEM", False, False)])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_failed_exchange(sbr, host, sandbox, prev_result, number, fault, hints, stale):
    """If a batch (read, read, tables and rules, table main) or its answer is lost, all changes are reversed."""
    if stale:
        sandbox.ip("route", "add", "10.70.0.0/16", "via", GATEWAY, "dev", "eth0", "table", "100")
    before = state(sandbox)
    config = sbr.having(addSourceHints=hints).request(prev_result)
    run_injected(host, "sbr", "ADD", config, sandbox, f"{fault}:when={number}").error()
    assert state(sandbox) == before
    sbr.add(sandbox, prev_result)
    sbr.check(sandbox, prev_result)


def test_unwritable_stdout(sbr, host, sandbox, prev_result):
    """If the result cannot be written, the rules are removed again."""
    outcome = run_injected(host, "sbr", "ADD", sbr.request(prev_result), sandbox, redirection=">&-")
    assert outcome.status == 1
    assert (rules(sandbox), table(sandbox, 100), table(sandbox, 101)) == ([], [], [])


# Addresses, their gateways, and the gateways of default routes in table main.
CONNECTIONS = [
    ((IPV4,), (GATEWAY,), (GATEWAY,)),
    ((IPV6,), (GATEWAY6,), ()),
    ((IPV4, IPV6), (GATEWAY, GATEWAY6), (GATEWAY,)),
    ((IPV4, "10.2.0.2/24"), (GATEWAY, "10.2.0.1"), ()),
]


@pytest.fixture
def both(sbr, reference):
    """Podwire's sbr and the reference plugin's."""
    return sbr, sbr.with_plugin(reference)


@pytest.mark.every_case
@pytest.mark.parametrize(("addresses", "gateways", "defaults"), CONNECTIONS)
def test_each_plugin_removes_the_others_rules(both, host, new_sandbox, addresses, gateways, defaults):
    """Both create the same rules and IPv4 tables, podwire's CHECK accepts both, and each DEL removes both's rules."""
    created = []
    for number, (creator, other) in enumerate((both, both[::-1])):
        sandbox = new_sandbox()
        how = {"peer_name": f"peer{number}", "gateways": gateways, "defaults": defaults}
        prev_result = connect(host, sandbox, *addresses, **how)
        result = creator.add(sandbox, prev_result)
        of_ipv4 = [[line for line in table(sandbox, name) if "::" not in line] for name in (100, 101, "main")]
        created.append((result, rules(sandbox), of_ipv4))
        both[0].check(sandbox, result)
        both[0].add(sandbox, result)  # as `podwire repair` does
        assert rules(sandbox) == created[-1][1]
        other.delete(sandbox, result)
        assert rules(sandbox) == []
        if other is both[0]:
            assert table(sandbox, 100) + table(sandbox, 101) in ([], ["fe80::/64 dev eth0 metric 256"])
    sandboxes = [entry[0]["interfaces"][1].pop("sandbox") for entry in created]
    assert sandboxes[0] != sandboxes[1]
    for entry in created:
        entry[0]["interfaces"][0].pop("name")
        entry[0].pop("dns", None)  # version 1.1.1 prints an empty one
    assert created[0] == created[1]


def test_attachments_of_both_in_one_pod(both, host, sandbox):
    """Each plugin chooses a table that the other does not use, in either order."""
    results = {}
    for number, (net, ifname) in enumerate(zip(both * 2, ("net1", "net2", "net3", "net4"), strict=True), 1):
        results[ifname] = connect(host, sandbox, f"10.{number}.0.2/24", ifname=ifname, gateways=[f"10.{number}.0.1"])
        net.add(sandbox, results[ifname], ifname=ifname)
    assert [line.split()[-1] for line in rules(sandbox)] == ["103", "102", "101", "100"]
    for net, ifname in zip(both[::-1] * 2, results, strict=True):
        both[0].check(sandbox, results[ifname], ifname=ifname)
        net.delete(sandbox, results[ifname], ifname=ifname)
    assert rules(sandbox) == []


def test_failed_add_of_the_reference_plugin(both, host, sandbox):
    """The rule that a failed ADD of the reference plugin leaves is removed by podwire's DEL."""
    podwire, reference = both
    prev_result = connect(host, sandbox, IPV4)
    prev_result["ips"][0]["gateway"] = "10.5.0.1"
    before = state(sandbox)
    assert reference.run("ADD", sandbox, prev_result).status == 1
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 100"]
    podwire.delete(sandbox, prev_result)
    assert state(sandbox) == before
