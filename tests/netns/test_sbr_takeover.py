"""Pods of both the reference plugin and podwire: CHECK and DEL accept the other plugin's rules and tables."""

import pytest

from tests.support.sbr_network import GATEWAY, GATEWAY6, IPV4, IPV6, connect, rules, state, table

ADDRESSES = [
    ((IPV4,), (GATEWAY,)),
    ((IPV6,), (GATEWAY6,)),
    ((IPV4, IPV6), (GATEWAY, GATEWAY6)),
    ((IPV4, "10.2.0.2/24"), (GATEWAY, "10.2.0.1")),
]


@pytest.fixture
def both(sbr, reference):
    """Podwire's sbr and the reference plugin's."""
    return sbr, sbr.with_plugin(reference)


@pytest.mark.parametrize("defaults", [False, True])
@pytest.mark.parametrize(("addresses", "gateways"), ADDRESSES)
def test_each_plugin_removes_the_others_rules(both, host, new_sandbox, addresses, gateways, defaults):
    """Both create the same rules and IPv4 tables, podwire's CHECK accepts both, and each DEL removes both's rules."""
    created = []
    for number, (creator, other) in enumerate((both, both[::-1])):
        sandbox = new_sandbox()
        routes = gateways[:1] if defaults else ()
        prev_result = connect(host, sandbox, *addresses, peer_name=f"peer{number}", gateways=gateways, defaults=routes)
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


def test_add_after_the_reference_plugins_del(both, host, sandbox):
    """The reference plugin's DEL leaves its table; podwire's ADD recognises it and uses it again."""
    podwire, reference = both
    prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY])
    reference.add(sandbox, prev_result)
    reference.delete(sandbox, prev_result)
    assert rules(sandbox) == []
    assert table(sandbox, 100) != []
    podwire.add(sandbox, prev_result)
    podwire.check(sandbox, prev_result)
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 100"]


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
