"""The rules of the policy filter that all pods share, each of which matters, and packets while the filter changes."""

import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

from agent.policy.evaluator import PodConnection
from agent.policy.filter_table import EMPTY, AcceptRule, FilterTable, Verdict
from tests.support.policy_packets import PacketNode
from tests.support.policy_tables import NODE, SERVICE, delete_rule, deny, pod, proxy, table_of

pytestmark = pytest.mark.needs("nft_inet", "br_netfilter", "nft_nat")


class BaseRule(NamedTuple):
    """A rule of a base chain, and a connection that it lets pass, or denies: `step` returns whether it passes."""

    chain: str
    text: str
    table: FilterTable
    step: Callable[[PacketNode], bool]
    allowed: bool = True


ONE, TWO, ONE6, TWO6 = pod(1), pod(2), pod(1, 6), pod(2, 6)
_UDP = (AcceptRule(protocol="udp"),)


def reply(policed_node):
    """Opens a connection from the first pod to the second, and replies."""
    number = next(policed_node.numbers)
    assert policed_node.passed(PodConnection(ONE, TWO, "udp", 80), source_port=number) == [True]
    return policed_node.passed(PodConnection(TWO, ONE, "udp", number), source_port=80) == [True]


def first_packet(*connection, from_node=False):
    """Returns a step that sends the first packet of a connection, after pods and node forgot their neighbours."""

    def step(policed_node):
        for place in (policed_node.host, *policed_node.pods[:2]):
            place.ip("-6", "neigh", "flush", "all")
        return policed_node.passed(PodConnection(*connection), place=policed_node.host if from_node else None) == [True]

    return step


def through_service(version):
    """Returns a step with which the first pod reaches itself through its Service."""
    one = pod(1, version)
    return lambda policed_node: one in policed_node.arrivals(PodConnection(one, SERVICE[version], "udp", 1))[0]


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
def test_each_base_rule_matters(policed_node, node_filter, rule):
    """Without one of the base rules, packets are dropped that must pass, or pass that a policy denies."""
    for version in (4, 6):
        policed_node.host.run("nft", proxy(version, pod(1, version), pod(2, version)))
    node_filter.apply(rule.table)
    assert rule.step(policed_node) == rule.allowed
    delete_rule(policed_node.host, rule.chain, rule.text)
    assert rule.step(policed_node) != rule.allowed


@pytest.mark.parametrize("chain", ["output-egress", "output-ingress"])
def test_established_connections_through_output(policed_node, node_filter, chain):
    """Connections that IPVS translated are kept as well, by a rule of their chains."""
    there, back = PodConnection(ONE, TWO, "udp", 80), PodConnection(TWO, ONE, "udp", 20_001)
    node_filter.apply(EMPTY)
    assert policed_node.passed(there, source_port=20_001, place=policed_node.host) == [True]
    assert policed_node.passed(back, source_port=80) == [True]
    node_filter.apply(deny(ONE, TWO, egress=chain == "output-egress", ingress=chain == "output-ingress"))
    assert policed_node.passed(there, source_port=20_001, place=policed_node.host) == [True]
    delete_rule(policed_node.host, chain, "ct state")
    assert policed_node.passed(there, source_port=20_001, place=policed_node.host) == [False]


def test_no_denied_packet_passes_during_changes(policed_node, node_filter):
    """While policies change all the time, no packet passes that all of them deny, and none is lost that all allow.

    The tables differ in chains, rules, sets, verdicts and elements; every third change replaces the whole table. Each
    packet is a new connection.
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
    node_filter.apply(tables[0])
    policed_node.receive(0)
    allowed, denied = range(20_000, 24_000), range(30_000, 34_000)
    is_done = threading.Event()

    def send():
        for pair in zip(allowed, denied, strict=True):
            for source, number in zip((ONE, pod(4)), pair, strict=True):
                policed_node.send(PodConnection(source, TWO, "udp", 80), number)
        is_done.set()

    sender = threading.Thread(target=send)
    sender.start()
    changes = 0
    while not is_done.is_set():
        changes += 1
        change = node_filter.apply if changes % 3 else node_filter.repair
        assert change(tables[changes % len(tables)])
    sender.join()
    assert changes > 100
    arrived = {port for protocol, port, address in policed_node.receive() if (protocol, address) == ("udp", TWO)}
    assert arrived & set(denied) == set()
    assert arrived == set(allowed)
