"""Packets through the filter of network policies: between pods on a bridge and routed ones, the node and a host.

tests/support/policy_packets.py has the node, test_policy_base_rules.py the rules that all pods share.
"""

from ipaddress import ip_address
from random import Random

import pytest

from agent.policy.evaluator import PodConnection, decide_direction
from agent.policy.filter_table import EMPTY, AcceptRule, ChainContent, FilterTable, Verdict
from agent.policy.objects import EGRESS, INGRESS
from tests.support.policy_packets import REMOTE
from tests.support.policy_tables import NODE, SERVICE, deny, pod, proxy, table_of
from tests.support.policy_world import World

pytestmark = pytest.mark.needs("nft_inet", "br_netfilter", "nft_nat")

CASES = 2_000
HOST4, OTHER4, THIRD4, HOST6 = REMOTE


# The peer (a pod's number, "remote", "other": a host outside the block, "node"), protocol, port, whether it passes.
EXPECTED = [
    *((1, "tcp", 80, True), (8, "tcp", 80, True), (1, "tcp", 81, False), (1, "udp", 80, False), (1, "icmp", 0, False)),
    *((4, "tcp", 80, False), (10, "tcp", 80, False), (3, "icmp", 0, True), (3, "sctp", 9, True), (3, "tcp", 1, True)),
    *(("remote", "udp", 8000, True), ("remote", "udp", 8010, True), ("remote", "udp", 7999, False)),
    *(("remote", "udp", 8011, False), ("remote", "tcp", 8005, False), ("remote", "icmp", 0, False)),
    *(("other", "udp", 8005, False), ("other", "sctp", 80, True)),
    *((4, "sctp", 1, True), (4, "sctp", 5, True), (4, "sctp", 6, False), (10, "sctp", 80, True), (4, "tcp", 5, False)),
    *(("node", "tcp", 22, True), ("node", "udp", 9, True), ("node", "icmp", 0, True), ("node", "sctp", 1, True)),
]
NAMED = [
    (5, "udp", 53, True),
    (5, "udp", 54, False),
    (5, "tcp", 53, False),
    (11, "udp", 54, True),
    (11, "udp", 53, False),
]


@pytest.mark.parametrize("subject", [2, 9])
@pytest.mark.parametrize("direction", [EGRESS, INGRESS])
@pytest.mark.parametrize("version", [4, 6])
def test_rules(policed_node, node_filter, direction, subject, version):
    """A chain accepts what one of its rules matches: peers, blocks, ports, ranges, named ports; and always the node."""
    peers = {"remote": THIRD4, "other": OTHER4, "node": NODE[4]} if version == 4 else {"remote": HOST6, "node": NODE[6]}
    peers |= {number: pod(number, version) for number in range(1, 13)}
    block = (ip_address("203.0.113.0"), ip_address("203.0.113.9")) if version == 4 else (HOST6, HOST6)
    rules = [
        AcceptRule(version, f"s{version}-1", "tcp", (80, 80)),
        AcceptRule(version, f"s{version}-2"),
        AcceptRule(version, f"b{version}-1", "udp", (8000, 8010)),
        AcceptRule(0, "", "sctp", None, "t-1"),
        *([AcceptRule(version, protocol="udp", pair_set=f"p{version}-1")] if direction == EGRESS else ()),
    ]
    sets = {
        f"s{version}-1": {peers[1], peers[8]},
        f"s{version}-2": {peers[3]},
        f"b{version}-1": {block},
        "t-1": {(1, 5), (80, 80)},
        f"p{version}-1": {(peers[5], 53), (peers[11], 54)},
    }
    is_egress = direction == EGRESS
    node_filter.apply(table_of([peers[subject]], rules, sets, is_egress, not is_egress))
    cases = [case for case in EXPECTED + NAMED * is_egress if case[0] in peers]
    ends = [(peers[subject], peers[peer])[:: 1 if is_egress else -1] for peer, *_ in cases]
    connections = [
        PodConnection(*pair, protocol, port) for pair, (_, protocol, port, _) in zip(ends, cases, strict=True)
    ]
    assert [(*case[:3], passed) for case, passed in zip(cases, policed_node.passed(*connections), strict=True)] == cases
    denied = len([case for case in cases if not case[3]])
    assert node_filter.drops() == {f"{direction[0]}-1": denied}
    assert all(
        policed_node.passed(*(PodConnection(*reversed(each[:2]), *each[2:]) for each in connections))
    )  # not isolated


