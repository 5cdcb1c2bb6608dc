"""The manager of blocks when something fails: boots, copies, death, restores, lost files, refusals."""

import json
import os
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from agent.pools import grants_file, reclaim
from agent.pools.block_protocol import FREE, BlockRecord, Evidence, NodeRecord, SwapOutcome, Token
from agent.pools.grants_file import BlockState
from agent.pools.store import BlockNote, NodeEntry, Stored
from ipam.host_local import grants as plugin_format
from tests.pools_world.scenario import POOL, addresses, blocks_of, change_space, run, space_of
from tests.pools_world.world import World
from tests.support.store_double import Fault


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, nodes=2, space=space_of(POOL))


@pytest.fixture
def node(world):
    run(world.nodes[0])
    world.nodes[0].time_s += 60.0  # so that it claims one block at a time
    return world.nodes[0]


def test_a_boot_ends_all_grants(world, node):
    """After a boot nothing is allocated before the store answers; then the same blocks are claimed anew."""
    node.add()
    before = blocks_of(node)
    node.power_off()
    node.boot()
    world.store.fail_next(Fault.UNREACHABLE, times=100)
    for _ in range(5):
        node.step()
        node.time_s += 100.0
    answer = node.add()
    assert answer["code"] == 11
    world.store._faults.clear()
    run(node, seconds=10.0)
    assert blocks_of(node) == before
    assert node.entries[0].token.generation == 2
    assert "ips" in node.add()


def test_without_the_store_pods_start_until_the_blocks_are_full(world, node):
    """While the store is down ADD goes on; then its error has the numbers, the last contact and the cause."""
    world.store.fail_next(Fault.UNREACHABLE, times=10_000)
    node.time_s += 700.0
    answers = [node.add() for _ in range(14)]
    world._report_space()
    run(node, steps=300, seconds=1.0)
    assert all("ips" in answer for answer in answers[:13])
    assert (answers[13]["code"], "13 of 13 in use" in answers[13]["msg"]) == (11, True)
    assert "no connection: refused" in node.add()["details"]
    assert "no connection: refused" in node.reports.last_problems[0]
    world.store._faults.clear()
    run(node, steps=300, seconds=1.0)
    assert node.reports.last_problems == ()
    assert grants_file.read(node.grants_path).problem == ""


def test_a_copied_disk_is_refused(world, node):
    """A machine with another one's disk makes no request; with a node-id of its own it is a node."""
    world.copy_disk(0)
    copy = world.nodes[2]
    world.store.requests.clear()
    run(copy, steps=20, seconds=100.0)
    assert not world.store.requests
    (problem,) = copy.reports.last_problems
    assert f"node-id is of another machine: node {node.node} is machine-0, and this machine is machine-2" in problem
    os.unlink(f"{copy.root}/state/node-id")
    run(copy)
    assert copy.reports.last_problems == ()
    assert not set(blocks_of(copy)) & set(blocks_of(node))
    world.check()


def test_the_record_of_another_machine_is_not_changed(world, node):
    """The store's record refuses a copy, too, whose node-id file a person has changed by hand."""
    world.copy_disk(0)
    copy = world.nodes[2]
    Path(f"{copy.root}/state/node-id").write_text(json.dumps({"node": node.node, "machine": "machine-2"}))
    run(copy, steps=20, seconds=100.0)
    assert copy.entries == ()
    (problem,) = copy.reports.last_problems
    assert problem.startswith(f"node ID {node.node} belongs to another machine (machine-0; this one is machine-2)")
    assert world.store.read_entry(node.node).value.record.machine == "machine-0"


def test_a_new_uid_of_the_node_object_is_registered(world, node):
    """A running agent whose Node object got another UID changes its record, and keeps its blocks."""
    node.add()
    before = node.entries
    node.rename()
    run(node)
    assert world.store.read_entry(node.node).value.record.instance == "boot-0-1/uid-2"
    assert node.entries == before


