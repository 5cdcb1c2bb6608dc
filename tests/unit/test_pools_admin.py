"""What the agent answers to the operator's tool about pools, over a double of the store."""

import json
from ipaddress import ip_network

import pytest

from agent.pools.block_protocol import MISSING, AgentState, NodeRecord, after_records
from agent.pools.documents import DAMAGED_BLOCK
from agent.pools.store import NodeEntry
from tests.support.admin_world import DEFAULT, EPOCH, ONE, THREE, TWO, World, healthy, local_block
from tests.support.store_double import Fault


@pytest.fixture
def world() -> World:
    return healthy()


def get(world, path):
    """Returns the status and the document of a page."""
    page = world.admin.pages()[path]()
    return page.status, json.loads(page.body)


def post(world, action, **document):
    """Returns the status and the document of an action."""
    answer = world.admin.actions()[f"/pools/{action}"](json.dumps(document).encode())
    return answer.status, json.loads(answer.body)


def record_of(world, node):
    """Returns the digest of a node's record, as the tool reads it."""
    return next(item["record"] for item in get(world, "/pools/cluster")[1]["nodes"] if item["id"] == node)


def reclaim(world, node=TWO, record="", **more):
    """Reclaims the blocks of a node with the statement that it is powered off."""
    return post(world, "reclaim", **{"node": node, "record": record, "statement": "powered-off", **more})


def set_pools(world, *pools):
    """Replaces the pools as the tool does: a dry run, then the change."""
    status, change = post(world, "space", pools=list(pools), dryRun=True)
    if status != 200:
        return status, change
    return post(world, "space", pools=list(pools), current=change["current"])


def test_local_page_has_space_and_node(world):
    """The page has the space and this node's blocks with state, token, used and size, by one request."""
    world.store.requests.clear()
    status, document = get(world, "/pools")
    assert status == 200
    assert world.store.requests == {"read_space": 1}
    assert document["space"]["pools"][0]["name"] == "default"
    node = document["node"]
    assert (node["id"], node["name"], node["contactSeconds"], node["problems"]) == (ONE, "worker-1", 3, [])
    assert node["networks"] == [{"network": "podnet", "pool": "default"}]
    expected = {"network": "podnet", "block": "10.22.0.0/26", "pool": "default", "state": "granted"}
    assert node["blocks"] == [{**expected, "epoch": EPOCH, "generation": 1, "used": 2, "size": 61}]


def test_local_page_without_a_store(world):
    """While the store does not answer the page has this node's blocks, and the problem."""
    world.store.fail_next(Fault.UNREACHABLE)
    status, document = get(world, "/pools")
    assert (status, document["space"], len(document["node"]["blocks"])) == (200, None, 1)
    assert "the store does not answer" in document["problem"]


def test_cluster_page_has_everything(world):
    """The page has pools with numbers, nodes, blocks with owner and time, and no findings for a healthy cluster."""
    status, document = get(world, "/pools/cluster")
    assert status == 200
    assert document["findings"] == []
    (version,) = document["pools"][0]["versions"]
    assert version == {"version": 4, "blockPrefixLength": 26, "total": 4, "claimed": 2, "draining": 0, "addresses": 124}
    assert [(node["id"], node["state"], node["blocks"]) for node in document["nodes"]] == [
        (ONE, "registered", 1),
        (TWO, "registered", 1),
    ]
    block = document["blocks"][1]
    assert (block["block"], block["owner"], block["ownerName"]) == ("10.22.0.64/26", TWO, "worker-2")
    assert (block["pool"], block["generation"], block["since"]) == ("default", 1, "2026-11-25T12:00:00Z")


def test_finding_that_was_a_change_between_two_reads_is_none(world):
    """A block that is given back while the lists are read is no finding."""
    world.add_node(TWO, "10.22.0.64/26", "10.22.0.128/26")
    real = world.store.list_blocks

    def listed(owner=""):
        blocks = real(owner)
        world.add_node(TWO, "10.22.0.64/26")  # after the first list of the entries
        return blocks

    world.store.list_blocks = listed
    assert get(world, "/pools/cluster")[1]["findings"] == []


