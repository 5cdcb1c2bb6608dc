"""Packets through the filter of network policies: between pods on a bridge and routed ones, the node and a host.

tests/support/policy_packets.py has the node, test_policy_base_rules.py the rules that all pods share.
"""

from random import Random

import pytest

from agent.policy.evaluator import PodConnection
from agent.policy.filter_table import EMPTY, AcceptRule, ChainContent, FilterTable, Verdict
from tests.support.policy_packets import REMOTE
from tests.support.policy_tables import NODE, SERVICE, SUBJECT, deny, pod, proxy, table_of
from tests.support.policy_world import KernelWorld

pytestmark = pytest.mark.needs("nft_inet", "br_netfilter", "nft_nat")

CASES = 2_000


@pytest.mark.parametrize("seed", range(2))
def test_kernel_and_evaluator_agree(policed_node, node_filter, seed):
    """Real packets of random connections pass if, and only if, the evaluator allows them at the ends on this node.

    The cluster changes by random events, and the filter follows by differences only. Each connection has an end that a
    policy isolates.
    """
    world = KernelWorld(Random(seed), node_filter)
    verdicts = {True: 0, False: 0}
    while sum(verdicts.values()) < CASES // 2:
        for _ in range(world.random.choice((1, 5, 20))):
            world.change()
        world.update()
        expected = {}
        cluster = world.cluster()
        for connection in (world.connection() for _ in range(300)):
            decisions = world.decisions(cluster, connection)
            if any(each.policies for each in decisions):
                expected[connection] = all(each.allowed for each in decisions)
        passed = dict(zip(expected, policed_node.passed(*expected), strict=True))
        assert passed == expected
        for allowed in expected.values():
            verdicts[allowed] += 1
    assert node_filter.repair(world.table) == 0
    assert min(verdicts.values()) > CASES // 50, verdicts


@pytest.mark.parametrize("version", [4, 6])
def test_established_connections_are_kept(policed_node, node_filter, version):
    """A connection that was answered when a policy comes goes on in both directions; a new one is denied."""
    node_filter.apply(EMPTY)  # the kernel tracks connections for rules that need it
    one, two = pod(1, version), pod(9, version)
    there, back = PodConnection(one, two, "udp", 80), PodConnection(two, one, "udp", 20_001)
    assert policed_node.passed(there, source_port=20_001) == [True]
    assert policed_node.passed(back, source_port=80) == [True]
    node_filter.apply(deny(one, two))
    assert policed_node.passed(there, source_port=20_001) == [True]
    assert policed_node.passed(back, source_port=80) == [True]
    assert policed_node.passed(there, source_port=20_002) == [False]


@pytest.mark.parametrize("node_filter", [True], indirect=True)
def test_changed_policy_decides_about_established_connections(policed_node, node_filter):
    """With --check-established a changed policy drops packets of established connections; replies pass."""
    one, two = pod(1), pod(9)
    there, back = PodConnection(one, two, "udp", 80), PodConnection(two, one, "udp", 20_001)

    def passes():
        return policed_node.passed(there, source_port=20_001) + policed_node.passed(back, source_port=80)

    node_filter.apply(EMPTY)
    assert (
        policed_node.host.run("nft", "list", "table", "inet", "podwire_policy").count("ct status expected accept") == 4
    )
    assert passes() == [True, True]
    node_filter.apply(deny(one, egress=False))
    assert passes() == [True, True]  # `one` opened it
    node_filter.apply(deny(two, egress=False))
    assert passes() == [False, True]
    node_filter.apply(deny(one, ingress=False))
    assert passes() == [False, True]
    node_filter.apply(EMPTY)
    assert passes() == [True, True]


@pytest.mark.parametrize("node_filter", [False, True], indirect=True)
@pytest.mark.parametrize("subjects", [(1, 2), (1, 9), (9, 1), (8, 9)])
def test_replies_pass(policed_node, node_filter, subjects):
    """Replies of an allowed connection pass, though both pods are isolated in both directions, and so do ICMP's errors.

    Each of them may open no connection to the other's ports but one.
    """
    one, two = map(pod, subjects)
    table = FilterTable(
        {one: Verdict("e-1", "i-2"), two: Verdict("e-2", "i-1")},
        {
            **{name: ChainContent(SUBJECT, (AcceptRule(protocol="udp", ports=(80, 80)),)) for name in ("e-1", "i-1")},
            **{name: ChainContent(SUBJECT, ()) for name in ("e-2", "i-2")},
        },
        {},
    )
    node_filter.apply(table)
    assert policed_node.passed(PodConnection(one, two, "udp", 80), source_port=20_001) == [True]
    assert policed_node.passed(PodConnection(two, one, "udp", 20_001), source_port=80) == [True]
    assert policed_node.passed(PodConnection(two, one, "udp", 20_001), source_port=81) == [False]
    assert node_filter.list_drops() == {"e-1": 0, "i-1": 0, "e-2": 1, "i-2": 0}  # the error of port 80 passed, too


@pytest.mark.parametrize("numbers", [(1, 2), (1, 9), (9, 2), (8, 9)])
@pytest.mark.parametrize("version", [4, 6])
def test_services(policed_node, node_filter, version, numbers):
    """Policies judge the pod behind a Service, and the client before masquerade; a pod reaches itself through it."""
    one, two = (pod(number, version) for number in numbers)
    service, host = SERVICE[version], NODE[version]
    policed_node.host.run("nft", proxy(version, one, two))
    third, client = pod(3, version), REMOTE[0 if version == 4 else 3]
    cases = {  # the pod that the packet reaches without policies
        PodConnection(third, service, "udp", 1): one,
        PodConnection(third, service, "udp", 2): two,
        PodConnection(one, service, "udp", 2): two,
        PodConnection(one, service, "udp", 1): one,
        PodConnection(host, service, "udp", 1): one,
        PodConnection(client, host, "udp", 30001): one,
    }

    def reached():
        return [addresses - {host} for addresses in policed_node.arrivals(*cases)]  # the node receives it before DNAT

    assert reached() == [{target} for target in cases.values()]
    node_filter.apply(deny(one, two, ingress=False))
    expected = [{one}, {two}, set(), {one}, {one}, {one}]
    assert reached() == expected
    node_filter.apply(deny(one, egress=False))
    assert reached() == [set(), {two}, {two}, {one}, {one}, set()]
    name = f"s{version}-1"
    node_filter.apply(table_of([one, two], [AcceptRule(version, name)], {name: {third, one}}))
    assert reached() == [{one}, {two}, set(), {one}, {one}, set()]
    name = f"b{version}-1"
    node_filter.apply(table_of([one], [AcceptRule(version, name)], {name: {(client, client)}}, egress=False))
    assert reached() == [set(), {two}, {two}, {one}, {one}, {one}]
