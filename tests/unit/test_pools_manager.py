"""The manager of blocks with the real host-local and a double of the store: how many blocks, routes and gateways.

The last tests are about a person who edits its objects and files while it runs.
"""

import json
import os
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from agent.pools.documents import parse_entry
from agent.pools.grants_file import BlockState
from agent.pools.identity import NodeIdentity
from agent.pools.network_blocks import NetworkBlocks, NetworkOptions
from agent.pools.space import parse_space
from ipam.host_local.store import ReservationStore as Reservations
from tests.pools_world.scenario import POOL, addresses, blocks_of, change_space, run, space_of
from tests.pools_world.world import World


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, nodes=2, space=space_of(POOL))


@pytest.fixture
def node(world):
    run(world.nodes[0])
    world.nodes[0].time_s += 60.0  # so that it claims one block at a time
    return world.nodes[0]


@pytest.mark.parametrize(("reads_space", "reads"), [(True, 1), (False, 2)])
def test_a_start_takes_few_requests(world, reads_space, reads):
    """A new node has its first block after five requests, six without the space in the answer, and then makes none."""
    world.store.reads_space = reads_space
    world.store.requests.clear()
    run(world.nodes[0])
    assert dict(world.store.requests) == {"read_space": reads, "swap_entry": 2, "list_entries": 1, "swap_block": 1}
    world.store.requests.clear()
    run(world.nodes[0], steps=500, seconds=0.5)
    assert not world.store.requests


def test_pods_make_no_request_until_blocks_are_needed(world, node):
    """ADD and DEL make no request; the next block is claimed when less than a quarter of one is free."""
    world.store.requests.clear()
    for _ in range(8):
        assert "ips" in node.add()
    run(node)
    assert not world.store.requests
    assert len(blocks_of(node)) == 1
    for _ in range(3):
        node.add()
    run(node)
    assert len(blocks_of(node)) == 2
    assert world.store.requests["swap_block"] <= 2


def test_a_growing_node_gets_two_blocks_at_once(world, node):
    """A second claim within a minute brings two blocks with one change of the entry; later claims one again."""
    for seconds, pods, blocks in ((0.0, 13, 2), (0.0, 27, 4), (60.0, 52, 5)):
        node.time_s += seconds
        world.store.requests.clear()
        while len(node.pods) < pods:
            assert "ips" in node.add()
        run(node)
        assert len(blocks_of(node)) == blocks
        assert world.store.requests["swap_entry"] == 1


@pytest.mark.parametrize("reads_space", [True, False])
def test_a_burst_is_answered_at_once(world, node, reads_space):
    """ADDs without an address are counted: the agent claims as many blocks as they need, with one read of the epoch."""
    world.store.reads_space = reads_space
    codes = [node.add().get("code") for _ in range(60)]
    assert codes.count(None) == 13
    world.store.requests.clear()
    run(node)
    assert len(blocks_of(node)) == 5
    assert world.store.requests["read_space"] == (not reads_space)
    assert world.store.requests["swap_entry"] == 1
    assert not Path(node.grants_path.replace(".grants", ".demand-default")).exists()
    assert all("ips" in node.add() for _ in range(47))


def test_one_gateway_serves_all_blocks(world, node):
    """All blocks of a network have the gateway that the first one brought, and it is never allocated."""
    for _ in range(60):
        node.add()
    run(node)
    for _ in range(47):
        node.add()
    gateways = {entry.gateway for entry in node.entries}
    assert len(gateways) == 1
    assert str(gateways.pop()) not in addresses(node)
    assert len(addresses(node)) == 60


def test_unused_blocks_become_free_after_ten_minutes(world, node):
    """Two wholly free blocks for ten minutes are one too many; that of the gateway stays."""
    for _ in range(60):
        node.add()
    run(node)
    gateway = node.entries[0].gateway
    while node.pods:
        node.delete(0)
    run(node, steps=100, seconds=5.0)
    assert len(blocks_of(node)) == 5
    run(node, steps=100, seconds=5.0)
    assert [gateway in ip_network(block) for block in blocks_of(node)] == [True]
    owners = [stored.value.owner for stored in world.store.list_blocks().values()]
    assert sorted(owners) == ["", "", "", "", node.node]
    assert world.store.read_entry(node.node).value.networks == (ip_network(blocks_of(node)[0]),)


def test_routes_come_before_the_grant_and_go_before_the_return(world, node):
    """A block is in the node's entry before pods get its addresses, and out of it before it is free."""
    for _ in range(13):
        node.add()
    seen = set()
    for moment in range(500):
        node.step()
        node.time_s += 3.0
        if moment == 50:
            while node.pods:
                node.delete(0)
        published = set(world.store.read_entry(node.node).value.networks)
        granted = {entry.block for entry in node.entries if entry.state is BlockState.GRANTED}
        free = {block for block, stored in world.store.list_blocks().items() if not stored.value.owner}
        assert granted <= published
        assert not free & published
        seen.add((len(granted), len(free)))
    assert {(1, 0), (2, 0), (1, 1)} <= seen


