"""The protocol of blocks: the life of a block, a new epoch, a fence, and requests without an answer."""

from __future__ import annotations

import pytest

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import FREE, MISSING, Agent, Block, BlockSwap, NodeRecord, Outcome, RecordSwap, Token

AGENT = Agent("node-a", "machine-a", "boot-1", "e1", is_clear=True)
TOKEN = Token("e1", 1)
MINE = Block("node-a", TOKEN)
THEIRS = Block("node-b", TOKEN)


def test_life_of_a_block():
    """A free block is claimed, granted, revoked without reservations, and given back with the same generation."""
    swap = protocol.claim(AGENT, None, FREE)
    assert swap == BlockSwap(FREE, MINE)
    held = protocol.held_after(swap, Outcome.SUCCEEDED)
    assert held == TOKEN
    assert protocol.token_to_grant(held, "e1") == TOKEN
    assert protocol.give_back(AGENT, TOKEN, MINE) is None
    assert protocol.revoke(TOKEN, 1) == TOKEN
    assert protocol.revoke(TOKEN, 0) is None
    assert protocol.give_back(AGENT, None, MINE) == BlockSwap(MINE, Block("", TOKEN))
    assert protocol.claim(AGENT, None, Block("", TOKEN)) == BlockSwap(Block("", TOKEN), Block("node-a", Token("e1", 2)))


def test_block_without_grant_is_claimed_again():
    """An agent may not grant a block that it owns since an earlier run: it claims it, with a new generation."""
    assert protocol.claim(AGENT, None, MINE) == BlockSwap(MINE, Block("node-a", Token("e1", 2)))
    assert protocol.claim(AGENT, TOKEN, MINE) is None
    assert protocol.claim(AGENT, None, THEIRS) is None


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.UNKNOWN])
def test_only_a_success_changes_memory_and_file(outcome):
    """After an answer that is lost or unknown the agent holds nothing and keeps its grant."""
    assert protocol.held_after(BlockSwap(FREE, MINE), outcome) is None
    assert protocol.held_after(BlockSwap(MINE, Block("", TOKEN)), outcome) is None
    assert protocol.held_after(BlockSwap(MINE, Block("", TOKEN)), Outcome.SUCCEEDED) is None
    assert protocol.grant_after(TOKEN, BlockSwap(FREE, Block("node-a", Token("e2", 1))), outcome) == TOKEN


def test_token_of_an_old_epoch_is_not_granted():
    """A claim that a restored store may have executed is not granted."""
    assert protocol.token_to_grant(TOKEN, "e2") is None


def test_agent_that_is_not_clear_changes_no_block():
    """An agent neither claims nor gives back before it is clear."""
    agent = AGENT._replace(is_clear=False)
    assert protocol.claim(agent, None, FREE) is None
    assert protocol.give_back(agent, None, MINE) is None


def test_new_epoch():
    """In a new epoch the agent reasserts each grant, whatever the store has, and registers after the last one."""
    assert protocol.contact(AGENT, "e1") == AGENT
    agent = protocol.contact(AGENT, "e2")
    assert not agent.is_clear
    for block in (MINE, THEIRS, FREE):
        swap = protocol.reassert(agent, TOKEN, block)
        assert swap == BlockSwap(block, Block("node-a", Token("e2", block.token.generation + 1)))
    assert protocol.register(agent, [TOKEN], AGENT.record) is None
    token = protocol.grant_after(TOKEN, BlockSwap(THEIRS, Block("node-a", Token("e2", 2))), Outcome.SUCCEEDED)
    assert token == Token("e2", 2)
    assert protocol.register(agent, [token], AGENT.record) == RecordSwap(AGENT.record, agent.record)
    assert protocol.reassert(agent, token, THEIRS) is None


def test_lost_grant():
    """A grant of this epoch that the store does not have is lost; in a new epoch the agent reasserts it instead."""
    assert not protocol.is_lost(AGENT, TOKEN, MINE)
    assert protocol.is_lost(AGENT, TOKEN, THEIRS)
    assert protocol.is_lost(AGENT, TOKEN, Block("node-a", Token("e1", 2)))
    assert not protocol.is_lost(protocol.contact(AGENT, "e2"), TOKEN, THEIRS)


