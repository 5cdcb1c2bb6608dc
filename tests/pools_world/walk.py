"""A random walk through the events of a world: which events there are, and how often each happens."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cni.address import parse_ip
from tests.pools_world.disk import FileFault
from tests.pools_world.world import World
from tests.support.store_double import Fault

READS = ("read_space", "read_block", "list_blocks", "read_entry", "list_entries")
SWAPS = ("swap_block", "swap_entry")
SWAP_FAULTS = tuple(Fault)
READ_FAULTS = (Fault.UNREACHABLE, Fault.NOT_EXECUTED, Fault.CRASH_BEFORE, Fault.CRASH_AFTER)

Event = Callable[[World, random.Random], None]


def _step(world: World, rng: random.Random) -> None:
    number = rng.randrange(9)
    world.pass_time(number, rng.choice((0.0, 0.0, 1.0, 70.0)))
    world.step(number, rng.choice((1, 1, 2, 4, 15)))


def _life(world: World, rng: random.Random) -> None:
    """Lets every agent work for a while without faults."""
    for number in range(len(world.nodes)):
        world.pass_time(number, 70.0)
        world.step(number, 12)


def _quiet(world: World, rng: random.Random) -> None:
    """Lets the pods of a node end, and so much time pass that it gives blocks back."""
    number = rng.randrange(9)
    node = world.nodes[number % len(world.nodes)]
    while node.is_on and node.pods:
        node.delete(0)
    for _ in range(3):
        world.pass_time(number, 400.0)
        world.step(number, 6)


def _failing_step(world: World, rng: random.Random) -> None:
    number = rng.randrange(9)
    world.pass_time(number, rng.choice((0.0, 70.0)))
    faults, requests = rng.choice(((SWAP_FAULTS, SWAPS), (SWAP_FAULTS, SWAPS), (READ_FAULTS, READS)))
    world.step(number, rng.choice((1, 4, 12)), rng.choice(faults), rng.choice(requests))


def _step_on_a_bad_disk(world: World, rng: random.Random) -> None:
    number = rng.randrange(9)
    world.pass_time(number, rng.choice((0.0, 70.0)))
    world.nodes[number % len(world.nodes)].disk.fail_at(rng.randrange(6), rng.choice(tuple(FileFault)))
    world.step(number, rng.choice((1, 4, 12)))
    if rng.random() < 0.1:
        world.nodes[number % len(world.nodes)].power_off()


def _reclaim(world: World, rng: random.Random) -> None:
    fault = rng.choice((None, None, *SWAP_FAULTS))
    world.reclaim(rng.randrange(9), fault, rng.choice(SWAPS))


def _of_node(method: str, *arguments: object) -> Event:
    def event(world: World, rng: random.Random) -> None:
        node = world.nodes[rng.randrange(len(world.nodes))]
        getattr(node, method)(*arguments)

    return event


def _power_off_and_reclaim(world: World, rng: random.Random) -> None:
    number = rng.randrange(len(world.nodes))
    world.suspect(number)
    world.nodes[number].power_off()
    world.state_off()
    for _ in range(rng.randrange(2)):
        world.nodes[number].boot()


def _declare_dead(world: World, rng: random.Random) -> None:
    """Reclaims a node that is off, lets the others claim, and boots it: it learns of its death, or not yet."""
    number = rng.randrange(len(world.nodes))
    world.nodes[number].power_off()
    world.suspect(number)
    world.state_off()
    world.reclaim(len(world.proofs) - 1)
    _life(world, rng)
    world.nodes[number].boot()
    world.step(number, rng.choice((1, 2, 8)), rng.choice((None, Fault.UNREACHABLE)))


# Each event with its weight.
EVENTS: dict[str, tuple[int, Event]] = {
    "life": (20, _life),
    "quiet": (12, _quiet),
    "draining": (4, lambda world, rng: world.toggle_draining()),
    "step": (60, _step),
    "step with a fault": (40, _failing_step),
    "step on a bad disk": (14, _step_on_a_bad_disk),
    "ADD": (50, lambda world, rng: world.add(rng.randrange(9))),
    "DEL": (24, lambda world, rng: _of_node("delete", rng.randrange(9))(world, rng)),
    "GC": (8, _of_node("collect")),
    "damaged file": (2, _of_node("lose_file")),
    "crash": (5, _of_node("crash")),
    "another UID": (2, _of_node("rename")),
    "power off": (2, _of_node("power_off")),
    "boot": (16, _of_node("boot")),
    "suspect": (2, lambda world, rng: world.suspect(rng.randrange(9))),
    "state off": (3, lambda world, rng: world.state_off()),
    "power off, suspect": (3, _power_off_and_reclaim),
    "declared dead": (8, _declare_dead),
    "reclaim": (6, _reclaim),
    "late request": (16, lambda world, rng: world.deliver(rng.randrange(9))),
    "time": (8, lambda world, rng: world.pass_time(rng.randrange(9), rng.choice((1.0, 61.0, 700.0)))),
    "backup": (6, lambda world, rng: world.save()),
    "restore": (6, lambda world, rng: world.restore()),
    "epoch": (2, lambda world, rng: world.recover()),
    "copied disk": (1, lambda world, rng: world.copy_disk(rng.randrange(9))),
}


def walk(world: World, seed: int, events: int) -> None:
    """Makes random events, each with a check of the invariants, then heals the world; raises BrokenInvariant."""
    rng = random.Random(seed)
    for name in rng.choices(list(EVENTS), [weight for weight, _ in EVENTS.values()], k=events):
        _make_event(world, name, rng)
    world.heal()


def _make_event(world: World, name: str, rng: random.Random) -> None:
    EVENTS[name][1](world, random.Random(rng.randrange(1 << 30)))
    world.check()


_ORDINARY: Any = {"name": "default", "cidrs": ["10.22.0.0/28"], "blockPrefixLengths": {"ipv4": 30}}
_STICKY: Any = {"name": "data", "cidrs": ["10.24.0.0/29"], "namespaces": ["team-a"], "sticky": True}
_PODS = [f"db-{number}" for number in range(6)]


def sticky_walk(path: Path, seed: int, events: int, *, has_restores: bool) -> None:
    """Makes random events, also of pods with sticky addresses: without a restore a key has one address."""
    rng = random.Random(seed)
    world = World(path, space={"epoch": "epoch-0", "pools": [_ORDINARY, _STICKY]})
    left_out = {"draining", "copied disk", *(() if has_restores else ("backup", "restore"))}
    weights = {name: weight for name, (weight, _) in EVENTS.items() if name not in left_out}
    for _ in range(events):
        chance = rng.random()
        if chance < 0.1:
            _schedule(world, rng)
        elif chance < 0.3:
            _add_sticky(world, rng)
        else:
            _make_event(world, rng.choices(list(weights), list(weights.values()))[0], rng)
        world.check()
        keys = [stored.note.key for stored in world.store.list_blocks().values() if stored.note.key]
        assert has_restores or len(keys) == len(set(keys)), keys
    _end_pods(world)
    world.heal()


def _schedule(world: World, rng: random.Random) -> None:
    """Binds each pod to a node, to none or, as while the API server is late, to two."""
    for node in world.nodes:
        if node.manager:
            pods = [f"team-a/{name}" for name in _PODS if rng.random() < 0.4]
            node.manager.set_pods(dict(zip(pods, pods, strict=True)))


def _add_sticky(world: World, rng: random.Random) -> None:
    node, pod = rng.choice(world.nodes), rng.choice(_PODS)
    answer = node.add("team-a", pod) if node.is_on else {}
    if "ips" in answer:
        address = parse_ip(answer["ips"][0]["address"].partition("/")[0])
        assert [entry.key for entry in node.entries if address in entry.block] == [f"team-a/{pod}@net"]


def _end_pods(world: World) -> None:
    """Ends the faults, and lets the API server have no pods: the sticky addresses are given back sequentially."""
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