def test_a_lost_block_is_stopped_and_reported_with_its_pods(world, node):
    """A machine that was declared dead while it ran stops the block at once, and names the pods to delete."""
    node.add()
    (address,) = addresses(node)
    (block,) = map(ip_network, blocks_of(node))
    suspect = reclaim.read_suspect(world.store, node.node)
    assert reclaim.reclaim(world.store, suspect, Evidence.POWERED_OFF).blocks == (block,)
    node.manager.entry_changed()
    run(node)
    assert blocks_of(node, BlockState.LOST) == [str(block)]
    (event,) = node.reports.events
    assert f"block {block} of pool default is lost" in event
    assert f"{address} of container c0-1-1" in event
    assert any("declared dead while it ran" in text for text in node.reports.last_problems)
    assert blocks_of(node)[0] != str(block)
    node.delete(0)
    run(node)
    assert world.store.read_entry(node.node).value.record.is_fenced is False
    assert not blocks_of(node, BlockState.LOST)


@pytest.mark.parametrize("has_new_uid", [False, True])
def test_a_fence_ends_all_grants_before_the_blocks_become_free(world, node, has_new_uid):
    """A machine that was declared dead while it ran stops its blocks although the store still has them as its own."""
    node.add()
    (block,) = map(ip_network, blocks_of(node))
    stored = world.store.read_entry(node.node)  # a reclaim that is slow: it fences the node first
    fenced = stored.value._replace(record=stored.value.record._replace(is_fenced=True))
    assert world.store.swap_entry(node.node, stored, fenced).outcome is SwapOutcome.SUCCEEDED
    late = world.store.read_block(block)
    if has_new_uid:
        node.rename()
    node.manager.entry_changed()
    run(node)
    assert blocks_of(node, BlockState.LOST) == [str(block)]
    free = late.value._replace(owner="")
    assert world.store.swap_block(block, late, free, BlockNote()).outcome is SwapOutcome.SUCCEEDED
    answer = node.add()
    assert ip_address(answer["ips"][0]["address"].partition("/")[0]) not in block
    assert "declared dead while it runs" in node.reports.events[0]


def test_a_dead_nodes_blocks_become_free_by_proof_only(world, node):
    """Only a proof frees the blocks of a node, and none does when the machine has booted since the record was read."""
    block = ip_network(blocks_of(node)[0])
    suspect = reclaim.read_suspect(world.store, node.node)
    for evidence in (Evidence.NOT_READY, Evidence.SILENT, Evidence.NODE_DELETED):
        assert "is no proof" in reclaim.reclaim(world.store, suspect, evidence).problem
    node.power_off()
    node.boot()
    run(node)
    assert "it has registered since" in reclaim.reclaim(world.store, suspect, Evidence.POWERED_OFF).problem
    assert world.store.read_block(block).value.owner == node.node
    node.power_off()
    suspect = reclaim.read_suspect(world.store, node.node)
    done = reclaim.reclaim(world.store, suspect, Evidence.NODE_DELETED, deleted_is_off=True)
    assert done == reclaim.Reclaimed((block,))
    assert world.store.read_block(block).value.owner == ""
    assert world.store.read_entry(node.node).value.networks == ()
    assert (
        "no entry"
        in reclaim.reclaim(world.store, reclaim.read_suspect(world.store, "f" * 32), Evidence.POWERED_OFF).problem
    )


@pytest.mark.parametrize("fault", [Fault.NO_ANSWER, Fault.NOT_EXECUTED, Fault.LATE, Fault.TWICE])
def test_reclaiming_reads_back_what_had_no_answer(world, node, fault):
    """Answers that do not arrive only repeat the work: in the end all blocks are free, and the node is fenced."""
    node.power_off()
    suspect = reclaim.read_suspect(world.store, node.node)
    for request in ("swap_entry", "swap_block"):
        world.store.fail_next(fault, request)
    done = reclaim.reclaim(world.store, suspect, Evidence.POWERED_OFF)
    assert done.problem == ""
    assert all(stored.value.owner == "" for stored in world.store.list_blocks().values())
    assert world.store.read_entry(node.node).value.record.is_fenced


