"""What doctor and trace predict from the rules of network policies: what the evaluator says, and the kernel does."""

from random import Random

import pytest

from agent.policy.evaluator import PodConnection
from agent.policy.filter_table import AcceptRule
from kernel.netfilter.packet import ICMP, ICMPV6, NEW, TCP, UDP, Packet
from kernel.netfilter.ruleset import read_ruleset
from podwire.predictions.evaluation import FORWARD, Fate, traverse
from tests.support.policy_tables import pod, table_of
from tests.support.policy_world import KernelWorld

pytestmark = pytest.mark.needs("nft_inet", "br_netfilter", "nft_nat")

CASES = 400
_PROTOCOLS = {"tcp": TCP, "udp": UDP, "sctp": 132}


def packet_of(connection):
    """Returns the first packet of a connection."""
    source, destination, protocol, port = connection
    number = _PROTOCOLS.get(protocol) or {4: ICMP, 6: ICMPV6}[source.version]
    kind = {4: 8, 6: 128}[source.version] if protocol == "icmp" else None
    return Packet(
        source.version, source, destination, number, 40000, port, icmp_type=kind, state=NEW, iif="cni0", oif="cni0"
    )


@pytest.mark.parametrize("seed", range(2))
def test_predictions_are_the_evaluators(policed_node, node_filter, seed):
    """The predicted fate of packets, by maps, sets, ranges and named counters, is what the evaluator decides."""
    world = KernelWorld(Random(seed), node_filter)
    verdicts = {True: 0, False: 0}
    while sum(verdicts.values()) < CASES:
        for _ in range(20):
            world.change()
        world.update()
        cluster = world.cluster()
        with policed_node.host.entered():
            ruleset = read_ruleset()
            for connection in (world.connection() for _ in range(100)):
                decisions = world.decisions(cluster, connection)
                is_usual = all(each.pod and not each.exemption for each in decisions)
                if is_usual and any(each.policies for each in decisions):
                    outcome = traverse(ruleset, packet_of(connection), FORWARD)
                    allowed = all(each.allowed for each in decisions)
                    assert [event.fate for event in outcome.events] == [Fate.CERTAIN] * (not allowed), connection
                    verdicts[allowed] += 1
    assert min(verdicts.values()) > CASES // 20, verdicts


@pytest.mark.parametrize("version", [4, 6])
def test_pairs_of_address_and_port(policed_node, node_filter, version):
    """A set of addresses with ports, of a named port, passes the packets to its pairs only."""
    source, one, two = (pod(number, version) for number in (1, 2, 3))
    rule = AcceptRule(version, protocol="udp", pair_set=f"p{version}-1")
    node_filter.apply(table_of([source], [rule], {f"p{version}-1": {(one, 53), (two, 54)}}, True, False))
    with policed_node.host.entered():
        ruleset = read_ruleset()
        for target, port in ((one, 53), (one, 54), (two, 53), (two, 54)):
            outcome = traverse(ruleset, packet_of(PodConnection(source, target, "udp", port)), FORWARD)
            assert (outcome.drop is None) == ((target, port) in {(one, 53), (two, 54)})
