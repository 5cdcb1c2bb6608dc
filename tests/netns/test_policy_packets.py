"""Packets through the filter of network policies: between pods on a bridge and routed ones, the node and a host.

`tests/support/policy_packets.py` has the node; each table here is a value, as the plan computes it.
"""

import threading
from collections.abc import Callable
from ipaddress import ip_address
from random import Random
from typing import NamedTuple

import pytest

from agent.policy.evaluator import Connection, decide_direction
from agent.policy.filter import PolicyFilter
from agent.policy.filter_table import EMPTY, AcceptRule, ChainContent, FilterTable, Verdict
from agent.policy.objects import EGRESS, INGRESS
from tests.support.policy_packets import NODE_ADDRESSES, OUTSIDE, PODS, PacketNode, packet_node
from tests.support.policy_world import World

pytestmark = pytest.mark.needs("nft_inet", "br_netfilter", "nft_nat")

CASES = 2_000
HOST4, OTHER4, THIRD4, HOST6 = OUTSIDE
NODE = dict(zip((4, 6), NODE_ADDRESSES, strict=True))
SERVICE = {4: ip_address("10.96.0.1"), 6: ip_address("fd00:96::1")}


@pytest.fixture(scope="module")
def running_node(root):
    """The node of all tests of this file."""
    with packet_node() as node:
        yield node


@pytest.fixture
def node(running_node):
    """The node without rules and tracked connections."""
    running_node.host.run("nft", "flush", "ruleset")
    running_node.host.run("conntrack", "-F")
    return running_node


@pytest.fixture
def packet_filter(node):
    """A filter in the node's namespace."""
    with node.host.entered():
        new = PolicyFilter()
    yield new
    new.close()


def pod(number, version=4):
    """Returns the address of a pod, from 1 on; pods 1 to 7 are on the bridge, the others are routed."""
    return PODS[number - 1][version == 6]


def table_of(subjects, rules=(), sets=None, egress=True, ingress=True):
    """Returns a table that isolates pods, and accepts what `rules` say in each of the directions."""
    chains = {"e-1": egress, "i-1": ingress}
    verdict = Verdict("e-1" if egress else "", "i-1" if ingress else "")
    contents = {name: ChainContent("", tuple(rules)) for name, is_used in chains.items() if is_used}
    named = {name for rule in rules for name in (rule.peer_set, rule.port_set, rule.pair_set) if name}
    return FilterTable(
        dict.fromkeys(subjects, verdict), contents, {name: frozenset((sets or {})[name]) for name in named}
    )


