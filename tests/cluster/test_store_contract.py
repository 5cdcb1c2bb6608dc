"""What the protocol relies on, with each store: the double, etcd 3.4 and 3.5, Kubernetes' double and kube-apiserver.

One rule: a test is the same for all of them, so the double answers as the real stores do.
"""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import ip_address, ip_network

import pytest

from agent.api_errors import ApiError, Expired, Invalid
from agent.pools import block_protocol as protocol
from agent.pools import documents
from agent.pools.block_protocol import FREE, MISSING, BlockRecord, NodeRecord, SwapOutcome, Token
from agent.pools.documents import DAMAGED_BLOCK, DAMAGED_ENTRY
from agent.pools.space import ROUTED, Pool, Space
from agent.pools.store import BlockNote, Changes, EntryChanged, NodeEntry, SpaceChanged, Store, Stored
from tests.support.cutting_proxy import CuttingProxy, Mode
from tests.support.stores import StoreServer

BLOCK, OTHER_BLOCK = ip_network("10.22.0.64/26"), ip_network("fd00:22::40/122")
A, B = "a" * 32, "b" * 32
NOTE = BlockNote("default", "worker-1", "2026-11-25T12:00:00Z")
POOLS = (Pool("default", ROUTED, (ip_network("10.22.0.0/16"),), {4: 26, 6: 122}),)
ENTRY = NodeEntry(
    NodeRecord("machine-1", "boot-1/uid-1", "epoch-1"),
    "worker-1",
    (ip_address("192.0.2.10"), ip_address("fd00::10")),
    (BLOCK, OTHER_BLOCK),
)


def owned(node: str, generation: int = 1, epoch: str = "epoch-1") -> BlockRecord:
    return BlockRecord(node, Token(epoch, generation))


def claimed(store: Store) -> Stored[BlockRecord]:
    """Claims BLOCK for A and returns it as it is stored."""
    assert store.swap_block(BLOCK, store.read_block(BLOCK), owned(A), NOTE).outcome is SwapOutcome.SUCCEEDED
    return store.read_block(BLOCK)


def test_a_change_has_the_form_that_the_next_one_expects(store):
    """After a change another one follows without a read: create, change, change of a block and of an entry."""
    block, entry = Stored(FREE), Stored[NodeEntry | None](None)
    for generation in range(1, 4):
        change = store.swap_block(BLOCK, block, owned(A, generation), NOTE)
        block = Stored(owned(A, generation), change.raw, note=NOTE)
        assert store.read_block(BLOCK) == block
        change = store.swap_entry(A, entry, ENTRY._replace(name=f"worker-{generation}"))
        entry = Stored(ENTRY._replace(name=f"worker-{generation}"), change.raw)
        assert store.read_entry(A) == entry


@pytest.fixture
def store(server: StoreServer) -> Store:
    """A client of an empty space."""
    return server.connect(server.url)


@pytest.fixture
def other(server: StoreServer) -> Store:
    """Another client of the same space."""
    return server.connect(server.url)


def test_an_empty_space(store):
    """Without objects there is no space, blocks are free, there are no entries, and nothing is wrong."""
    assert store.read_space() == Stored(None)
    assert store.read_block(BLOCK) == Stored(FREE)
    assert store.read_entry(A) == Stored(None)
    assert store.list_blocks() == {}
    assert store.list_entries().by_node == {}
    assert store.list_problems() == []


def test_a_block_is_stored_as_it_is(store, other):
    """Another client reads the block that was claimed, alone and in the lists of all and of its owner."""
    block = claimed(store)
    assert (block.value, block.problem) == (owned(A), "")
    assert other.read_block(BLOCK) == block
    assert other.list_blocks() == {BLOCK: block}
    assert other.list_blocks(A) == {BLOCK: block}
    assert other.list_blocks(B) == {}
    assert store.swap_block(OTHER_BLOCK, Stored(FREE), owned(B), BlockNote()).outcome is SwapOutcome.SUCCEEDED
    assert set(other.list_blocks()) == {BLOCK, OTHER_BLOCK}
    assert set(other.list_blocks(A)) == {BLOCK}


def test_a_block_is_changed_only_as_it_was_read(store):
    """A compare-and-swap of a block that has changed since is lost, and changes nothing."""
    first = claimed(store)
    assert store.swap_block(BLOCK, first, owned(A, 2), NOTE).outcome is SwapOutcome.SUCCEEDED
    second = store.read_block(BLOCK)
    for expected in (Stored(FREE), first):
        change = store.swap_block(BLOCK, expected, owned(B, 3), NOTE)
        assert change.outcome is SwapOutcome.LOST
        assert change.problem
    assert store.read_block(BLOCK) == second
    assert second.value == owned(A, 2)


