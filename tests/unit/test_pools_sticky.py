"""Sticky addresses, with the real manager and host-local over a double of the store: a pod keeps its address."""

from collections import Counter
from ipaddress import ip_network
from itertools import product
from typing import Any

import pytest

from agent.pools import reclaim
from agent.pools.block_protocol import BlockRecord, Evidence, Token
from agent.pools.grants_file import BlockState
from agent.pools.key_search import MAX_TRIES, KeySearch
from agent.pools.network_blocks import NetworkBlocks
from agent.pools.pods import parse_pod
from agent.pools.space import parse_space
from agent.pools.store import BlockNote, Stored
from tests.pools_world.scenario import change_space, run, space_of
from tests.pools_world.walk import READ_FAULTS, SWAP_FAULTS, SWAPS
from tests.pools_world.world import World
from tests.support.store_double import Fault

ORDINARY: Any = {"name": "default", "cidrs": ["10.22.0.0/24"], "blockPrefixLengths": {"ipv4": 28}}
STICKY: Any = {"name": "data", "cidrs": ["10.24.0.0/26"], "namespaces": ["team-a"], "sticky": True}
POD, KEY = "team-a/db-0", "team-a/db-0@net"


@pytest.fixture
def world(tmp_path):
    """Two nodes that have registered, and watch their pods."""
    world = World(tmp_path, nodes=2, space=space_of(ORDINARY, STICKY))
    for node in world.nodes:
        run(node)
        schedule(node)
    return world


@pytest.fixture
def node(world):
    return world.nodes[0]


def schedule(node, *pods, **keys):
    """Lets the API server have these pods on a node, and its agent do what is due."""
    while node.manager is None:
        node.step()
    node.manager.set_pods({**{pod: pod for pod in pods}, **keys})
    run(node)


def add(node, pod=POD):
    return node.add(*pod.split("/"))


def address_of(answer):
    assert "ips" in answer, answer
    return answer["ips"][0]["address"]


def start(node):
    """Starts the pod on a node; returns its address."""
    schedule(node, POD)
    return address_of(add(node))


def delete(node):
    while node.pods:
        node.delete(0)


def sticky_blocks(world):
    """Returns the owner and the key of each sticky address in the store."""
    blocks = {block: stored for block, stored in world.store.list_blocks().items() if block.prefixlen == 32}
    return {str(block): (stored.value.owner, stored.note.key) for block, stored in blocks.items()}


def test_a_pod_has_its_address_before_add(world, node):
    """The address is claimed when the pod appears; ADD has the gateway of the node's ordinary block, and no request."""
    schedule(node, POD)
    world.store.requests.clear()
    answer = add(node)
    assert not world.store.requests
    (ip,) = answer["ips"]
    assert ip["address"].endswith("/32")
    (ordinary,) = [entry for entry in node.entries if not entry.key]
    assert ip["gateway"] == str(ordinary.gateway)
    block = ip_network(ip["address"])
    assert sticky_blocks(world) == {str(block): (node.node, KEY)}
    assert block in world.store.read_entry(node.node).value.networks


def test_a_pod_keeps_its_address_on_another_node(world):
    """Deleted on one node and created on another one, the pod has the same address, with a new generation."""
    first, second = world.nodes[:2]
    before = start(first)
    schedule(second, POD)
    answer = add(second)
    assert answer["code"] == 11
    assert f"its address {before.removesuffix('/32')} is still at node node-0" in answer["msg"]
    delete(first)
    schedule(first)
    assert sticky_blocks(world)[before] == ("", KEY)
    run(second, seconds=1.0)
    assert address_of(add(second)) == before
    assert sticky_blocks(world) == {before: (second.node, KEY)}
    assert world.store.read_block(ip_network(before)).value.token.generation == 2
    world.check()


def test_an_address_becomes_free_without_waiting(world, node):
    """Once the pod is gone and its address is released, the block is free: not after ten minutes."""
    address = start(node)
    schedule(node)  # the API server has no pod any more, but it runs
    assert sticky_blocks(world)[address][0] == node.node
    delete(node)
    run(node)
    assert sticky_blocks(world)[address] == ("", KEY)


def test_another_pod_never_gets_the_address(world, node):
    """A free address that has a key is claimed for no other key, also when the pool is full."""
    change_space(world, ORDINARY, {**STICKY, "cidrs": ["10.24.0.0/30"]})
    pods = [f"team-a/db-{number}" for number in range(5)]
    schedule(node, *pods)
    run(node, steps=200)
    used = {address_of(answer): pod for pod in pods if "ips" in (answer := add(node, pod))}
    assert len(used) == 4
    (late,) = set(pods) - set(used.values())
    assert "has no IPv4 address without a pod" in add(node, late)["msg"]
    delete(node)
    schedule(node, late)
    run(node, seconds=30.0)
    assert add(node, late)["code"] == 11
    assert {owner for owner, _ in sticky_blocks(world).values()} == {""}
    schedule(node, *used.values())
    assert {address_of(add(node, pod)): pod for pod in used.values()} == used