def test_first_space_gets_an_epoch():
    """The first space has a new random epoch, since records of damaged entries have the epoch ""."""
    epochs = {""}
    for world in (World(), World()):
        status, change = set_pools(world, DEFAULT)
        assert (status, change["before"]) == (200, None)
        space = world.store.read_space().value
        assert space
        epochs.add(space.epoch)
    assert len(epochs) == 3


def test_replaced_pools_keep_the_epoch(world):
    """Another pool is added; the epoch stays, and the answer has the old and the new space."""
    status, change = set_pools(world, DEFAULT, {"name": "more", "cidrs": ["10.23.0.0/24"]})
    assert status == 200, change
    space = world.store.read_space().value
    assert (space.epoch, [pool.name for pool in space.pools]) == (EPOCH, ["default", "more"])
    assert [pool["name"] for pool in change["before"]["pools"]] == ["default"]


def test_pools_that_were_changed_meanwhile_are_refused(world):
    """A change is refused if the administrator has seen another space."""
    _, change = post(world, "space", pools=[DEFAULT], dryRun=True)
    world.set_space({**DEFAULT, "excluded": ["10.22.0.0/30"]})
    status, error = post(world, "space", pools=[DEFAULT], current=change["current"])
    assert (status, "changed meanwhile" in error["msg"]) == (409, True)
    assert world.store.read_space().value.pools[0].excluded


@pytest.mark.parametrize(
    ("pools", "text"),
    [
        ([{"name": "Default", "cidrs": ["10.22.0.0/24"]}], "'Default' is not a valid name of a pool"),
        ([{"name": "default", "cidrs": ["10.22.0.0/28"]}], "smaller than one block"),
        ([{"name": "other", "cidrs": ["10.22.0.0/24"]}], "loses block 10.22.0.0/26"),
        ([{**DEFAULT, "blockPrefixLengths": {"ipv4": 28}}], "loses block 10.22.0.0/26"),
        (None, '"pools" is not a list'),
        ("default", '"pools" is not a list'),
    ],
)
def test_pools_that_are_not_safe_are_refused(world, pools, text):
    """Pools that are not valid, or that claimed blocks would leave, are refused, and nothing changes."""
    before = dict(world.store.objects)
    status, error = post(world, "space", pools=pools, dryRun=False)
    assert (status, text in error["msg"]) == (400, True)
    assert world.store.objects == before


def test_unknown_answer_to_a_change_of_the_pools_is_read_back(world):
    """A change whose answer was lost is a success if the store has it, and an error if it has not."""
    pools = [DEFAULT, {"name": "more", "cidrs": ["10.23.0.0/24"]}]
    world.store.fail_next(Fault.NOT_EXECUTED, "swap_space")
    status, error = set_pools(world, *pools)
    assert (status, "not known" in error["msg"]) == (409, True)
    world.store.fail_next(Fault.NO_ANSWER, "swap_space")
    assert set_pools(world, *pools)[0] == 200


def test_empty_store_gets_no_space_from_a_node_with_grants(world):
    """A node that has blocks, of which the store has nothing, does not create a space: the store was lost."""
    for key in list(world.store.objects):
        world.store.put_raw(key, b"")
    status, error = set_pools(world, DEFAULT)
    assert (status, "lost its content" in error["msg"]) == (409, True)
    world.report = world.report._replace(blocks=(local_block("10.22.0.0/26", "claiming"),))
    assert set_pools(world, DEFAULT)[0] == 200


def test_deleted_space_is_created_again(world):
    """A space that was deleted by hand is created again, in a new epoch, since the entries are still there."""
    world.store.put_raw("space", b"")
    assert set_pools(world, DEFAULT)[0] == 200
    assert world.store.read_space().value.epoch != EPOCH


def test_reclaim_fences_and_frees(world):
    """A node that is off is declared dead, its routes end, and its blocks are free; others keep theirs."""
    world.claim(TWO, "10.22.0.128/26")
    status, done = reclaim(world, TWO, record_of(world, TWO))
    assert (status, sorted(done["freed"]), done["problem"]) == (200, ["10.22.0.128/26", "10.22.0.64/26"], "")
    assert world.owners() == {"10.22.0.0/26": ONE, "10.22.0.64/26": "", "10.22.0.128/26": ""}
    entry = world.store.read_entry(TWO).value
    assert entry.record == NodeRecord("machine-2", "boot-2/", EPOCH, is_fenced=True)
    assert entry.networks == ()
    assert world.store.read_block(ip_network("10.22.0.64/26")).value.token.generation == 1


