"""Stores whose transactions read the space when they change a block: one request less for a claim."""

from __future__ import annotations

from agent.pools.block_protocol import FREE, Outcome
from agent.pools.space import Space
from agent.pools.store import Stored
from tests.cluster.test_store_contract import BLOCK, NOTE, POOLS, A, owned


def test_a_change_of_a_block_may_have_the_space(server):
    """A store whose transaction reads the space has the one of the change's time; the others leave it out."""
    store = server.connect(server.url)
    assert store.swap_block(BLOCK, Stored(FREE), owned(A, 1), NOTE).space is None
    spaces = []
    for generation, epoch in ((2, "epoch-1"), (3, "epoch-2")):
        assert store.swap_space(store.read_space(), Space(epoch, POOLS)).outcome is Outcome.SUCCEEDED
        spaces.append(store.swap_block(BLOCK, store.read_block(BLOCK), owned(A, generation), NOTE).space)
    expected = [Space("epoch-1", POOLS), Space("epoch-2", POOLS)]
    assert spaces == (expected if server.has_transactions else [None, None])
    assert store.swap_block(BLOCK, Stored(FREE), owned(A, 4), NOTE).space is None
