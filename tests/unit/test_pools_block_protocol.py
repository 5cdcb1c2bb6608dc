"""The protocol of blocks: what neither the model (tests/block_model) nor the tests of the manager would notice."""

import pytest

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import FREE, MISSING, BlockRecord, BlockSwap, NodeRecord, NodeSwap, SwapOutcome, Token

AGENT = protocol.AgentState("node-a", "machine-a", "boot-1", "e1", may_claim=True)
TOKEN = Token("e1", 1)
MINE = BlockRecord("node-a", TOKEN)
THEIRS = BlockRecord("node-b", TOKEN)


@pytest.mark.parametrize("outcome", [SwapOutcome.LOST, SwapOutcome.UNKNOWN])
def test_only_a_success_changes_the_file(outcome):
    """After an answer that is lost or unknown the agent keeps its grant."""
    assert protocol.grant_after(TOKEN, BlockSwap(FREE, BlockRecord("node-a", Token("e2", 1))), outcome) == TOKEN


def test_lost_grant():
    """A grant of this epoch that the store does not have is lost; in a new epoch the agent reasserts it instead."""
    assert not protocol.is_lost(AGENT, TOKEN, MINE)
    assert protocol.is_lost(AGENT, TOKEN, THEIRS)
    assert protocol.is_lost(AGENT, TOKEN, BlockRecord("node-a", Token("e1", 2)))
    assert not protocol.is_lost(protocol.after_epoch(AGENT, "e2"), TOKEN, THEIRS)


def test_agent_is_clear_when_all_records_are_of_its_epoch():
    """A record of another epoch, also of a fenced node, and a record of this node that is missing delay claims."""
    agent, this = AGENT._replace(may_claim=False), AGENT.record
    other, stale = NodeRecord("machine-b", "boot-7", "e1"), NodeRecord("machine-c", "boot-9", "e0")
    assert protocol.after_records(agent, {"node-a": this, "node-b": other}) == AGENT
    assert protocol.after_records(agent, {"node-a": this, "node-b": other._replace(is_fenced=True)}).may_claim
    assert not protocol.after_records(agent, {"node-a": this, "node-b": other, "node-c": stale}).may_claim
    assert not protocol.after_records(AGENT, {"node-a": this, "node-c": stale._replace(is_fenced=True)}).may_claim
    assert not protocol.after_records(agent, {"node-b": other}).may_claim
    assert not protocol.after_records(agent, {"node-a": this._replace(is_fenced=True)}).may_claim
    assert not protocol.after_records(agent, {"node-a": this._replace(instance="boot-2")}).may_claim


def test_copied_disk_is_refused():
    """A record of another machine refuses registration, until it is fenced; a missing one after a restore does not."""
    record = NodeRecord("machine-b", "boot-7", "e1")
    assert protocol.is_foreign(AGENT, record)
    assert protocol.register(AGENT, [], record) is None
    for free in (None, MISSING, record._replace(is_fenced=True), AGENT.record._replace(instance="boot-0")):
        assert not protocol.is_foreign(AGENT, free)
        assert protocol.register(AGENT, [], free) == NodeSwap(free, AGENT.record)


def test_fence_and_reclaim():
    """Blocks of a fenced node become free, in the epoch of the fence; a machine that booted is not fenced."""
    record = AGENT.record
    proof = protocol.prove("node-a", record, "e1", protocol.Evidence.POWERED_OFF)
    assert proof == protocol.Proof("node-a", record, "e1")
    fenced = record._replace(is_fenced=True)
    assert protocol.fence(proof, record) == NodeSwap(record, fenced)
    assert protocol.fence(proof, record._replace(instance="boot-2")) is None
    assert protocol.fence(proof, None) is None
    assert protocol.reclaim(MINE, fenced, "e1") == BlockSwap(MINE, BlockRecord("", TOKEN))
    assert protocol.reclaim(MINE, record, "e1") is None
    assert protocol.reclaim(MINE, None, "e1") is None
    assert protocol.reclaim(MINE, fenced, "e2") is None
    assert protocol.reclaim(FREE, fenced, "e1") is None


def test_candidates():
    """Each node tries numbers of blocks in the pool, in an order of its own."""
    assert list(protocol.candidates("node-a", 64)) != list(protocol.candidates("node-b", 64))
    assert list(protocol.candidates("node-a", 64)) == list(protocol.candidates("node-a", 64))
    assert set(protocol.candidates("node-a", 64)) <= set(range(64))
    assert len(set(protocol.candidates("node-a", 64))) > 32