def test_a_free_block_has_another_owner_in_the_lists(store):
    """A free block keeps its token, is in the list of all blocks and in that of no owner, and can be claimed again."""
    free = claimed(store)._replace(value=FREE)
    assert store.swap_block(BLOCK, free, owned(""), BlockNote()).outcome is SwapOutcome.SUCCEEDED
    free_again = store.read_block(BLOCK)
    assert free_again.value == owned("")
    assert store.list_blocks() == {BLOCK: free_again}
    assert store.list_blocks(A) == {}
    assert store.swap_block(BLOCK, free_again, owned(B, 2), NOTE).outcome is SwapOutcome.SUCCEEDED
    assert set(store.list_blocks(B)) == {BLOCK}


@pytest.mark.parametrize("exists", [False, True], ids=["create", "change"])
def test_a_race_has_one_winner(server, store, exists):
    """Of ten clients that create or change the same block at the same time one succeeds, and its value is stored."""
    before = claimed(store) if exists else Stored(FREE)
    nodes = [f"{number:032x}" for number in range(10)]
    stores = [server.connect(server.url) for _ in nodes]
    start = threading.Barrier(len(nodes))

    def swap(node: str, store: Store) -> SwapOutcome:
        start.wait()
        return store.swap_block(BLOCK, before, owned(node, 2), NOTE).outcome

    with ThreadPoolExecutor(len(nodes)) as threads:
        outcomes = list(threads.map(swap, nodes, stores))
    assert sorted(outcome.name for outcome in outcomes) == ["LOST"] * 9 + ["SUCCEEDED"]
    assert store.read_block(BLOCK).value == owned(nodes[outcomes.index(SwapOutcome.SUCCEEDED)], 2)


def test_values_are_compared_and_not_revisions(server, store):
    """A block that a person has written again with the same content is as it was read; with another token it is not."""
    before = claimed(store)
    name = documents.block_name(BLOCK)
    server.put(f"blocks/{name}", documents.encode(documents.format_block(BLOCK, owned(A, 7), NOTE)))
    assert store.swap_block(BLOCK, before, owned(A, 2), NOTE).outcome is SwapOutcome.LOST
    server.put(f"blocks/{name}", documents.encode(documents.format_block(BLOCK, owned(A), NOTE)))
    assert store.swap_block(BLOCK, before, owned(A, 2), NOTE).outcome is SwapOutcome.SUCCEEDED


def test_a_deleted_block_is_not_as_it_was_read(server, store):
    """A block that a person has deleted is free, and a change of its former value is lost."""
    before = claimed(store)
    server.put(f"blocks/{documents.block_name(BLOCK)}", None)
    assert store.swap_block(BLOCK, before, owned(A, 2), NOTE).outcome is SwapOutcome.LOST
    assert store.read_block(BLOCK) == Stored(FREE)


def test_an_entry_is_stored_as_it_is(store, other):
    """Another client reads an entry with its addresses and networks, alone and in the list; a stale swap is lost."""
    assert store.swap_entry(A, store.read_entry(A), ENTRY).outcome is SwapOutcome.SUCCEEDED
    entry = other.read_entry(A)
    assert entry.value == ENTRY
    fenced = ENTRY._replace(record=ENTRY.record._replace(is_fenced=True))
    assert store.swap_entry(A, entry, fenced).outcome is SwapOutcome.SUCCEEDED
    assert other.swap_entry(A, entry, ENTRY).outcome is SwapOutcome.LOST
    assert other.swap_entry(A, Stored(None), ENTRY).outcome is SwapOutcome.LOST
    assert other.swap_entry(B, Stored(None), NodeEntry(MISSING)).outcome is SwapOutcome.SUCCEEDED
    entries = other.list_entries().by_node
    assert {node: entry.value for node, entry in entries.items()} == {A: fenced, B: NodeEntry(MISSING)}
    assert entries[A] == store.read_entry(A)


def test_a_space_is_stored_as_it_is(store, other):
    """The space is created once, changed as it was read, and read by others."""
    assert store.swap_space(store.read_space(), Space("epoch-1", POOLS)).outcome is SwapOutcome.SUCCEEDED
    first = other.read_space()
    assert first.value == Space("epoch-1", POOLS)
    assert other.swap_space(first, Space("epoch-2", POOLS)).outcome is SwapOutcome.SUCCEEDED
    assert store.swap_space(first, Space("epoch-3", ())).outcome is SwapOutcome.LOST
    assert store.swap_space(Stored(None), Space("epoch-3", ())).outcome is SwapOutcome.LOST
    assert store.read_space().value == Space("epoch-2", POOLS)


def test_the_position_rises(store):
    """The position has the cluster's ID and a revision that rises with each change."""
    store.list_entries()
    first = store.position
    claimed(store)
    store.list_blocks()
    assert store.position.cluster == first.cluster
    assert store.position.revision > first.revision > 0
    assert first.cluster


