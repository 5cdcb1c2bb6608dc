"""The nodes of the cluster by the entries of the store."""

from ipaddress import ip_address, ip_network

import pytest

from agent.node import Node
from agent.object_watch import Changed, Deleted, ObjectEvent, ObjectWatch, Synced
from agent.pools.block_protocol import NodeRecord
from agent.pools.entry_source import EntryNodes
from agent.pools.space import Space, parse_space
from agent.pools.store import NodeEntry, Stored
from tests.support.store_double import StoreDouble

BLOCK, OTHER = ip_network("10.22.0.64/26"), ip_network("10.22.1.0/26")
ADDRESS = ip_address("192.0.2.1")


def entry(name="a", networks=(BLOCK,), fenced=False, registered="2026-11-25T22:00:00Z"):
    record = NodeRecord("machine", "boot", "e1", fenced)
    return NodeEntry(record, name, (ADDRESS,), networks, registered)


def put(store, node, value):
    store.swap_entry(node, store.read_entry(node), value)


@pytest.mark.parametrize(("fenced", "networks"), [(False, (BLOCK,)), (True, ())])
def test_entries_are_nodes(fenced, networks):
    """An entry is a node: its ID is the UID, its blocks are the networks of its pods; a fenced node has none."""
    store = StoreDouble()
    put(store, "1d", entry(fenced=fenced))
    assert EntryNodes(store).list_all().items == [Node("a", "1d", networks, (ADDRESS,))]


def test_the_later_registered_entry_of_a_name_counts():
    """A machine that was installed again has a new ID: its former entry is not a node any more."""
    store = StoreDouble()
    put(store, "2d", entry(networks=(OTHER,), registered="2026-11-25T23:00:00Z"))
    put(store, "1d", entry())
    assert EntryNodes(store).list_all().items == [Node("a", "2d", (OTHER,), (ADDRESS,))]


def test_changes_follow():
    """New, changed, renamed and deleted entries are reported as nodes; the space's changes only by a callback."""
    store, changes = StoreDouble(), []
    store.swap_space(Stored(None), Space("e1", ()))
    put(store, "1d", entry())
    nodes = EntryNodes(store, lambda node, entry: changes.append(node), lambda: changes.append("space"))
    listing = nodes.list_all()
    changes.clear()
    put(store, "1d", entry(networks=(BLOCK, OTHER)))
    put(store, "1d", entry("b"))
    store.swap_space(
        store.read_space(), parse_space({"epoch": "e1", "pools": [{"name": "a", "cidrs": ["10.9.0.0/24"]}]})
    )
    store.watch_ends = True
    changed = list(nodes.watch(listing.resource_version, timeout_s=300))
    assert [one[:2] for one in changed] == [
        ("a", Node("a", "1d", (BLOCK, OTHER), (ADDRESS,))),
        ("a", None),
        ("b", Node("b", "1d", (BLOCK,), (ADDRESS,))),
        ("", None),
    ]
    assert [int(one.revision) for one in changed] == sorted(int(one.revision) for one in changed)
    assert changes == ["1d", "1d", "space"]


def test_a_watch_of_nodes_follows_entries():
    """The agent's watch lists and follows entries as it does Node objects."""
    store, events = StoreDouble(watch_ends=True), list[ObjectEvent[Node]]()
    put(store, "1d", entry())
    watch = ObjectWatch(EntryNodes(store), events.append, randomness=lambda: 0.0)
    watch.step()
    put(store, "1d", entry("b", (OTHER,)))
    watch.step()
    assert events == [
        Synced({"a": Node("a", "1d", (BLOCK,), (ADDRESS,))}),
        Deleted("a"),
        Changed(Node("b", "1d", (OTHER,), (ADDRESS,))),
    ]


def test_another_epoch_is_a_new_list():
    """After a restore the watch lists again, also if the store has counted past the last revision meanwhile."""
    store, events = StoreDouble(watch_ends=True), list[ObjectEvent[Node]]()
    store.swap_space(Stored(None), Space("e1", ()))
    backup = store.snapshot()
    put(store, "1d", entry())
    watch = ObjectWatch(EntryNodes(store), events.append, randomness=lambda: 0.0)
    watch.step()
    store.restore(backup)
    store.swap_space(store.read_space(), Space("e2", ()))
    for number in range(5):
        put(store, f"{number}f", entry(f"node-{number}"))
    for _ in range(2):
        watch.step()
    last = events[-1]
    assert isinstance(last, Synced)
    assert set(last.items) == {f"node-{number}" for number in range(5)}
