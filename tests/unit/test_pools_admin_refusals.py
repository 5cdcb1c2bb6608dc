"""Statements and pools that would give one address to two pods, and that the store alone cannot refute."""

import pytest

from agent.pools.admin_changes import Refusal, reclaim_node, replace_pools
from agent.pools.block_protocol import Evidence, NodeRecord
from agent.pools.cluster_view import digest_of_record
from agent.pools.store import NodeEntry
from tests.support.admin_world import DEFAULT, EPOCH, ONE, THREE, TWO, healthy

RUNNING = NodeRecord("machine-2", "boot-2/", EPOCH)


@pytest.fixture
def world():
    return healthy()


def reclaim_two(world):
    record = digest_of_record(world.store.read_entry(TWO).value.record, EPOCH)
    return reclaim_node(world.store, world.report, TWO, record, Evidence.POWERED_OFF)


def register(world, record):
    entry = NodeEntry(record, "worker-2")
    world.store.swap_entry(THREE, world.store.read_entry(THREE), entry)


def test_reclaim_of_an_earlier_id_of_this_node_is_refused(world):
    """After node-id was deleted the machine still runs, with the same boot; after a boot the old ID is free."""
    world.store.swap_entry(TWO, world.store.read_entry(TWO), NodeEntry(RUNNING, "worker-2"))
    world.report = world.report._replace(node=THREE, name="worker-2", machine="machine-2", boot="boot-2")
    with pytest.raises(Refusal, match="earlier ID of node worker-2"):
        reclaim_two(world)
    assert world.owners()["10.22.0.64/26"] == TWO
    world.report = world.report._replace(boot="boot-9")
    assert not reclaim_two(world).problem


def test_reclaim_of_an_earlier_id_of_another_node_is_refused(world):
    """The entry of the new ID says that the machine runs, too, until it has booted."""
    world.store.swap_entry(TWO, world.store.read_entry(TWO), NodeEntry(RUNNING, "worker-2"))
    register(world, RUNNING)
    with pytest.raises(Refusal, match="earlier ID of node worker-2"):
        reclaim_two(world)
    assert world.owners()["10.22.0.64/26"] == TWO
    register(world, RUNNING._replace(instance="boot-9/"))
    assert not reclaim_two(world).problem


def test_created_space_fits_the_blocks_that_nodes_have(world):
    """A space that was deleted is not created again with blocks of another size while nodes have blocks."""
    world.store.put_raw("space", b"")
    pools = {"pools": [DEFAULT | {"blockPrefixLengths": {"ipv4": 28}}]}
    with pytest.raises(Refusal, match=r"10\.22\.0\.0/26, which a node has, overlaps"):
        replace_pools(world.store, world.report, pools, current="", dry_run=False)
    assert world.owners()["10.22.0.0/26"] == ONE