DAMAGED = [
    b'{"owner":1}',
    b"{}",
    b'{"owner":"","epoch":"e","generation":-1}',
    b'{"owner":"A-B","epoch":"","generation":1}',
]


def is_refused(server: StoreServer, key: str, raw: bytes) -> bool:
    """Writes a damaged object, which a server with a schema must refuse."""
    if server.has_schema:
        with pytest.raises(Invalid):
            server.put(key, raw)
    else:
        server.put(key, raw)
    return server.has_schema


@pytest.mark.parametrize("raw", DAMAGED)
def test_a_damaged_block_is_never_free(server, store, raw):
    """A block that a person has damaged belongs to no node, is not changed, and is named with a fix."""
    assert store.swap_block(OTHER_BLOCK, Stored(FREE), owned(A), NOTE).outcome is SwapOutcome.SUCCEEDED
    if is_refused(server, f"blocks/{documents.block_name(BLOCK)}", raw):
        return
    block = store.read_block(BLOCK)
    assert block.value == DAMAGED_BLOCK != FREE
    assert str(BLOCK) in block.problem
    assert "; fix: " in block.problem
    assert store.swap_block(BLOCK, block, owned(A), NOTE).outcome is SwapOutcome.LOST
    assert store.swap_block(BLOCK, Stored(FREE), owned(A), NOTE).outcome is SwapOutcome.LOST
    assert store.read_block(BLOCK) == block
    assert store.list_blocks()[BLOCK] == block
    assert set(store.list_blocks(A)) == {OTHER_BLOCK}
    assert store.list_problems() == [block.problem]


@pytest.mark.parametrize("raw", [b"{}", b'{"machine":"m","instance":"i","epoch":"epoch-1","fenced":"no"}'])
def test_a_damaged_entry_is_foreign_to_all(server, store, raw):
    """An entry that a person has damaged is in the list, of no epoch and foreign to all; the others are as before."""
    assert store.swap_entry(B, Stored(None), ENTRY).outcome is SwapOutcome.SUCCEEDED
    if is_refused(server, f"nodes/{A}", raw):
        return
    server.put(f"nodes/{A}", None)
    with changes_of(store, store.list_entries().revision) as changes:
        server.put(f"nodes/{A}", raw)
        change = changes.get(timeout=60)
    entries = store.list_entries().by_node
    assert entries[A].value == DAMAGED_ENTRY
    assert change == EntryChanged(A, DAMAGED_ENTRY, change.revision, entries[A].problem)
    assert entries[B].value == ENTRY
    assert A in entries[A].problem
    assert protocol.is_foreign(protocol.AgentState(A, "machine-1", "boot-1"), entries[A].value.record)
    assert store.swap_entry(A, entries[A], ENTRY).outcome is SwapOutcome.LOST
    assert store.list_problems() == [entries[A].problem]


def test_a_damaged_space_is_an_error(server, store):
    """A space with pools that overlap is refused as a whole; the text names the space and both pools."""
    pools = [{"name": name, "cidrs": ["10.22.0.0/16"]} for name in ("one", "two")]
    server.put("space", documents.encode({"epoch": "e", "pools": pools}))
    with pytest.raises(ValueError, match=r"space .* is not valid: 10\.22\.0\.0/16 of pool two overlaps .* of pool one"):
        store.read_space()
    assert len(store.list_problems()) == 1


@contextmanager
def changes_of(store: Store, revision: str) -> Iterator[queue.Queue[EntryChanged | SpaceChanged]]:
    """Follows a watch in a thread inside the block."""
    changes: queue.Queue[EntryChanged | SpaceChanged] = queue.Queue()
    watch = store.watch(revision)
    thread = threading.Thread(target=_follow, args=(watch, changes))
    thread.start()
    try:
        yield changes
    finally:
        watch.close()
        thread.join(60)
        assert not thread.is_alive()


def _follow(watch: Changes, changes: queue.Queue[EntryChanged | SpaceChanged]) -> None:
    try:
        for change in watch:
            changes.put(change)
    except ApiError:
        pass  # of close()


