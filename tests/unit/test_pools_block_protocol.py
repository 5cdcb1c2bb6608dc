"""The protocol of blocks: the life of a block, a new epoch, a fence, and requests without an answer."""

from __future__ import annotations

import pytest

from agent.pools.block_protocol import (
    FREE,
    MISSING,
    Agent,
    Block,
    BlockSwap,
    Evidence,
    NodeRecord,
    Outcome,
    Proof,
    RecordSwap,
    Token,
    candidates,
    claim,
    contact,
    fence,
    give_back,
    grant_after,
    grants_of,
    held_after,
    is_foreign,
    is_lost,
    look,
    prove,
    reassert,
    reclaim,
    recover,
    register,
    revoke,
    token_to_grant,
)

AGENT = Agent("node-a", "machine-a", "boot-1", "e1", is_clear=True)
TOKEN = Token("e1", 1)
MINE = Block("node-a", TOKEN)
THEIRS = Block("node-b", TOKEN)


def test_life_of_a_block():
    """A free block is claimed, granted, revoked without reservations, and given back with the same generation."""
    swap = claim(AGENT, None, FREE)
    assert swap == BlockSwap(FREE, MINE)
    held = held_after(swap, Outcome.SUCCEEDED)
    assert held == TOKEN
    assert token_to_grant(held, "e1") == TOKEN
    assert give_back(AGENT, TOKEN, MINE) is None
    assert revoke(TOKEN, 1) == TOKEN
    assert revoke(TOKEN, 0) is None
    assert give_back(AGENT, None, MINE) == BlockSwap(MINE, Block("", TOKEN))
    assert claim(AGENT, None, Block("", TOKEN)) == BlockSwap(Block("", TOKEN), Block("node-a", Token("e1", 2)))


def test_block_without_grant_is_claimed_again():
    """An agent may not grant a block that it owns since an earlier run: it claims it, with a new generation."""
    assert claim(AGENT, None, MINE) == BlockSwap(MINE, Block("node-a", Token("e1", 2)))
    assert claim(AGENT, TOKEN, MINE) is None
    assert claim(AGENT, None, THEIRS) is None


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.UNKNOWN])
def test_only_a_success_changes_memory_and_file(outcome):
    """After an answer that is lost or unknown the agent holds nothing and keeps its grant."""
    assert held_after(BlockSwap(FREE, MINE), outcome) is None
    assert held_after(BlockSwap(MINE, Block("", TOKEN)), outcome) is None
    assert held_after(BlockSwap(MINE, Block("", TOKEN)), Outcome.SUCCEEDED) is None
    assert grant_after(TOKEN, BlockSwap(FREE, Block("node-a", Token("e2", 1))), outcome) == TOKEN


def test_token_of_an_old_epoch_is_not_granted():
    """A claim that a restored store may have executed is not granted."""
    assert token_to_grant(TOKEN, "e2") is None


def test_agent_that_is_not_clear_changes_no_block():
    """An agent neither claims nor gives back before it is clear."""
    agent = AGENT._replace(is_clear=False)
    assert claim(agent, None, FREE) is None
    assert give_back(agent, None, MINE) is None


def test_new_epoch():
    """In a new epoch the agent reasserts each grant, whatever the store has, and registers after the last one."""
    assert contact(AGENT, "e1") == AGENT
    agent = contact(AGENT, "e2")
    assert not agent.is_clear
    for block in (MINE, THEIRS, FREE):
        swap = reassert(agent, TOKEN, block)
        assert swap == BlockSwap(block, Block("node-a", Token("e2", block.token.generation + 1)))
    assert register(agent, [TOKEN], AGENT.record) is None
    token = grant_after(TOKEN, BlockSwap(THEIRS, Block("node-a", Token("e2", 2))), Outcome.SUCCEEDED)
    assert token == Token("e2", 2)
    assert register(agent, [token], AGENT.record) == RecordSwap(AGENT.record, agent.record)
    assert reassert(agent, token, THEIRS) is None


def test_lost_grant():
    """A grant of this epoch that the store does not have is lost; in a new epoch the agent reasserts it instead."""
    assert not is_lost(AGENT, TOKEN, MINE)
    assert is_lost(AGENT, TOKEN, THEIRS)
    assert is_lost(AGENT, TOKEN, Block("node-a", Token("e1", 2)))
    assert not is_lost(contact(AGENT, "e2"), TOKEN, THEIRS)


