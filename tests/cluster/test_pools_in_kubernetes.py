"""The store in Kubernetes beyond the contract: rights, missing kinds, labels, and errors of the server."""

from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import pytest

from agent.api_errors import ApiError, Expired, Forbidden, Invalid, NotFound, Unauthorized
from agent.api_server import Server
from agent.kubernetes import ApiClient
from agent.pools import documents
from agent.pools.block_protocol import FREE, BlockRecord, NodeRecord, SwapOutcome, Token
from agent.pools.kubernetes_store import GROUP, OWNER_LABEL, SPACE_LABEL, KubernetesStore
from agent.pools.space import Space
from agent.pools.store import BlockNote, NodeEntry, Stored
from tests.support.kubernetes_double import Fault
from tests.support.kubernetes_store import POOLS
from tests.support.stores import delete, replace

BLOCK = ip_network("10.22.0.64/26")
NODE = "a" * 32
OWNED = BlockRecord(NODE, Token("epoch-1", 1))
NOTE = BlockNote("default", "worker-1")
ENTRY = NodeEntry(NodeRecord("machine", "instance", "epoch-1"), "worker-1")
PATH = f"/apis/{GROUP}/v1/ipblocks/default-0a160040-26"


def claim(store: KubernetesStore, block: BlockRecord = OWNED) -> SwapOutcome:
    return store.swap_block(BLOCK, store.read_block(BLOCK), block, NOTE).outcome


@pytest.fixture
def admin(pools) -> ApiClient:
    """A client with all rights."""
    client: ApiClient = pools.client("admin")
    return client


@pytest.fixture
def claimed(admin) -> KubernetesStore:
    """The administrator's store, in which a node owns the block."""
    store = KubernetesStore(admin)
    assert claim(store) is SwapOutcome.SUCCEEDED
    return store


def test_rights_of_agents(pools, admin):
    """An agent with the rights of deploy/pools/ claims blocks, watches, changes the space, deletes nothing."""
    agent = pools.client("agent")
    store = KubernetesStore(agent)
    assert store.swap_space(Stored(None), Space("epoch-1", ())).outcome is SwapOutcome.SUCCEEDED
    assert claim(store) is SwapOutcome.SUCCEEDED
    assert store.swap_block(BLOCK, store.read_block(BLOCK), FREE, NOTE).outcome is SwapOutcome.SUCCEEDED
    assert store.swap_entry(NODE, Stored(None), ENTRY).outcome is SwapOutcome.SUCCEEDED
    assert store.list_problems() == []
    assert set(store.list_blocks()) == {BLOCK}
    store.watch(store.list_entries().revision).close()
    assert store.swap_space(store.read_space(), Space("epoch-2", ())).outcome is SwapOutcome.SUCCEEDED
    for attempt in (lambda: delete(agent, PATH), lambda: replace(agent, PATH, admin.get(PATH))):
        with pytest.raises(Forbidden):
            attempt()


def test_without_rights(pools):
    """Without rights each read is an error that names the right and the fix, and no change is executed."""
    store = KubernetesStore(pools.client("stranger"))
    reads: list[Callable[[], object]] = [store.read_space, store.list_blocks, store.list_entries]
    for read in (*reads, lambda: store.read_block(BLOCK), lambda: store.watch("1")):
        with pytest.raises(Forbidden, match=r"forbidden: .* cannot .*; fix: grant the right"):
            read()
    assert store.swap_block(BLOCK, Stored(FREE), OWNED, NOTE).outcome is SwapOutcome.LOST
    with pytest.raises(Unauthorized):
        KubernetesStore(pools.client("expired")).list_blocks()


def test_an_object_has_what_people_select(admin, claimed):
    """A block has labels for its space and its owner, and its CIDR; the owner's label is empty for a free block."""
    for owner in (NODE, ""):
        assert claim(claimed, BlockRecord(owner, OWNED.token)) is SwapOutcome.SUCCEEDED
        block: Any = admin.get(PATH)
        assert block["metadata"]["labels"] == {SPACE_LABEL: "default", OWNER_LABEL: owner}
        assert block["spec"]["cidr"] == str(BLOCK)


def test_spaces_do_not_see_each_other(admin):
    """Spaces of which one's name begins with the other's have blocks and entries of their own."""
    names = ("default", "default-0a160040", "x")
    for number, name in enumerate(names):
        store = KubernetesStore(admin, name)
        assert claim(store, BlockRecord(NODE, Token("e", number + 1))) is SwapOutcome.SUCCEEDED
        assert store.swap_entry(NODE, Stored(None), ENTRY._replace(name=name)).outcome is SwapOutcome.SUCCEEDED
    for number, name in enumerate(names):
        store = KubernetesStore(admin, name)
        for blocks in (store.list_blocks(), store.list_blocks(NODE)):
            assert [one.value.token.generation for one in blocks.values()] == [number + 1]
        assert [one.value.name for one in store.list_entries().by_node.values()] == [name]
        assert store.list_problems() == []