@pytest.mark.parametrize("version", [4, 6])
def test_both_ends_must_allow(policed_node, node_filter, version):
    """A connection passes if the egress of its source and the ingress of its destination accept it, not only one."""
    source, destination = pod(1, version), pod(2, version)
    allowed, denied = (AcceptRule(protocol="tcp", ports=(80, 80)),), ()
    for egress, ingress in ((allowed, allowed), (allowed, denied), (denied, allowed)):
        table = FilterTable(
            {source: Verdict("e-1", ""), destination: Verdict("", "i-1")},
            {"e-1": ChainContent("", egress), "i-1": ChainContent("", ingress)},
            {},
        )
        node_filter.apply(table)
        connections = (PodConnection(source, destination, "tcp", port) for port in (80, 81))
        assert policed_node.passed(*connections) == [bool(egress and ingress), False]


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
            decisions = world.decide(cluster, connection)
            if any(each.policies for each in decisions):
                expected[connection] = all(each.allowed for each in decisions)
        passed = dict(zip(expected, policed_node.passed(*expected), strict=True))
        assert passed == expected
        for allowed in expected.values():
            verdicts[allowed] += 1
    assert node_filter.compare(world.table) == 0
    assert min(verdicts.values()) > CASES // 50, verdicts


class KernelWorld(World):
    """A random cluster whose node's filter is the kernel's."""

    def __init__(self, random, node_filter):
        super().__init__(random)
        self.node_filter = node_filter
        node_filter.compare(EMPTY)

    def update(self):
        """Applies the changes of the plan."""
        self.table, changes = self.plan.update()
        assert self.node_filter.apply(self.table, changes)

    def decide(self, cluster, connection):
        """Returns the evaluator's decisions at the ends on this node.

        None for a pod that reaches itself, which no packet leaves, and while an end's object is not known.
        """
        decisions = []
        pods = {address: self.last_pods[name] for name, record in self.records.items() for address in record.addresses}
        for end, direction in ((connection.source, EGRESS), (connection.destination, INGRESS)):
            if connection.source == connection.destination or pods.get(end, self) is None:
                return []
            if end in pods:
                decisions.append(decide_direction(cluster, connection, direction))
        return decisions


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


@pytest.mark.parametrize("subjects", [(1, 2), (1, 9), (9, 1), (8, 9)])
def test_replies_pass(policed_node, node_filter, subjects):
    """Replies of an allowed connection pass, though both pods are isolated in both directions, and so do ICMP's errors.

    Each of them may open no connection to the other's ports but one.
    """
    one, two = map(pod, subjects)
    table = FilterTable(
        {one: Verdict("e-1", "i-2"), two: Verdict("e-2", "i-1")},
        {
            **{name: ChainContent("", (AcceptRule(protocol="udp", ports=(80, 80)),)) for name in ("e-1", "i-1")},
            **{name: ChainContent("", ()) for name in ("e-2", "i-2")},
        },
        {},
    )
    node_filter.apply(table)
    assert policed_node.passed(PodConnection(one, two, "udp", 80), source_port=20_001) == [True]
    assert policed_node.passed(PodConnection(two, one, "udp", 20_001), source_port=80) == [True]
    assert policed_node.passed(PodConnection(two, one, "udp", 20_001), source_port=81) == [False]
    assert node_filter.drops() == {"e-1": 0, "i-1": 0, "e-2": 1, "i-2": 0}  # the error of port 80 passed, too


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


@pytest.mark.parametrize("version", [4, 6])
def test_packets_that_the_node_translated(policed_node, node_filter, version):
    """Packets of pods that leave the node through the hook output, as IPVS sends them, are judged as forwarded ones.

    The test's process sends them with a pod's source address.
    """
    one, two = pod(1, version), pod(9, version)
    there, allowed = PodConnection(one, two, "udp", 80), PodConnection(one, two, "udp", 81)
    rules = [AcceptRule(protocol="udp", ports=(81, 81))]
    for direction in ({"egress": False}, {"ingress": False}):
        node_filter.apply(table_of([one, two], rules, **direction))
        assert policed_node.passed(there, allowed, place=policed_node.host) == [False, True]
        assert policed_node.passed(PodConnection(NODE[version], two, "udp", 80)) == [True]