def test_a_watch_has_each_change_once_and_in_order(server, store, other):
    """A watch reports entries, deletions aside, and the space, and no blocks; it continues after any revision."""
    before = store.list_entries().revision
    other.swap_entry(A, Stored(None), ENTRY)
    claimed(other)
    other.swap_space(Stored(None), Space("epoch-1", POOLS))
    other.swap_entry(A, other.read_entry(A), ENTRY._replace(name="worker-2"))
    with changes_of(store, before) as changes:
        reported = [changes.get(timeout=60) for _ in range(3 + server.space_changes - 1)]
        other.swap_entry(B, Stored(None), NodeEntry(MISSING))
        reported.append(changes.get(timeout=60))
    entries = [change for change in reported if isinstance(change, EntryChanged)]
    assert (len(entries), len(reported)) == (3, 3 + server.space_changes)
    assert [(change.node, change.entry) for change in entries] == [
        (A, ENTRY),
        (A, ENTRY._replace(name="worker-2")),
        (B, NodeEntry(MISSING)),
    ]
    with changes_of(store, entries[1].revision) as changes:
        again = changes.get(timeout=60)
        while isinstance(again, SpaceChanged):  # Kubernetes has a watch for each kind: the space may have come after it
            again = changes.get(timeout=60)
    assert again == EntryChanged(B, NodeEntry(MISSING), again.revision)


def test_a_deleted_entry_is_reported(server, store):
    """A watch reports an entry that a person deletes."""
    store.swap_entry(A, Stored(None), ENTRY)
    with changes_of(store, store.list_entries().revision) as changes:
        server.put(f"nodes/{A}", None)
        change = changes.get(timeout=60)
    assert change == EntryChanged(A, None, change.revision)


def test_a_watch_expires(server, store):
    """A watch after a revision that the store has forgotten ends with Expired, here or in the iteration."""
    for number in range(3):
        store.swap_entry(f"{number:032x}", Stored(None), ENTRY)
    server.compact()
    with pytest.raises(Expired):
        list(store.watch("1"))


def test_a_watch_of_an_older_store_expires(store):
    """A watch after a revision that the store has not reached, as after a restore, ends with Expired."""
    store.list_entries()
    with pytest.raises(Expired):
        list(store.watch(str(store.position.revision + 1_000_000)))


@pytest.mark.parametrize(("mode", "executed"), [(Mode.LOSE_ANSWER, True), (Mode.LOSE_REQUEST, False)])
@pytest.mark.parametrize("first", [True, False], ids=["create", "change"])
def test_a_lost_answer_is_unknown(server, mode, executed, first):
    """A change whose answer is lost is UNKNOWN and sent once; reading shows whether it was executed."""
    if not server.url:
        pytest.skip("a connection is cut here; the double has none")
    with CuttingProxy(server.url).running() as proxy:
        store = server.connect(proxy.url)
        before = store.read_block(BLOCK) if first else claimed(store)
        proxy.mode = mode
        change = store.swap_block(BLOCK, before, owned(A, 5), NOTE)
        assert change.outcome is SwapOutcome.UNKNOWN
        assert "the connection to" in change.problem
        proxy.mode = Mode.FORWARD
        after = store.read_block(BLOCK)
    assert (after.value == owned(A, 5)) == executed
    assert executed or after == before


def test_a_stopped_server(server):
    """Without a connection a change is LOST, since it was not sent, and a read is an error with a fix."""
    if not server.url:
        pytest.skip("the double has no connection")
    proxy = CuttingProxy(server.url)
    with proxy.running():
        store = server.connect(proxy.url)
    change = store.swap_block(BLOCK, Stored(FREE), owned(A), NOTE)
    assert change.outcome is SwapOutcome.LOST
    assert "no connection to" in change.problem
    with pytest.raises(ApiError, match=r"no connection to .*; fix: check that the server runs"):
        store.read_block(BLOCK)


@pytest.mark.parametrize("name", ["blocks/0a160041-26", "blocks/0a160040-026", "blocks/x", "nodes/a.1"])
def test_an_odd_name_is_reported(server, store, name):
    """An object with a name that no agent gives is in no list, and is reported."""
    raw = documents.encode(documents.format_block(BLOCK, owned(A), NOTE))
    server.put(name, raw if name.startswith("blocks") else documents.encode(documents.format_entry(ENTRY)))
    assert store.list_blocks() == {}
    assert store.list_entries().by_node == {}
    (problem,) = store.list_problems()
    assert "is not valid" in problem
    assert "; fix: " in problem


def test_a_change_of_a_block_may_have_the_space(server, store):
    """A store whose transaction reads the space has the one of the change's time; the others leave it out."""
    assert store.swap_block(BLOCK, Stored(FREE), owned(A, 1), NOTE).space is None
    spaces = []
    for generation, epoch in ((2, "epoch-1"), (3, "epoch-2")):
        assert store.swap_space(store.read_space(), Space(epoch, POOLS)).outcome is SwapOutcome.SUCCEEDED
        spaces.append(store.swap_block(BLOCK, store.read_block(BLOCK), owned(A, generation), NOTE).space)
    expected = [Space("epoch-1", POOLS), Space("epoch-2", POOLS)]
    assert spaces == (expected if server.has_transactions else [None, None])
    assert store.swap_block(BLOCK, Stored(FREE), owned(A, 4), NOTE).space is None
