"""The faults that the agent reports of blocks, entries and space."""

import pytest

from agent.pools.block_protocol import MISSING
from agent.pools.cluster_check import find_faults
from agent.pools.cluster_view import read_cluster
from agent.pools.store import NodeEntry
from tests.support.admin_world import DEFAULT, ONE, THREE, TWO, healthy


@pytest.fixture
def world():
    return healthy()


def findings(world):
    return find_faults(read_cluster(world.store))


def the_finding(world):
    """Returns the only finding."""
    (finding,) = findings(world)
    return finding


def test_healthy_cluster_has_no_findings(world):
    """A cluster without faults has no findings, also with a fenced node without blocks and with free blocks."""
    world.add_node(THREE, fenced=True)
    world.claim(THREE, "10.22.0.192/26")
    world.claim("", "10.22.0.192/26")
    assert findings(world) == []


def test_block_of_a_node_without_an_entry(world):
    """A block of a node without an entry is reported, with the command that shows what a reclaim does."""
    world.claim(THREE, "10.22.0.128/26", "10.22.0.192/26")
    finding = the_finding(world)
    assert (finding.kind, finding.subject) == ("no entry", THREE)
    assert "block 10.22.0.128/26 and 1 more" in finding.text
    assert finding.fix.endswith(f"podwire ipam reclaim --node {THREE}")


def test_block_of_a_fenced_node(world):
    """A block that a fenced node still has is reported."""
    world.add_node(TWO, "10.22.0.64/26", fenced=True)
    assert the_finding(world).kind == "fenced owner"


def test_block_of_no_pool(world):
    """A block that is of no pool is reported, also after the block size was changed by hand."""
    world.set_space({**DEFAULT, "cidrs": ["10.22.0.0/26"]})
    assert [(item.kind, item.subject) for item in findings(world)] == [("no pool", "10.22.0.64/26")]
    world.set_space({**DEFAULT, "blockPrefixLengths": {"ipv4": 27}})
    assert {item.kind for item in findings(world)} == {"no pool"}


def test_overlapping_blocks(world):
    """Blocks that overlap are reported, also when a smaller one is between them."""
    world.add_node(ONE, "10.22.0.0/26")
    world.claim(TWO, "10.22.0.0/28", "10.22.0.32/28")
    overlaps = [item for item in findings(world) if item.kind == "overlap"]
    assert [item.subject for item in overlaps] == ["10.22.0.0/28", "10.22.0.32/28"]
    assert "drain node worker-2" in overlaps[0].fix


@pytest.mark.parametrize(("block", "owner"), [("10.22.0.64/26", "node worker-2"), ("10.22.0.192/26", "no node")])
def test_entry_with_a_block_of_another(world, block, owner):
    """An entry that lists a block which its node does not have is reported: routes follow the entries."""
    world.add_node(ONE, "10.22.0.0/26", block)
    finding = the_finding(world)
    assert (finding.kind, finding.subject) == ("foreign network", block)
    assert owner in finding.text
    assert "restart podwire-agent on worker-1" in finding.fix


def test_records_of_an_old_epoch(world):
    """A node of an old epoch, also a fenced one, and a node that joined after the backup are reported: others wait."""
    world.set_space(epoch="e2")
    world.add_node(ONE, "10.22.0.0/26", epoch="e2")
    world.add_node(TWO, "10.22.0.64/26", fenced=True)
    world.store.swap_entry(THREE, world.store.read_entry(THREE), NodeEntry(MISSING))
    assert [(item.kind, item.subject) for item in findings(world)] == [("old epoch", TWO), ("old epoch", THREE)]
    assert "joined after the backup" in findings(world)[1].text


def test_two_entries_with_one_name(world):
    """Two nodes with one name are reported unless one is fenced."""
    world.add_node(THREE, name="worker-1")
    finding = the_finding(world)
    assert (finding.kind, finding.subject) == ("two entries", "worker-1")
    world.add_node(THREE, name="worker-1", fenced=True)
    assert findings(world) == []


def test_objects_that_are_not_valid(world):
    """Damaged objects are reported with their fixes, and as no other fault."""
    world.store.put_raw("blocks/0a160080-26", b'{"owner": 5}')
    world.store.put_raw("blocks/nonsense", b"{}")
    assert [item.kind for item in findings(world)] == ["invalid object", "invalid object"]
    assert all(item.fix and "; fix:" not in item.text for item in findings(world))


def test_space_that_is_not_valid_or_missing(world):
    """A space that is damaged or does not exist is reported."""
    world.store.put_raw("space", b'{"pools": 1}')
    assert {item.kind for item in findings(world)} == {"invalid object"}
    world.store.put_raw("space", b"")
    assert {item.kind for item in findings(world)} == {"no space"}
