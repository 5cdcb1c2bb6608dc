"""Managers that are wrong, each by one function that is replaced, and the invariants that this breaks.

The first is the one that a search usually finds first; any of them shows that the world would notice. Each invariant is
broken by one of them; tests/block_model/policies.py has further wrong functions of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import FREE, BlockSwap
from agent.pools.grants_file import State
from agent.pools.network_blocks import NetworkBlocks
from agent.pools.ownership import Ownership
from agent.pools.supply import FreeBlocks
from tests.pools_world.walk import walk
from tests.pools_world.world import BrokenInvariant, World

WALK_EVENTS = 80


class Mutation(NamedTuple):
    """The replacement of an attribute of a class or module, and the invariants that it breaks."""

    owner: object
    name: str
    replacement: Callable[..., object]
    breaks: tuple[str, ...]
    also: tuple[object, str, Callable[..., object]] | None = None


_register, _claim, _give_back = protocol.register, Ownership.claim, protocol.give_back


def _any_granted(self, entries, now_s, *, is_on_demand):
    return next((entry for entry in entries if entry.state is State.GRANTED), None)


def _give_back_granted(self):
    memory = self._memory
    for network, entry in list(memory.blocks()):
        if entry.state is State.GRANTED and memory.agent.is_clear and not network.count_used()[entry.block]:
            stored = memory.store.read_block(entry.block)
            swap = protocol.give_back(memory.agent, None, stored.value)
            if swap:
                memory.swap_block(entry.block, stored, swap.new, entry.pool)
                network.save(network.grants.without(entry.block))
                return True
    return False


def _verify_nothing(self):
    self._memory.unverified.clear()
    return False


def _grant_before_claim(self):
    """Grants what is intended, and claims afterwards."""
    memory = self._memory
    for network, entry in list(memory.blocks()):
        if entry.state is State.CLAIMING and memory.agent.is_clear and entry.block in memory.values:
            token = protocol.Token(memory.agent.epoch, memory.values[entry.block].value.token.generation + 1)
            network.save(network.grants.with_entry(entry._replace(state=State.GRANTED, token=token)))
            return True
    return _claim(self)


def _forget_after_claim(self):
    """Forgets the intent when a claim had no answer."""
    memory = self._memory
    before = {held.entry.block: held for held in memory.blocks() if held.entry.state is State.CLAIMING}
    values = set(memory.values)
    try:
        return _claim(self)
    except Exception:
        for block in values - set(memory.values):
            if block in before:
                network = before[block].network
                network.save(network.grants.without(block))
        raise


MUTATIONS = {
    "blocks of nodes that are not fenced are reclaimed": Mutation(
        protocol, "reclaim", lambda block, record, epoch: BlockSwap(block, block._replace(owner="")), ("I4", "I2", "I1")
    ),
    "a block with reservations is revoked": Mutation(
        NetworkBlocks, "count_reservations", lambda self, block: 0, ("I2",), (FreeBlocks, "surplus", _any_granted)
    ),
    "granted before it is claimed": Mutation(Ownership, "claim", _grant_before_claim, ("I2", "I5")),
    "a block that is given back forgets its generation": Mutation(
        protocol,
        "give_back",
        lambda agent, grant, block: BlockSwap(block, FREE) if _give_back(agent, grant, block) else None,
        ("I3",),
    ),
    "given back before it is revoked": Mutation(Ownership, "give_back", _give_back_granted, ("I4",)),
    "registered before grants are reasserted": Mutation(
        protocol,
        "register",
        lambda agent, grants, record: _register(agent, (), record),
        ("I5", "I2", "I1"),
        (Ownership, "verify", _verify_nothing),
    ),
    "a claim without an answer is forgotten": Mutation(Ownership, "claim", _forget_after_claim, ("I7",)),
    "reservations of a lost file are ignored": Mutation(
        Ownership, "_explain_unaccounted", lambda self, network: False, ("I1",)
    ),
}


def broken_by(name: str, seeds: Iterable[int], root: Path, monkeypatch: pytest.MonkeyPatch) -> BrokenInvariant | None:
    """Returns what a wrong manager breaks in the first of some walks that show it; None if all end well."""
    mutation = MUTATIONS[name]
    monkeypatch.setattr(mutation.owner, mutation.name, mutation.replacement)
    if mutation.also:
        monkeypatch.setattr(*mutation.also)
    for seed in seeds:
        directory = root / str(seed)
        directory.mkdir()
        try:
            walk(World(directory), seed, WALK_EVENTS)
        except BrokenInvariant as broken:
            if broken.name in mutation.breaks:
                return broken
    return None