def test_agent_is_clear_when_all_records_are_of_its_epoch():
    """A record of another epoch, also of a fenced node, and a record of this node that is missing delay claims."""
    agent, this = AGENT._replace(is_clear=False), AGENT.record
    other, stale = NodeRecord("machine-b", "boot-7", "e1"), NodeRecord("machine-c", "boot-9", "e0")
    assert look(agent, {"node-a": this, "node-b": other}) == AGENT
    assert look(agent, {"node-a": this, "node-b": other._replace(is_fenced=True)}).is_clear
    assert not look(agent, {"node-a": this, "node-b": other, "node-c": stale}).is_clear
    assert not look(AGENT, {"node-a": this, "node-c": stale._replace(is_fenced=True)}).is_clear
    assert not look(agent, {"node-b": other}).is_clear
    assert not look(agent, {"node-a": this._replace(is_fenced=True)}).is_clear
    assert not look(agent, {"node-a": this._replace(instance="boot-2")}).is_clear


def test_copied_disk_is_refused():
    """A record of another machine refuses registration, until it is fenced; a missing one after a restore does not."""
    record = NodeRecord("machine-b", "boot-7", "e1")
    assert is_foreign(AGENT, record)
    assert register(AGENT, [], record) is None
    for free in (None, MISSING, record._replace(is_fenced=True), AGENT.record._replace(instance="boot-0")):
        assert not is_foreign(AGENT, free)
        assert register(AGENT, [], free) == RecordSwap(free, AGENT.record)


def test_grants_end_with_a_boot():
    """The grants of a file are those of the boot that wrote it."""
    assert grants_of("boot-1", "boot-1", {"a": TOKEN}) == {"a": TOKEN}
    assert grants_of("boot-2", "boot-1", {"a": TOKEN}) == {}


def test_fence_and_reclaim():
    """Blocks of a fenced node become free, in the epoch of the fence; a machine that booted is not fenced."""
    record = AGENT.record
    proof = prove("node-a", record, "e1", Evidence.POWERED_OFF)
    assert proof == Proof("node-a", record, "e1")
    fenced = record._replace(is_fenced=True)
    assert fence(proof, record) == RecordSwap(record, fenced)
    assert fence(proof, record._replace(instance="boot-2")) is None
    assert fence(proof, None) is None
    assert reclaim(MINE, fenced, "e1") == BlockSwap(MINE, Block("", TOKEN))
    assert reclaim(MINE, record, "e1") is None
    assert reclaim(MINE, None, "e1") is None
    assert reclaim(MINE, fenced, "e2") is None
    assert reclaim(FREE, fenced, "e1") is None


def test_evidence():
    """A silent agent and a Node that is not ready prove nothing; a deleted Node does if the administrator says so."""
    proofs = {reason for reason in Evidence if prove("node-a", AGENT.record, "e1", reason)}
    assert proofs == {Evidence.POWERED_OFF, Evidence.OUT_OF_SERVICE}
    assert prove("node-a", AGENT.record, "e1", Evidence.NODE_DELETED, deleted_is_off=True)
    assert not prove("node-a", AGENT.record, "e1", Evidence.NOT_READY, deleted_is_off=True)


def test_restored_store():
    """After a restore the nodes that joined meanwhile get a record of no epoch, before the new epoch begins."""
    requests, epoch = recover({"node-a": AGENT.record}, ["node-a", "node-c"], "e2")
    assert requests == {"node-c": RecordSwap(None, MISSING)}
    assert epoch == "e2"
    agent = contact(AGENT, "e2")
    assert not look(agent, {"node-a": agent.record, "node-c": MISSING}).is_clear


def test_candidates():
    """Each node tries numbers of blocks in the pool, in an order of its own."""
    assert list(candidates("node-a", 64)) != list(candidates("node-b", 64))
    assert list(candidates("node-a", 64)) == list(candidates("node-a", 64))
    assert set(candidates("node-a", 64)) <= set(range(64))
    assert len(set(candidates("node-a", 64))) > 32