def boot(world, swap_entry):
    """Lets node TWO register after a boot."""
    stored = world.store.read_entry(TWO)
    swap_entry(TWO, stored, stored.value._replace(record=stored.value.record._replace(instance="boot-9/")))


@pytest.mark.parametrize(
    ("node", "change", "text"),
    [
        (TWO, lambda world: boot(world, world.store.swap_entry), "no longer the one that you have seen"),
        (TWO, lambda world: world.set_space(epoch="e2"), ""),
        (TWO, lambda world: world.store.put_raw(f"nodes/{TWO}", b"{}"), "is not valid"),
        (ONE, lambda world: None, "it is not off"),
    ],
    ids=["booted", "another epoch", "damaged", "this node"],
)
def test_reclaim_of_a_node_that_may_run_is_refused(world, node, change, text):
    """A record that changed after it was read, of another epoch, damaged or of this node is refused."""
    record = record_of(world, node)
    change(world)
    status, error = reclaim(world, node, record)
    assert (status, text in error["msg"]) == (409, True)
    assert world.owners()["10.22.0.64/26"] == TWO


def test_reclaim_loses_against_a_machine_that_boots_at_this_moment(world):
    """A node that registers between the read and the fence keeps its blocks."""
    record, real = record_of(world, TWO), world.store.swap_entry

    def swap(node, expected, new):
        if node == TWO:
            world.store.swap_entry = real
            boot(world, real)
        return real(node, expected, new)

    world.store.swap_entry = swap
    status, error = reclaim(world, TWO, record)
    assert (status, "it has registered since" in error["msg"]) == (409, True)
    assert world.owners()["10.22.0.64/26"] == TWO


def test_reclaim_of_the_machine_that_this_one_replaces(world):
    """The blocks of another machine with this node's ID become free: this one has its disk, and the other is off."""
    world.report = world.report._replace(machine="machine-9")
    status, done = reclaim(world, ONE, record_of(world, ONE))
    assert (status, done["freed"]) == (200, ["10.22.0.0/26"])


def test_reclaim_of_a_node_without_an_entry(world):
    """The blocks of a node whose entry was deleted become free; a machine that registers meanwhile keeps them."""
    world.store.put_raw(f"nodes/{TWO}", b"")
    assert reclaim(world)[0] == 409
    no_record = [block["ownerRecord"] for block in get(world, "/pools/cluster")[1]["blocks"] if block["owner"] == TWO]
    status, done = reclaim(world, TWO, no_record[0])
    assert (status, done["freed"]) == (200, ["10.22.0.64/26"])
    assert world.store.read_entry(TWO).value.record == MISSING._replace(epoch=EPOCH, is_fenced=True)


def test_reclaim_leaves_damaged_blocks(world):
    """A damaged block is not made free."""
    world.store.put_raw("blocks/0a160080-26", b'{"owner": "%s", "epoch": 1}' % TWO.encode())
    status, done = reclaim(world, TWO, record_of(world, TWO))
    assert (status, done["freed"]) == (200, ["10.22.0.64/26"])
    assert world.owners()["10.22.0.128/26"] == DAMAGED_BLOCK.owner


@pytest.mark.parametrize(
    "document",
    [
        {"node": "UPPER"},
        {"record": 1},
        *({"statement": statement} for statement in (None, "not ready", ["powered-off"])),
    ],
)
def test_wrong_requests_are_refused(world, document):
    """A request without the statement, or with wrong types, changes nothing."""
    before = dict(world.store.objects)
    assert reclaim(world, **document)[0] == 400
    assert world.store.objects == before


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_objects_are_refused(world, body):
    """A body that is no JSON object is an error with a text."""
    for action in world.admin.actions().values():
        answer = action(body)
        assert answer.status == 400
        assert json.loads(answer.body)["msg"]


