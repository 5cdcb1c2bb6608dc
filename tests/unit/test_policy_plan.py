"""The plan of the filter: names, objects that stay, and, at random, the same answers as the evaluator's."""

import re
from random import Random

import pytest

from agent.policy.evaluator import decide_direction
from agent.policy.objects import EGRESS, INGRESS
from tests.support.policy_world import World, accepts


@pytest.mark.parametrize("seed", range(10))
def test_the_filter_agrees_with_the_evaluator(seed):
    """After random events the chains of a node's pods accept the connections that the evaluator allows, and no other.

    The sets are those that the differences of the plan produce, as in the kernel.
    """
    world = World(Random(seed))
    verdicts = {True: 0, False: 0}
    for _ in range(60):
        for _ in range(world.random.choice((1, 1, 2, 5, 20))):
            world.change()
        world.update()
        assert world.kernel == {name: set(elements) for name, elements in world.table.sets.items()}
        check_table(world.table)
        cluster = world.cluster()
        assert identities(cluster.pods) == identities(world.selection.cluster({}).pods)
        known = {each for name, record in world.records.items() if world.last_pods[name] for each in record.addresses}
        for _ in range(10):
            connection = world.connection()
            for direction in (EGRESS, INGRESS):
                subject = connection.source if direction == EGRESS else connection.destination
                if subject in known:
                    decision = decide_direction(cluster, connection, direction)
                    assert accepts(world.table, world.kernel, connection, direction) == decision.allowed, decision
                    verdicts[decision.allowed] += bool(decision.policies)
    assert all(verdicts.values())


def identities(pods):
    """Returns what pods are except for their addresses, by address."""
    return {address: pod._replace(precedence=0, addresses=()) for address, pod in pods.items()}


def check_table(table):
    """A table has exactly the sets and chains that are used, under valid names."""
    used = {name for verdict in table.verdicts.values() for name in verdict if name}
    assert used == set(table.chains)
    rules = [rule for chain in table.chains.values() for rule in chain.rules]
    assert {name for rule in rules for name in (rule.peer_set, rule.port_set, rule.pair_set) if name} == set(table.sets)
    assert all(re.fullmatch(r"[a-z0-9-]{1,31}", name) for name in (*table.chains, *table.sets))