def test_a_restored_store_lends_no_block_until_it_is_recovered(world, node):
    """An agent that sees an older store claims nothing and says so; after `recover` it reasserts what it had."""
    world.save()
    for _ in range(13):
        node.add()
    run(node)
    assert len(blocks_of(node)) == 2
    node.rename()
    run(node)
    world.store.restore(world.backup)
    node.crash()
    run(node)
    assert node.reports.last_problems[0].startswith("the store was restored from a backup: run `podwire ipam recover`")
    assert len(blocks_of(node)) == 2
    assert "ips" in node.add()
    reclaim.recover(world.store, [node.node], "epoch-1")
    world._report_space()
    run(node)
    assert node.reports.last_problems == ()
    assert {entry.token.epoch for entry in node.entries} == {"epoch-1"}
    assert {stored.value.owner for stored in world.store.list_blocks().values()} == {node.node}


def test_an_agent_waits_for_the_nodes_that_have_not_reached_a_restored_store(world, node):
    """After `recover` an agent names the nodes for which it waits, and claims when they are there or declared dead."""
    other = world.nodes[1]
    run(other)
    other.power_off()
    reclaim.recover(world.store, [node.node, other.node])
    world._report_space()
    run(node)
    assert (
        "no block is claimed until these nodes have reached the restored store: node-1" in node.reports.last_problems[0]
    )
    suspect = reclaim.read_suspect(world.store, other.node)
    reclaim.reclaim(world.store, suspect, Evidence.POWERED_OFF)
    node.manager.others_changed()
    run(node)
    assert node.reports.last_problems == ()


def test_recover_names_nodes_that_the_backup_lacks(world, node):
    """A node that joined after the backup is waited for, although the restored store knows nothing of it."""
    world.save()
    other = world.nodes[1]
    run(other)
    other.add()
    world.store.restore(world.backup)
    reclaim.recover(world.store, [node.node, other.node])
    assert world.store.read_entry(other.node).value == NodeEntry(NodeRecord("", "", ""))
    world._report_space()
    node.crash()
    run(node)
    assert other.node in node.reports.last_problems[0]
    run(other)
    run(node, seconds=5.0)
    assert node.reports.last_problems == ()
    world.check()


def lose_file_and_restore(world):
    """Lets the only block of a pool be claimed after the backup, and loses the only file that knows of it."""
    node, other = world.nodes
    change_space(world, {**POOL, "cidrs": ["10.22.0.0/28"]})
    world.save()
    run(node)
    assert "ips" in node.add()
    node.lose_file()
    world.restore()
    for _ in range(60):
        node.step()
        if world.store.read_entry(node.node).value.record.epoch == "epoch-1":
            break
    run(other, seconds=2.0)
    run(node, seconds=2.0)
    other.add()


def test_a_lost_file_after_a_restore_stops_the_agent_while_pods_have_addresses(world):
    """If the store lacks the blocks of running pods, and no file has them, no node claims until the pods are gone."""
    lose_file_and_restore(world)
    node, other = world.nodes
    world.check()
    assert (len(node.pods), len(other.pods)) == (1, 0)
    (problem,) = node.reports.last_problems
    assert "network net has 1 reservations in no block of this node" in problem
    node.delete(0)
    for _ in range(3):
        run(node, seconds=2.0)
        run(other, seconds=2.0)
    assert "reservations" not in str(node.reports.last_problems)
    assert len(blocks_of(node) + blocks_of(other)) == 1