def test_agent_is_clear_when_all_records_are_of_its_epoch():
    """A record of another epoch, also of a fenced node, and a record of this node that is missing delay claims."""
    agent, this = AGENT._replace(is_clear=False), AGENT.record
    other, stale = NodeRecord("machine-b", "boot-7", "e1"), NodeRecord("machine-c", "boot-9", "e0")
    assert protocol.look(agent, {"node-a": this, "node-b": other}) == AGENT
    assert protocol.look(agent, {"node-a": this, "node-b": other._replace(is_fenced=True)}).is_clear
    assert not protocol.look(agent, {"node-a": this, "node-b": other, "node-c": stale}).is_clear
    assert not protocol.look(AGENT, {"node-a": this, "node-c": stale._replace(is_fenced=True)}).is_clear
    assert not protocol.look(agent, {"node-b": other}).is_clear
    assert not protocol.look(agent, {"node-a": this._replace(is_fenced=True)}).is_clear
    assert not protocol.look(agent, {"node-a": this._replace(instance="boot-2")}).is_clear


def test_copied_disk_is_refused():
    """A record of another machine refuses registration, until it is fenced; a missing one after a restore does not."""
    record = NodeRecord("machine-b", "boot-7", "e1")
    assert protocol.is_foreign(AGENT, record)
    assert protocol.register(AGENT, [], record) is None
    for free in (None, MISSING, record._replace(is_fenced=True), AGENT.record._replace(instance="boot-0")):
        assert not protocol.is_foreign(AGENT, free)
        assert protocol.register(AGENT, [], free) == RecordSwap(free, AGENT.record)


def test_grants_end_with_a_boot():
    """The grants of a file are those of the boot that wrote it."""
    assert protocol.grants_of("boot-1", "boot-1", {"a": TOKEN}) == {"a": TOKEN}
    assert protocol.grants_of("boot-2", "boot-1", {"a": TOKEN}) == {}


def test_fence_and_reclaim():
    """Blocks of a fenced node become free, in the epoch of the fence; a machine that booted is not fenced."""
    record = AGENT.record
    proof = protocol.prove("node-a", record, "e1", protocol.Evidence.POWERED_OFF)
    assert proof == protocol.Proof("node-a", record, "e1")
    fenced = record._replace(is_fenced=True)
    assert protocol.fence(proof, record) == RecordSwap(record, fenced)
    assert protocol.fence(proof, record._replace(instance="boot-2")) is None
    assert protocol.fence(proof, None) is None
    assert protocol.reclaim(MINE, fenced, "e1") == BlockSwap(MINE, Block("", TOKEN))
    assert protocol.reclaim(MINE, record, "e1") is None
    assert protocol.reclaim(MINE, None, "e1") is None
    assert protocol.reclaim(MINE, fenced, "e2") is None
    assert protocol.reclaim(FREE, fenced, "e1") is None


def test_evidence():
    """A silent agent and a Node that is not ready prove nothing; a deleted Node does if the administrator says so."""
    proofs = {reason for reason in protocol.Evidence if protocol.prove("node-a", AGENT.record, "e1", reason)}
    assert proofs == {protocol.Evidence.POWERED_OFF, protocol.Evidence.OUT_OF_SERVICE}
    assert protocol.prove("node-a", AGENT.record, "e1", protocol.Evidence.NODE_DELETED, deleted_is_off=True)
    assert not protocol.prove("node-a", AGENT.record, "e1", protocol.Evidence.NOT_READY, deleted_is_off=True)


def test_restored_store():
    """After a restore the nodes that joined meanwhile get a record of no epoch, before the new epoch begins."""
    requests, epoch = protocol.recover({"node-a": AGENT.record}, ["node-a", "node-c"], "e2")
    assert requests == {"node-c": RecordSwap(None, MISSING)}
    assert epoch == "e2"
    agent = protocol.contact(AGENT, "e2")
    assert not protocol.look(agent, {"node-a": agent.record, "node-c": MISSING}).is_clear


def test_candidates():
    """Each node tries numbers of blocks in the pool, in an order of its own."""
    assert list(protocol.candidates("node-a", 64)) != list(protocol.candidates("node-b", 64))
    assert list(protocol.candidates("node-a", 64)) == list(protocol.candidates("node-a", 64))
    assert set(protocol.candidates("node-a", 64)) <= set(range(64))
    assert len(set(protocol.candidates("node-a", 64))) > 32