def test_a_draining_cidr_is_emptied(world, node):
    """From a draining block nothing is allocated; when its last pod is gone it becomes free."""
    node.add()
    (old,) = blocks_of(node)
    change_space(world, {**POOL, "cidrs": ["10.22.0.0/24", "10.23.0.0/24"], "draining": ["10.22.0.0/24"]})
    run(node)
    assert blocks_of(node, BlockState.DRAINING) == [old]
    answer = node.add()
    assert answer["ips"][0]["address"].startswith("10.23.0.")
    assert ip_network(old) in world.store.read_entry(node.node).value.networks
    for _ in range(2):
        node.delete(0)
    run(node)
    assert not blocks_of(node, BlockState.DRAINING)
    assert world.store.read_block(ip_network(old)).value.owner == ""


def test_excluded_addresses_make_holes(world):
    """A block with holes is several ranges, and no excluded address is allocated."""
    change_space(world, {**POOL, "cidrs": ["10.22.0.0/28"], "excluded": ["10.22.0.4/31", "10.22.0.1/32"]})
    node = world.nodes[0]
    run(node)
    while "ips" in node.add():
        pass
    assert {ip_address(text) for text in addresses(node)} == {
        ip_address(f"10.22.0.{last}") for last in range(3, 15) if last not in (4, 5)
    }


def test_a_segment_has_the_pools_prefix_length_and_gateway(world):
    """In the mode "segment" a pod has the CIDR's prefix length and gateway, and no node announces routes."""
    change_space(world, {**POOL, "mode": "segment", "gateways": ["10.22.0.254"]})
    for node in world.nodes:
        run(node)
        answer = node.add()
        assert answer["ips"][0]["address"].endswith("/24")
        assert answer["ips"][0]["gateway"] == "10.22.0.254"
        assert world.store.read_entry(node.node).value.networks == ()


def test_dual_stack_pods_get_both_addresses(world):
    """A pool of two IP versions has blocks of both on each node."""
    change_space(world, {**POOL, "cidrs": ["10.22.0.0/24", "fd00:22::/112"]})
    node = world.nodes[0]
    run(node)
    assert [len(ip["address"].split(":")) > 1 for ip in node.add()["ips"]] == [False, True]


def test_a_pool_of_namespaces_is_claimed_on_demand(world):
    """A pool with namespaces has no block until a pod of them needs one, and none again ten minutes after the last."""
    team = {**POOL, "name": "team", "cidrs": ["10.30.0.0/24"], "namespaces": ["a"]}
    change_space(world, POOL, team)
    node = world.nodes[0]
    run(node)
    assert not [block for block in blocks_of(node) if block.startswith("10.30")]
    answer = node.add("a")
    assert (answer["code"], answer["msg"]) == (11, "this node has no granted block of pool team for IPv4")
    run(node)
    assert node.add("a")["ips"][0]["address"].startswith("10.30.0.")
    assert node.add("b")["ips"][0]["address"].startswith("10.22.0.")


def test_pools_that_arrive_late_are_used_at_once(tmp_path):
    """A node that has waited for pools for an hour does not wait for its next try, which may be a minute away."""
    world = World(tmp_path, nodes=1)
    (node,), space = world.nodes, world.store.objects["space"]
    world.store.put_raw("space", b"")
    run(node, seconds=60.0)
    run(node, steps=1)  # a try that fails
    assert blocks_of(node) == []
    world.store.put_raw("space", space)
    world._report_space()
    run(node, seconds=0.1)
    assert blocks_of(node) != []


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


@pytest.mark.timeout(60)
def test_the_agent_never_waits_for_the_lock_of_the_plugins(tmp_path):
    """It goes on while a stopped plugin holds the lock, and with a FIFO in its place: no signal would end its wait."""
    network = NetworkBlocks(
        NetworkOptions("net", "default", f"{tmp_path}/leases"), NodeIdentity("0" * 32, "m1", "boot-1")
    )
    with Reservations(f"{tmp_path}/leases", "net").locked():
        assert not network.save_locked(lambda grants: grants)
    lock = tmp_path / "leases/net/lock"
    lock.unlink()
    os.mkfifo(lock)
    assert network.save_locked(lambda grants: grants)


@pytest.mark.every_case
@pytest.mark.parametrize("content", [None, b"", b"{"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_lost_file_is_built_again(node, content, restarts):
    """A grants file that is deleted or damaged is written again, also by a new agent; until then it grants nothing."""
    node.add()
    before, blocks = addresses(node), blocks_of(node)
    path = Path(node.grants_path)
    os.unlink(path) if content is None else path.write_bytes(content)
    if restarts:
        node.crash()
    assert node.add()["code"] == (11 if content is None else 5)
    run(node)
    assert blocks_of(node) == blocks
    assert node.entries[0].token.generation == 2
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
