"""Managers that are wrong, each by one function that is replaced, and the invariants that this breaks.

The first is the one that a search usually finds first; any of them shows that the world would notice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.pools import block_protocol as protocol
from agent.pools import identity
from agent.pools.block_protocol import FREE, BlockSwap, Outcome
from agent.pools.grants_file import State
from agent.pools.memory import Memory
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


_register, _outcome, _save = protocol.register, Memory.outcome, NetworkBlocks.save
_claim, _give_back = Ownership.claim, protocol.give_back


def _read_any_id(path, machine):
    return json.loads(Path(path).read_bytes())["node"]


def _any_granted(self, entries, now_s, *, is_on_demand):
    return next((entry for entry in entries if entry.state is State.GRANTED), None)


def _believe_unknown(self, key, expected, change):
    is_unknown = change.outcome is Outcome.UNKNOWN
    return Outcome.SUCCEEDED if is_unknown else _outcome(self, key, expected, change)


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


def _save_without_intents(self, grants):
    """Keeps intents in memory only."""
    known = {entry.block for entry in self.grants.entries}
    if any(entry.state is State.CLAIMING and entry.block not in known for entry in grants.entries):
        self.grants = grants
    else:
        _save(self, grants)


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
    "grants survive a boot": Mutation(
        protocol, "grants_of", lambda instance, file_instance, grants: grants, ("I2", "I1", "I4", "I5")
    ),
    "a copied disk is accepted": Mutation(
        protocol,
        "is_foreign",
        lambda agent, record: False,
        ("I1", "I4", "I2", "I5", "I7"),
        (identity, "_read_id", _read_any_id),
    ),
    "a copied disk is refused by the store only": Mutation(identity, "_read_id", _read_any_id, ("I2", "I1", "I5")),
    "blocks of nodes that are not fenced are reclaimed": Mutation(
        protocol,
        "reclaim",
        lambda block, record, epoch: BlockSwap(block, block._replace(owner="")),
        ("I4", "I2", "I1"),
    ),
    "a block with reservations is revoked": Mutation(
        NetworkBlocks, "count_reservations", lambda self, block: 0, ("I2",), (FreeBlocks, "surplus", _any_granted)
    ),
    "an unknown answer is a success": Mutation(Memory, "outcome", _believe_unknown, ("I2", "I5", "I4", "I7")),
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
    "claims before all nodes are of the epoch": Mutation(
        protocol,
        "look",
        lambda agent, records: agent._replace(is_clear=records.get(agent.node) == agent.record),
        ("I1", "I5", "I2"),
    ),
    "the intent is not in the file": Mutation(NetworkBlocks, "save", _save_without_intents, ("I7",)),
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