# The peer (a pod's number, "outside", "other": a host outside the block, "node"), protocol, port, whether it passes.
EXPECTED = [
    *((1, "tcp", 80, True), (8, "tcp", 80, True), (1, "tcp", 81, False), (1, "udp", 80, False), (1, "icmp", 0, False)),
    *((4, "tcp", 80, False), (10, "tcp", 80, False), (3, "icmp", 0, True), (3, "sctp", 9, True), (3, "tcp", 1, True)),
    *(("outside", "udp", 8000, True), ("outside", "udp", 8010, True), ("outside", "udp", 7999, False)),
    *(("outside", "udp", 8011, False), ("outside", "tcp", 8005, False), ("outside", "icmp", 0, False)),
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
def test_rules(node, packet_filter, direction, subject, version):
    """A chain accepts what one of its rules matches: peers, blocks, ports, ranges, named ports; and always the node."""
    peers = (
        {"outside": THIRD4, "other": OTHER4, "node": NODE[4]} if version == 4 else {"outside": HOST6, "node": NODE[6]}
    )
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
    packet_filter.apply(table_of([peers[subject]], rules, sets, is_egress, not is_egress))
    cases = [case for case in EXPECTED + NAMED * is_egress if case[0] in peers]
    ends = [(peers[subject], peers[peer])[:: 1 if is_egress else -1] for peer, *_ in cases]
    connections = [Connection(*pair, protocol, port) for pair, (_, protocol, port, _) in zip(ends, cases, strict=True)]
    assert [(*case[:3], passed) for case, passed in zip(cases, node.passed(*connections), strict=True)] == cases
    denied = len([case for case in cases if not case[3]])
    assert packet_filter.drops() == {f"{direction[0]}-1": denied}
    assert all(node.passed(*(Connection(*reversed(each[:2]), *each[2:]) for each in connections)))  # not isolated


@pytest.mark.parametrize("version", [4, 6])
def test_both_ends_must_allow(node, packet_filter, version):
    """A connection passes if the egress of its source and the ingress of its destination accept it, not only one."""
    source, destination = pod(1, version), pod(2, version)
    allowed, denied = (AcceptRule(protocol="tcp", ports=(80, 80)),), ()
    for egress, ingress in ((allowed, allowed), (allowed, denied), (denied, allowed)):
        table = FilterTable(
            {source: Verdict("e-1", ""), destination: Verdict("", "i-1")},
            {"e-1": ChainContent("", egress), "i-1": ChainContent("", ingress)},
            {},
        )
        packet_filter.apply(table)
        expected = bool(egress and ingress)
        assert node.passed(Connection(source, destination, "tcp", 80), Connection(source, destination, "tcp", 81)) == [
            expected,
            False,
        ]


@pytest.mark.parametrize("seed", range(2))
def test_kernel_and_evaluator_agree(node, packet_filter, seed):
    """Real packets of random connections pass if, and only if, the evaluator allows them at the ends on this node.

    The cluster changes by random events, and the filter follows by differences only. Each connection has an end that a
    policy isolates.
    """
    world = KernelWorld(Random(seed), packet_filter)
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
        passed = dict(zip(expected, node.passed(*expected), strict=True))
        assert passed == expected
        for allowed in expected.values():
            verdicts[allowed] += 1
    assert packet_filter.compare(world.table) == 0
    assert min(verdicts.values()) > CASES // 20, verdicts


class KernelWorld(World):
    """A random cluster whose node's filter is the kernel's."""

    def __init__(self, random, packet_filter):
        super().__init__(random)
        self.packet_filter = packet_filter
        packet_filter.compare(EMPTY)

    def update(self):
        """Applies the changes of the plan."""
        self.table, changes = self.plan.update()
        assert self.packet_filter.apply(self.table, changes)

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


def deny(*subjects, **options):
    """Returns a table that denies all connections of pods."""
    return table_of(subjects, **options)


@pytest.mark.parametrize("version", [4, 6])
def test_established_connections_are_kept(node, packet_filter, version):
    """A connection that was answered when a policy comes goes on in both directions; a new one is denied."""
    packet_filter.apply(EMPTY)  # the kernel tracks connections for rules that need it
    one, two = pod(1, version), pod(9, version)
    there, back = Connection(one, two, "udp", 80), Connection(two, one, "udp", 20_001)
    assert node.passed(there, source_port=20_001) == [True]
    assert node.passed(back, source_port=80) == [True]
    packet_filter.apply(deny(one, two))
    assert node.passed(there, source_port=20_001) == [True]
    assert node.passed(back, source_port=80) == [True]
    assert node.passed(there, source_port=20_002) == [False]


@pytest.mark.parametrize("subjects", [(1, 2), (1, 9), (9, 1), (8, 9)])
def test_replies_pass(node, packet_filter, subjects):
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
    packet_filter.apply(table)
    assert node.passed(Connection(one, two, "udp", 80), source_port=20_001) == [True]
    assert node.passed(Connection(two, one, "udp", 20_001), source_port=80) == [True]
    assert node.passed(Connection(two, one, "udp", 20_001), source_port=81) == [False]
    assert packet_filter.drops() == {"e-1": 0, "i-1": 0, "e-2": 1, "i-2": 0}  # the error of port 80 passed, too


# As kube-proxy's rules: the Service is DNATed to a pod; a pod that reaches itself gets the node's address as source.
_PROXY = """
table inet proxy {{
    chain services {{
        {ip} daddr {service} udp dport 1 dnat {ip} to {one}
        {ip} daddr {service} udp dport 2 dnat {ip} to {two}
        {ip} daddr {node} udp dport 30001 dnat {ip} to {one}
    }}
    chain prerouting {{ type nat hook prerouting priority -100; jump services; }}
    chain output {{ type nat hook output priority -100; jump services; }}
    chain postrouting {{
        type nat hook postrouting priority 100;
        {ip} saddr {one} {ip} daddr {one} masquerade
        ct status dnat {ip} saddr != {network} masquerade
    }}
}}
"""


def proxy(version, one, two):
    """Returns the rules of Services of two pods."""
    network = {4: "10.0.0.0/24", 6: "fd00:1::/64"}[version]
    ip = {4: "ip", 6: "ip6"}[version]
    return _PROXY.format(ip=ip, service=SERVICE[version], one=one, two=two, node=NODE[version], network=network)


@pytest.mark.parametrize("numbers", [(1, 2), (1, 9), (9, 2), (8, 9)])
@pytest.mark.parametrize("version", [4, 6])
def test_services(node, packet_filter, version, numbers):
    """Policies judge the pod behind a Service, and the client before masquerade; a pod reaches itself through it."""
    one, two = (pod(number, version) for number in numbers)
    service, host = SERVICE[version], NODE[version]
    node.host.run("nft", proxy(version, one, two))
    third, outside = pod(3, version), OUTSIDE[0 if version == 4 else 3]
    cases = {  # the pod that the packet reaches without policies
        Connection(third, service, "udp", 1): one,
        Connection(third, service, "udp", 2): two,
        Connection(one, service, "udp", 2): two,
        Connection(one, service, "udp", 1): one,
        Connection(host, service, "udp", 1): one,
        Connection(outside, host, "udp", 30001): one,
    }

    def reached():
        return [found - {host} for found in node.arrivals(*cases)]  # the node receives it before DNAT

    assert reached() == [{target} for target in cases.values()]
    packet_filter.apply(deny(one, two, ingress=False))
    expected = [{one}, {two}, set(), {one}, {one}, {one}]
    assert reached() == expected
    packet_filter.apply(deny(one, egress=False))
    assert reached() == [set(), {two}, {two}, {one}, {one}, set()]
    name = f"s{version}-1"
    packet_filter.apply(table_of([one, two], [AcceptRule(version, name)], {name: {third, one}}))
    assert reached() == [{one}, {two}, set(), {one}, {one}, set()]
    name = f"b{version}-1"
    packet_filter.apply(table_of([one], [AcceptRule(version, name)], {name: {(outside, outside)}}, egress=False))
    assert reached() == [set(), {two}, {two}, {one}, {one}, {one}]


@pytest.mark.parametrize("version", [4, 6])
def test_packets_that_the_node_translated(node, packet_filter, version):
    """Packets of pods that leave the node through the hook output, as IPVS sends them, are judged as forwarded ones.

    The test's process sends them with a pod's source address.
    """
    one, two = pod(1, version), pod(9, version)
    there, allowed = Connection(one, two, "udp", 80), Connection(one, two, "udp", 81)
    rules = [AcceptRule(protocol="udp", ports=(81, 81))]
    for direction in ({"egress": False}, {"ingress": False}):
        packet_filter.apply(table_of([one, two], rules, **direction))
        assert node.passed(there, allowed, place=node.host) == [False, True]
        assert node.passed(Connection(NODE[version], two, "udp", 80)) == [True]


class BaseRule(NamedTuple):
    """A rule of a base chain, and a connection that it lets pass, or denies: `step` returns whether it passes."""

    chain: str
    text: str
    table: FilterTable
    step: Callable[[PacketNode], bool]
    allowed: bool = True


ONE, TWO, ONE6, TWO6 = pod(1), pod(2), pod(1, 6), pod(2, 6)
_UDP = (AcceptRule(protocol="udp"),)


def reply(node):
    """Opens a connection from the first pod to the second, and replies."""
    number = next(node.numbers)
    assert node.passed(Connection(ONE, TWO, "udp", 80), source_port=number) == [True]
    return node.passed(Connection(TWO, ONE, "udp", number), source_port=80) == [True]


def first_packet(*connection, from_node=False):
    """Returns a step that sends the first packet of a connection, after pods and node forgot their neighbours."""

    def step(node):
        for place in (node.host, *node.pods[:2]):
            place.ip("-6", "neigh", "flush", "all")
        return node.passed(Connection(*connection), place=node.host if from_node else None) == [True]

    return step


def through_service(version):
    """Returns a step with which the first pod reaches itself through its Service."""
    return lambda node: pod(1, version) in node.arrivals(Connection(pod(1, version), SERVICE[version], "udp", 1))[0]


BASE_RULES = [
    BaseRule("egress", "ct state", deny(TWO, ingress=False), reply),
    BaseRule("ingress", "ct state", deny(ONE, egress=False), reply),
    BaseRule("egress", "icmpv6", table_of([ONE6], _UDP, ingress=False), first_packet(ONE6, TWO6, "udp", 80)),
    BaseRule("ingress", "icmpv6", table_of([ONE6], egress=False), first_packet(ONE6, TWO6, "udp", 80)),
    BaseRule("output-ingress", "fib", deny(TWO), first_packet(NODE[4], TWO, "udp", 80)),
    *(
        BaseRule(chain, f"@self{version}", deny(pod(1, version)), through_service(version))
        for version in (4, 6)
        for chain in ("egress", "ingress")
    ),
    *(
        BaseRule(chain, f"@self{each.version}", deny(each), first_packet(each, each, "udp", 80, from_node=True))
        for each in (ONE, ONE6)
        for chain in ("output-egress", "output-ingress")
    ),
    *(
        BaseRule(
            f"{start}{way}",
            f"@{way}{one.version}",
            deny(end),
            first_packet(one, two, "udp", 80, from_node=bool(start)),
            False,
        )
        for one, two in ((ONE, TWO), (ONE6, TWO6))
        for way, end in (("egress", one), ("ingress", two))
        for start in ("", "output-")
    ),
]


@pytest.mark.parametrize("rule", BASE_RULES, ids=lambda rule: f"{rule.chain} {rule.text}")
def test_each_base_rule_matters(node, packet_filter, rule):
    """Without one of the base rules, packets are dropped that must pass, or pass that a policy denies."""
    for version in (4, 6):
        node.host.run("nft", proxy(version, pod(1, version), pod(2, version)))
    packet_filter.apply(rule.table)
    assert rule.step(node) == rule.allowed
    delete_rule(node.host, rule.chain, rule.text)
    assert rule.step(node) != rule.allowed


@pytest.mark.parametrize("chain", ["output-egress", "output-ingress"])
def test_established_connections_through_output(node, packet_filter, chain):
    """Connections that IPVS translated are kept as well, by a rule of their chains."""
    there, back = Connection(ONE, TWO, "udp", 80), Connection(TWO, ONE, "udp", 20_001)
    packet_filter.apply(EMPTY)
    assert node.passed(there, source_port=20_001, place=node.host) == [True]
    assert node.passed(back, source_port=80) == [True]
    packet_filter.apply(deny(ONE, TWO, egress=chain == "output-egress", ingress=chain == "output-ingress"))
    assert node.passed(there, source_port=20_001, place=node.host) == [True]
    delete_rule(node.host, chain, "ct state")
    assert node.passed(there, source_port=20_001, place=node.host) == [False]


def delete_rule(host, chain, text):
    """Deletes the one rule of a base chain that contains a text."""
    lines = host.run("nft", "-a", "list", "chain", "inet", "podwire_policy", chain).splitlines()
    (rule,) = [line for line in lines if text in line]
    host.run("nft", "delete", "rule", "inet", "podwire_policy", chain, "handle", rule.rpartition(" ")[2])


def test_no_denied_packet_passes_during_changes(node, packet_filter):
    """While policies change all the time, no packet passes that all of them deny, and none is lost that all allow.

    The tables differ in chains, rules, sets, verdicts and elements; each packet is a new connection.
    """
    sets = [{"s4-1": {ONE}, "s4-2": {pod(3), ONE}}, {"s4-1": {ONE, pod(3)}, "s4-2": {ONE}}, {"s4-1": {ONE}}]
    allow = AcceptRule(4, "s4-1", "udp", (80, 80))
    rules = [
        [AcceptRule(4, "s4-2", "udp", (80, 81)), AcceptRule(protocol="tcp")],
        [allow],
        [AcceptRule(4, "s4-1"), allow],
    ]
    tables = []
    for elements, accepts in zip(sets, rules, strict=True):
        table = table_of([TWO], accepts, elements, egress=False)
        tables += [table, table._replace(chains={"i-9": table.chains["i-1"]}, verdicts={TWO: Verdict("", "i-9")})]
    packet_filter.apply(tables[0])
    node.receive(0)
    allowed, denied = range(20_000, 24_000), range(30_000, 34_000)
    is_done = threading.Event()

    def send():
        for pair in zip(allowed, denied, strict=True):
            for source, number in zip((ONE, pod(4)), pair, strict=True):
                node.send(Connection(source, TWO, "udp", 80), number)
        is_done.set()

    sender = threading.Thread(target=send)
    sender.start()
    changes = 0
    while not is_done.is_set():
        changes += 1
        assert packet_filter.apply(tables[changes % len(tables)])
    sender.join()
    assert changes > 100
    arrived = {port for protocol, port, address in node.receive() if (protocol, address) == ("udp", TWO)}
    assert arrived & set(denied) == set()
    assert arrived == set(allowed)