def test_another_object_of_the_same_name(admin, claimed):
    """A block that was deleted and created again with the same content is not the one that was read."""
    before = claimed.read_block(BLOCK)
    delete(admin, PATH)
    assert claim(claimed) is SwapOutcome.SUCCEEDED
    assert claimed.read_block(BLOCK).value == before.value
    assert claimed.swap_block(BLOCK, before, BlockRecord(NODE, Token("epoch-1", 2)), NOTE).outcome is SwapOutcome.LOST


def test_labels_that_a_person_removes(admin, claimed):
    """Without its labels an entry is in the list, and a block is changed, which restores them."""
    assert claimed.swap_entry(NODE, Stored(None), ENTRY).outcome is SwapOutcome.SUCCEEDED
    for path in (PATH, f"/apis/{GROUP}/v1/ipnodes/default-{NODE}"):
        document: dict[str, Any] = dict(admin.get(path))
        del document["metadata"]["labels"]
        replace(admin, path, document)
    assert set(claimed.list_entries().by_node) == {NODE}
    assert claimed.list_blocks(NODE) == {}
    assert claim(claimed, BlockRecord(NODE, Token("epoch-1", 2))) is SwapOutcome.SUCCEEDED
    assert set(claimed.list_blocks(NODE)) == {BLOCK}


def test_a_json_patch_with_a_failed_test_changes_nothing(admin, claimed):
    """A JSON Patch is executed as a whole: a test that fails is 422, also after other operations."""
    before = admin.get(PATH)
    change = {"op": "replace", "path": "/spec/generation", "value": 7}
    for path, value in (("/spec/owner", "b" * 32), ("/spec/nothing", 1), ("/metadata/uid", "x"), ("/spec", {})):
        with pytest.raises(Invalid) as caught:
            admin.patch(PATH, [change, {"op": "test", "path": path, "value": value}])
        assert caught.value.status == 422
    assert admin.get(PATH) == before
    with pytest.raises(NotFound) as missing:
        admin.patch(PATH + "x", [change])
    assert missing.value.name == "default-0a160040-26x"


def test_missing_kinds(double, client):
    """Without the custom resources nothing is free: each read is an error with the fix, each change is LOST."""
    store = KubernetesStore(client)
    double.missing_kinds = set(POOLS)
    for read in (store.read_space, lambda: store.read_block(BLOCK), store.list_blocks, lambda: store.watch("1")):
        with pytest.raises(NotFound, match="fix: apply the custom resources: kubectl apply --kustomize"):
            read()
    for expected in (Stored(FREE), Stored(OWNED, documents.encode({"uid": "u", "spec": {}}))):
        change = store.swap_block(BLOCK, expected, OWNED, NOTE)
        assert change.outcome is SwapOutcome.LOST
        assert "kubectl apply" in change.problem


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        *((Fault(status=status), SwapOutcome.LOST) for status in (429, 409, 422)),
        *((Fault(status=status), SwapOutcome.UNKNOWN) for status in (500, 504)),
        *((fault, SwapOutcome.UNKNOWN) for fault in (Fault(lost=True), Fault(cut=True), Fault(half=True))),
        (Fault(status=200, body=b"<html>"), SwapOutcome.UNKNOWN),
    ],
)
def test_outcomes(double, client, fault, outcome):
    """A refusal is LOST; a server's error, a cut connection and another program's answer are UNKNOWN; sent once."""
    store = KubernetesStore(client)
    for _ in range(2):  # create, then patch
        before = store.read_block(BLOCK)
        double.requests.clear()
        fault.times = 1
        double.faults.append(fault)
        change = store.swap_block(BLOCK, before, OWNED, NOTE)
        assert change.outcome is outcome
        assert change.problem
        assert len(double.requests) == 1
        claim(store)


def test_a_watch_with_bookmarks_and_an_older_server(double, client):
    """Bookmarks raise the revision of a quiet watch; an event of an older resourceVersion ends it with Expired."""
    store = KubernetesStore(client)
    watch = store.watch(store.list_entries().revision)
    changes = iter(watch)
    store.swap_entry(NODE, Stored(None), ENTRY)
    first = next(changes)
    double.store.put("/api/v1/nodes/x", {})
    backup = double.store.backup()
    store.swap_entry("b" * 32, Stored(None), ENTRY)
    second = next(changes)
    assert int(second.revision.split("/")[0]) > int(first.revision.split("/")[0])
    watch.close()
    double.store.restore(backup)
    with pytest.raises(Expired):
        store.watch(second.revision)


@pytest.mark.parametrize(
    "document", [{}, {"spec": 1}, {"spec": []}, {"spec": {"owner": ""}}, {"metadata": {"labels": 1}}]
)
def test_objects_of_other_shapes(double, client, document):
    """An object without a usable spec is damaged, not free, and the lists work on."""
    double.store.put(PATH, document)
    store = KubernetesStore(client)
    assert store.read_block(BLOCK).value == documents.DAMAGED_BLOCK
    assert store.list_blocks()[BLOCK].problem
    assert len(store.list_problems()) == 1
    assert claim(store) is SwapOutcome.LOST


def test_a_server_that_does_not_answer():
    """A request to it raises an ApiError."""
    with pytest.raises(ApiError):
        KubernetesStore(ApiClient(Server("https://127.0.0.1:1"), None)).read_space()