def test_recover_waits_for_the_nodes_that_joined(world):
    """A new epoch begins, and no node claims before those that joined after the backup have registered."""
    world.report = world.report._replace(is_restored=True)
    status, done = post(world, "recover", joined=[THREE, TWO])
    assert status == 200, done
    assert world.store.read_space().value.epoch == done["epoch"] != EPOCH
    records = {node: stored.value.record for node, stored in world.store.list_entries().by_node.items()}
    assert records[THREE] == MISSING
    agent = AgentState(ONE, "machine-1", "boot-1/", done["epoch"])
    registered = {node: record._replace(epoch=done["epoch"]) for node, record in records.items()}
    assert not after_records(agent, {**registered, THREE: MISSING}).may_claim
    assert after_records(agent, registered).may_claim


def test_recover_needs_an_agent_without_requests(world):
    """While this node's agent may claim blocks no new epoch begins, since the store is not closed."""
    status, error = post(world, "recover", joined=[])
    assert (status, "has not noticed a restore" in error["msg"]) == (409, True)
    assert world.store.read_space().value.epoch == EPOCH
    world.report = world.report._replace(networks=())
    assert post(world, "recover", joined=[])[0] == 200


def test_recover_reads_back_lost_answers(world):
    """Lost answers are read back; a run that failed halfway can be repeated."""
    world.report = world.report._replace(is_restored=True)
    world.store.fail_next(Fault.NO_ANSWER, "swap_entry")
    world.store.fail_next(Fault.NOT_EXECUTED, "swap_space", times=100)
    status, error = post(world, "recover", joined=[THREE])
    assert (status, world.store.read_space().value.epoch) == (409, EPOCH)
    assert "podwire ipam recover" in error["details"]
    world.store._faults.clear()
    world.store.fail_next(Fault.NO_ANSWER, "swap_space")
    status, done = post(world, "recover", joined=[THREE])
    assert (status, world.store.read_space().value.epoch) == (200, done["epoch"])


def test_actions_without_a_store(world):
    """While the store does not answer the cluster's page and each action are errors with 503 and the cause."""
    world.store.fail_next(Fault.NOT_EXECUTED, "list_blocks")
    status, document = get(world, "/pools/cluster")
    assert (status, document["msg"].startswith("the store does not answer")) == (503, True)
    world.report = world.report._replace(is_restored=True)
    request = {"pools": [DEFAULT], "node": TWO, "record": "", "statement": "powered-off"}
    for action in ("space", "recover", "reclaim"):
        world.store.fail_next(Fault.UNREACHABLE)
        status, error = post(world, action, **request)
        assert (status, "refused" in error["msg"]) == (503, True)


RUNNING = NodeRecord("machine-2", "boot-2/", EPOCH)


def run_as_three(world, boot):
    """Lets this node be the machine of TWO, with another ID."""
    world.report = world.report._replace(node=THREE, name="worker-2", machine="machine-2", boot=boot)


def register_three(world, boot):
    """Registers another node that is the machine of TWO."""
    entry = NodeEntry(RUNNING._replace(instance=f"{boot}/"), "worker-2")
    world.store.swap_entry(THREE, world.store.read_entry(THREE), entry)


@pytest.mark.every_case
@pytest.mark.parametrize("start", [run_as_three, register_three])
def test_reclaim_of_an_earlier_id_of_a_node_is_refused(world, start):
    """After node-id was deleted the machine still runs, with the same boot; after a boot the old ID is free."""
    world.store.swap_entry(TWO, world.store.read_entry(TWO), NodeEntry(RUNNING, "worker-2"))
    start(world, "boot-2")
    status, error = reclaim(world, TWO, record_of(world, TWO))
    assert (status, "earlier ID of node worker-2" in error["msg"]) == (409, True)
    assert world.owners()["10.22.0.64/26"] == TWO
    start(world, "boot-9")
    assert reclaim(world, TWO, record_of(world, TWO))[0] == 200


def test_created_space_fits_the_blocks_that_nodes_have(world):
    """A space that was deleted is not created again with blocks of another size while nodes have blocks."""
    world.store.put_raw("space", b"")
    status, error = set_pools(world, DEFAULT | {"blockPrefixLengths": {"ipv4": 28}})
    assert (status, "10.22.0.0/26, which a node has, overlaps" in error["msg"]) == (400, True)
    assert world.owners()["10.22.0.0/26"] == ONE
