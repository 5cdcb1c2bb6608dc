"""The manager of blocks when a person edits its objects and files while it runs."""

import json
import os
from pathlib import Path

import pytest

from agent.pools.documents import parse_entry
from agent.pools.space import parse_space
from tests.pools_world.scenario import POOL, addresses, blocks_of, run, space_of
from tests.pools_world.world import World


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, nodes=2, space=space_of(POOL))


@pytest.fixture
def node(world):
    run(world.nodes[0])
    return world.nodes[0]


def test_a_damaged_entry_is_called_damaged_and_its_fix_works(world, node):
    """The message does not blame another machine; the entry that it prints is completed by the agent."""
    world.store.put_raw(f"nodes/{node.node}", b"[1,2")
    node.manager.entry_changed()
    run(node)
    (problem,) = node.reports.last_problems
    assert problem.startswith(f"entry of node {node.node} is not valid: it is not JSON")
    assert "machine-0" not in problem
    fix = problem[problem.index("{") : problem.index("}") + 1]
    assert parse_entry(json.loads(fix))
    world.store.put_raw(f"nodes/{node.node}", fix.encode())
    run(node, steps=60, seconds=10.0)
    assert node.reports.last_problems == ()
    assert world.store.read_entry(node.node).value.record.machine == "machine-0"


def test_an_edited_entry_is_corrected(world, node):
    """The agent writes its networks and addresses again; a change of its own causes no request."""
    before = world.store.read_entry(node.node)
    world.store.requests.clear()
    node.manager.entry_changed(before.value)
    run(node)
    assert not world.store.requests
    edited = before.value._replace(networks=(), name="other")
    world.store.swap_entry(node.node, before, edited)
    node.manager.entry_changed(edited)
    run(node)
    assert world.store.read_entry(node.node).value == before.value


@pytest.mark.parametrize("content", [None, b"", b"{"])
def test_a_file_that_was_lost_under_a_running_agent_is_built_again(node, content):
    """A grants file that is deleted or damaged is written again at once; until then nothing is allocated."""
    node.add()
    before, blocks = addresses(node), blocks_of(node)
    path = Path(node.grants_path)
    os.unlink(path) if content is None else path.write_bytes(content)
    assert "ips" not in node.add()
    run(node)
    assert blocks_of(node) == blocks
    assert "ips" in node.add()
    assert before < addresses(node)


def test_one_exhausted_ip_version_of_two_is_reported(tmp_path):
    """A dual-stack pool whose IPv4 CIDRs all drain is reported, although IPv6 has free blocks."""
    cidrs = ["10.22.0.0/26", "fd00:22::/120"]
    pool = {"name": "default", "cidrs": cidrs, "blockPrefixLengths": {"ipv4": 28, "ipv6": 124}}
    world = World(tmp_path, nodes=1, space=space_of({**pool, "draining": cidrs[:1]}))
    run(world.nodes[0], steps=60, seconds=1.0)
    assert any("no IPv4 block that may be claimed" in text for text in world.nodes[0].reports.last_problems)


def test_a_block_that_drains_while_it_is_claimed_is_not_granted(world, node):
    """The space changes between the agent's read and its claim: the transaction shows it, and the block is not used."""
    before = set(blocks_of(node))
    space = parse_space(space_of({**POOL, "draining": POOL["cidrs"]}))
    world.store.swap_space(world.store.read_space(), space)
    for _ in range(40):  # the agent does not know of the change
        node.add()
    run(node, steps=100)
    assert set(blocks_of(node)) <= before