def test_pods_of_other_namespaces_get_ordinary_addresses(node):
    """Neither a pod of another namespace nor another pod of this one gets a granted sticky address."""
    schedule(node, POD)
    assert address_of(add(node, "team-b/web")).endswith("/28")
    answer = add(node, "team-a/db-1")
    assert answer["code"] == 11
    assert "pod team-a/db-1 waits for its address of pool data: podwire-agent has not claimed it yet" in answer["msg"]
    assert address_of(add(node)).endswith("/32")


def test_the_next_container_of_a_pod_waits_for_the_former_one(node):
    """Two containers never have the address of one pod."""
    schedule(node, POD)
    add(node)
    answer = add(node)
    assert answer["code"] == 11
    assert "its former container still has it" in answer["msg"]


def test_a_machine_that_is_cut_off_keeps_the_address_until_it_is_declared_off(world):
    """Another node waits for a proof that the machine is off, however long that takes."""
    first, second = world.nodes[:2]
    before = start(first)
    schedule(second, POD)
    run(second, steps=200, seconds=100.0)
    assert add(second)["code"] == 11
    suspect = reclaim.read_suspect(world.store, first.node)
    first.power_off()
    assert not reclaim.reclaim(world.store, suspect, Evidence.POWERED_OFF).problem
    assert sticky_blocks(world)[before] == ("", KEY)
    run(second, seconds=10.0)
    assert address_of(add(second)) == before
    first.boot()
    run(first)
    schedule(first, POD)
    assert add(first)["code"] == 11
    world.check()


def test_a_boot_keeps_the_address_for_its_pod(node):
    """After a boot the node claims the pod's address again; nothing is granted before."""
    before = start(node)
    node.power_off()
    node.boot()
    assert add(node)["code"] == 11
    node.collect()
    run(node)
    assert start(node) == before


@pytest.mark.parametrize(
    ("request_name", "fault"), [*product(SWAPS, SWAP_FAULTS), *product(("read_block", "read_space"), READ_FAULTS)]
)
def test_faults_change_no_address(world, fault, request_name):
    """Whatever request fails at a move, in whatever way, the pod has its address in the end, and no other pod."""
    first, second = world.nodes[:2]
    before = start(first)
    delete(first)
    for node, pods in ((first, ()), (second, (POD,))):
        world.store.fail_next(fault, request_name)
        schedule(node, *pods)
        while world.store.late:
            world.store.deliver_late()
            world.check()
        schedule(node, *pods)
        run(node, seconds=5.0)
        world.store._faults.clear()
        world.check()
    assert address_of(add(second)) == before
    assert sticky_blocks(world) == {before: (second.node, KEY)}
    world.check()


def test_pods_without_a_watch_keep_what_they_have(world, node):
    """An agent that has not seen its pods yet claims no address and gives none back."""
    address = start(node)
    delete(node)
    node.crash()
    run(node, steps=200, seconds=10.0)
    assert sticky_blocks(world)[address][0] == node.node
    assert address_of(add(node)) == address


def test_a_lost_file_is_created_again_from_the_store(node):
    """The keys in the store say which addresses the node's pods have."""
    address = start(node)
    delete(node)
    node.lose_file()
    run(node)
    assert start(node) == address


def test_an_address_that_got_a_key_meanwhile_is_left(world, node):
    """A claim without an answer is not repeated for a block that has become another pod's since."""
    world.store.fail_next(Fault.NOT_EXECUTED, "swap_block")
    while node.manager is None:
        node.step()
    node.manager.set_pods({POD: POD})
    while not any(entry.key for entry in node.entries):
        node.step()
    node.step()
    (block,) = [entry.block for entry in node.entries if entry.key]
    other = BlockNote(key="team-a/other@net")
    world.store.swap_block(block, world.store.read_block(block), BlockRecord("", Token("epoch-0", 1)), other)
    run(node, seconds=1.0)
    assert address_of(add(node)) != str(block)
    assert sticky_blocks(world)[str(block)] == ("", other.key)


def test_an_address_that_was_reserved_meanwhile_stays(world, node, monkeypatch):
    """An ADD between the agent's look and its lock keeps the address granted."""
    address = start(node)
    monkeypatch.setattr(NetworkBlocks, "count_used", lambda self: Counter())
    schedule(node)
    assert sticky_blocks(world)[address][0] == node.node
    world.check()