def test_an_exhausted_pool_is_reported_with_numbers(world):
    """A pool without free blocks is a problem with numbers; a block that becomes free is claimed a minute later."""
    change_space(world, {**POOL, "cidrs": ["10.22.0.0/28"]})
    for node in world.nodes:
        run(node)
    text = "pool default has no free IPv4 block: all 1 have owners"
    assert world.nodes[1].reports.last_problems[0].startswith(text)
    world.nodes[0].power_off()
    suspect = reclaim.read_suspect(world.store, world.nodes[0].node)
    reclaim.reclaim(world.store, suspect, Evidence.POWERED_OFF)
    run(world.nodes[1], seconds=2.0)
    assert world.nodes[1].reports.last_problems == ()
    assert blocks_of(world.nodes[1]) == ["10.22.0.0/28"]


def test_a_missing_pool_and_a_missing_space_are_reported(tmp_path):
    """A pool that the space lacks is named with those that exist; a store without a space says what to do."""
    world = World(tmp_path, nodes=1, space=space_of({**POOL, "name": "other"}))
    run(world.nodes[0])
    assert world.nodes[0].reports.last_problems == ("network net: there is no pool default; the space has other",)
    world.store.put_raw("space", b"")
    world._report_space()
    run(world.nodes[0], seconds=5.0)
    assert "podwire ipam pools --set" in world.nodes[0].reports.last_problems[0]


@pytest.mark.every_case
@pytest.mark.parametrize("outage_s", [0, 60, 300])
def test_a_damaged_block_is_left_alone(world, node, outage_s):
    """An object that was edited by hand is not claimed; a granted one is stopped by a start, or after an outage."""
    (block,) = map(ip_network, blocks_of(node))
    if outage_s:
        world.store.fail_next(Fault.UNREACHABLE, times=10_000)
        world._report_space()
        run(node, steps=20, seconds=outage_s / 20)
    world.store.put_raw(f"blocks/{block.network_address.packed.hex()}-{block.prefixlen}", b"{")
    if outage_s:
        world.store._faults.clear()
    else:
        node.crash()
    run(node, seconds=5.0)
    assert str(block) not in blocks_of(node)
    assert len(blocks_of(node)) == 1
    assert f"block {block}" in node.reports.events[0]


def test_a_block_of_no_pool_becomes_free(world, node):
    """A block that the space has lost is drained; a block of another size is reported, and never granted."""
    foreign = ip_network("10.99.0.0/26")
    world.store.swap_block(foreign, Stored(FREE), BlockRecord(node.node, Token("epoch-0", 5)), BlockNote())
    node.lose_file()
    run(node)
    assert str(foreign) not in blocks_of(node)
    assert world.store.read_block(foreign).value.owner == ""


def test_a_network_that_is_removed_gives_its_blocks_back(world, node):
    """The blocks of a network that is not configured any more become free when its pods are gone."""
    path = Path(node.grants_path)
    os.rename(path, path.with_name("old.grants"))
    node.crash()
    run(node)
    assert json.loads(path.read_text())["pools"][0]["blocks"]
    assert json.loads(path.with_name("old.grants").read_text())["pools"] == []


def test_refusals_are_repeated_slowly(world):
    """A change that is refused again and again, as without rights, is not repeated at once."""
    node = world.nodes[0]
    world.store.fail_next(Fault.UNREACHABLE, "swap_", times=10_000)
    run(node, steps=1000, seconds=0.5)
    assert sum(world.store.requests.values()) < 60
    assert "no connection: refused" in node.reports.last_problems[0]


def test_plugins_read_what_the_agent_writes(world, node):
    """Each file that the agent writes is one that plugins accept, with the same blocks."""
    for _ in range(40):
        node.add()
    run(node)
    content = Path(node.grants_path).read_bytes()
    grants = grants_file.parse(content)
    assert grants_file.parse(grants_file.format_grants(grants)) == grants
    (pool,) = plugin_format.parse(content).pools
    assert sum(len(one.ranges) for one in pool.range_sets) == len(grants.entries) == 3
