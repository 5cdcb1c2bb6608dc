"""Random events in a world whose pods have sticky addresses: machines, agents, the store and requests fail.

tests/hard/test_pools_world.py has more of them.
"""

import random
from typing import Any

import pytest

from cni.address import parse_ip
from tests.pools_world.walk import EVENTS, make_event
from tests.pools_world.world import World

ORDINARY: Any = {"name": "default", "cidrs": ["10.22.0.0/28"], "blockPrefixLengths": {"ipv4": 30}}
STICKY: Any = {"name": "data", "cidrs": ["10.24.0.0/29"], "namespaces": ["team-a"], "sticky": True}
PODS = [f"db-{number}" for number in range(6)]
RESTORES = ("backup", "restore")


def schedule(world, rng):
    """Binds each pod to a node, to none or, as while the API server is late, to two."""
    for node in world.nodes:
        if node.manager:
            names = [pod for pod in PODS if rng.random() < 0.4]
            node.manager.set_pods({f"team-a/{name}": f"team-a/{name}" for name in names})


def add(world, rng):
    node, pod = rng.choice(world.nodes), rng.choice(PODS)
    if node.is_on:
        answer = node.add("team-a", pod)
        if "ips" in answer:
            address = parse_ip(answer["ips"][0]["address"].partition("/")[0])
            assert [entry.key for entry in node.entries if address in entry.block] == [f"team-a/{pod}@net"]


def check_keys(world):
    """Checks that no key has two addresses."""
    keys = [stored.note.key for stored in world.store.list_blocks().values() if stored.note.key]
    assert len(keys) == len(set(keys)), keys


def end_pods(world):
    """Ends the faults, and lets the API server have no pods: the sticky addresses are given back, one after another."""
    world.store.drop_late()
    for node in world.nodes:
        node.disk.clear()
        node.boot()
        node.collect()
        while node.manager is None:
            node.step()
        node.manager.set_pods({})
    for _ in range(10):
        for node in world.nodes:
            for _ in range(50):
                node.step()
            node.time_s += 20.0
        world.check()


def walk(path, seed, events, *, has_restores):
    """Makes random events: without a restore a key has one address; in the end no block is lost."""
    rng = random.Random(seed)
    world = World(path, nodes=3, space={"epoch": "epoch-0", "pools": [ORDINARY, STICKY]})
    left_out = {"draining", "copied disk", *(() if has_restores else RESTORES)}
    names = [name for name in EVENTS if name not in left_out]
    weights = [EVENTS[name][0] for name in names]
    for _ in range(events):
        chance = rng.random()
        if chance < 0.1:
            schedule(world, rng)
        elif chance < 0.3:
            add(world, rng)
        else:
            make_event(world, rng.choices(names, weights)[0], rng.randrange(1 << 30))
        world.check()
        if not has_restores:
            check_keys(world)
    end_pods(world)
    world.heal()


@pytest.mark.parametrize("has_restores", [False, True], ids=["no restore", "restores"])
@pytest.mark.parametrize("seed", range(2))
def test_no_order_of_events_gives_an_address_to_two_pods(tmp_path, seed, has_restores):
    """No address is at two pods, none at a wrong pod, no block is lost; without a restore a key has one address."""
    walk(tmp_path, seed, 80, has_restores=has_restores)