def test_without_a_gateway_nothing_is_granted(tmp_path):
    """A node whose ordinary pool lacks the IP version says so, and gives the address back with the pod."""
    ordinary = {"name": "default", "cidrs": ["fd00:22::/120"], "blockPrefixLengths": {"ipv6": 124}}
    world = World(tmp_path, nodes=1, space=space_of(ordinary, STICKY))
    node = world.nodes[0]
    schedule(node, POD)
    assert "the network has no block of its own pool yet" in add(node)["msg"]
    schedule(node)
    assert set(sticky_blocks(world).values()) == {("", KEY)}


def test_a_second_pod_of_a_key_waits_for_the_first(node):
    """Of two pods with one key on a node, the second gets the address when the first is gone."""
    one, other = "team-a/launcher-1", "team-a/launcher-2"
    schedule(node, **{one: "team-a/vm:db"})
    address = address_of(add(node, one))
    schedule(node, **{one: "team-a/vm:db", other: "team-a/vm:db"})
    assert f"is still that of pod {one} on this node" in add(node, other)["msg"]
    delete(node)
    schedule(node, **{other: "team-a/vm:db"})
    assert address_of(add(node, other)) == address


def test_a_key_keeps_its_address_when_the_pool_grows(world, node):
    """A CIDR at the end of the list changes no address."""
    pods = [f"team-a/db-{number}" for number in range(12)]
    schedule(node, *pods)
    run(node, steps=120)
    before = {pod: address_of(add(node, pod)) for pod in pods}
    delete(node)
    schedule(node)
    run(node, steps=120)
    change_space(world, ORDINARY, {**STICKY, "cidrs": [*STICKY["cidrs"], "10.25.0.0/24"]})
    schedule(node, *pods)
    run(node, steps=120)
    assert {pod: address_of(add(node, pod)) for pod in pods} == before


def test_a_full_pool_is_listed_once():
    """After some candidates that other pods have, the list of blocks gives the last one without a pod."""
    pool = parse_space(space_of(STICKY)).pools[0]
    used = Stored(BlockRecord("", Token("e", 1)), b"x", note=BlockNote(key="team-a/other@net"))
    blocks = {pool.block(4, number): used for number in range(64)}
    last = ip_network("10.24.0.9/32")
    del blocks[last]
    search = KeySearch("k@net", pool, 4)
    tried = 0
    while (block := search.next()) and block != last:
        search.use_block(block, blocks[block])
        tried += 1
    if block is None:
        assert tried == MAX_TRIES
        search.use_list(blocks)
        assert search.next() == last
    full = KeySearch("k@net", pool, 4)
    full.use_list({**blocks, last: used})
    assert full.next() is None
    assert full.is_exhausted


def pod_document(spec=None, status=None, **metadata):
    return {"metadata": {"namespace": "team-a", "name": "db-0", **metadata}, "spec": spec or {}, "status": status or {}}


@pytest.mark.parametrize(
    ("document", "key", "has_address"),
    [
        (pod_document(), "team-a/db-0", True),
        (pod_document(annotations={"podwire.io/sticky-key": "primary"}), "team-a/primary", True),
        (pod_document(annotations={"podwire.io/sticky-key": "a/b"}), "", True),
        (pod_document(labels={"vm.kubevirt.io/name": "machine"}), "team-a/vm:machine", True),
        (pod_document(labels={"kubevirt.io/domain": "machine"}), "team-a/vm:machine", True),
        (pod_document(spec={"hostNetwork": True}), "team-a/db-0", False),
        (pod_document(status={"phase": "Succeeded"}), "team-a/db-0", False),
    ],
)
def test_the_key_of_a_pod(document, key, has_address):
    """The key is the pod's name, the annotation's value, or the name of the virtual machine."""
    assert parse_pod(document) == ("team-a/db-0", key, has_address)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"namespaces": []}, 'no "namespaces"'),
        ({"blockPrefixLengths": {"ipv4": 31}}, "one address"),
        ({"sticky": "yes"}, "neither true nor false"),
    ],
)
def test_a_sticky_pool_that_makes_no_sense_is_refused(change, problem):
    """A sticky pool has namespaces and blocks of one address."""
    with pytest.raises(ValueError, match=problem):
        parse_space(space_of({**STICKY, **change}))


def test_the_network_itself_names_no_sticky_pool(tmp_path):
    """A network whose own pool is sticky is reported: pods of other namespaces would have no address."""
    world = World(tmp_path, nodes=1, space=space_of({**STICKY, "name": "default"}))
    run(world.nodes[0])
    assert "pool default is sticky" in world.nodes[0].reports.last_problems[0]
    assert not [entry for entry in world.nodes[0].entries if entry.state is BlockState.GRANTED]
