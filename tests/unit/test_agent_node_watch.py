"""The nodes of a cluster: lists and watches of a scripted server, step by step."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from agent.api_answer import Document, WatchEvent
from agent.api_errors import ApiError, Expired, Forbidden, InvalidAnswer, OutcomeUnknown, TooManyRequests
from agent.kubernetes import Listing
from agent.node import Node, parse_node
from agent.node_source import KubernetesNodes
from agent.node_watch import Changed, Deleted, Failed, NodeEvent, NodeWatch, Recovered, Synced

CUT = OutcomeUnknown("watch", "cut")


def node(name: str, version: int = 1, cidr: str = "10.0.1.0/24", **status: Any) -> Document:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"podCIDR": cidr}, "status": status}


def parsed(name: str, cidr: str = "10.0.1.0/24") -> Node:
    return parse_node(node(name, cidr=cidr))


class Script:
    """A server with prepared answers: lists, probes of the resourceVersion, watches. An exception is raised."""

    def __init__(self, *lists: Any, watches: tuple[Any, ...] = (), probes: tuple[Any, ...] = ()) -> None:
        self.lists, self.watches, self.probes = list(lists), list(watches), list(probes)
        self.calls: list[str] = []
        self.queries: list[Mapping[str, str] | None] = []
        self.now = 0.0
        self.watch_lasts_s = 60.0
        self.is_closed = False

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        self.calls.append("probe")
        self.queries.append(query)
        probe = self.probes.pop(0) if self.probes else 999
        if isinstance(probe, ApiError):
            raise probe
        return {"metadata": {"resourceVersion": str(probe)}, "items": []}

    def list_objects(
        self, path: str, parse: Callable[[Document], Node], query: Mapping[str, str] | None = None
    ) -> Listing[Node]:
        self.calls.append("list")
        self.queries.append(query)
        version, *nodes = self.lists.pop(0)
        if isinstance(version, ApiError):
            raise version
        return Listing([parse(one) for one in nodes], str(version))

    def watch(
        self, path: str, resource_version: str, query: Mapping[str, str] | None, *, timeout_s: int
    ) -> ScriptedWatch:
        self.calls.append(f"watch {resource_version}")
        self.queries.append(query)
        events = self.watches.pop(0)
        if isinstance(events, ApiError):
            raise events
        return ScriptedWatch(self, events)


class ScriptedWatch:
    def __init__(self, script: Script, events: list[Any]) -> None:
        self.script, self.events = script, events

    def __iter__(self) -> Iterator[WatchEvent]:
        for event in self.events:
            if isinstance(event, ApiError):
                self.script.now += self.script.watch_lasts_s
                raise event
            yield WatchEvent(*event)
        self.script.now += self.script.watch_lasts_s

    def close(self) -> None:
        self.script.is_closed = True


def follow(script: Script, steps: int) -> tuple[list[Any], list[float]]:
    """Returns the events that are reported, and the delays, of a number of steps."""
    events: list[Any] = []
    watch = NodeWatch(KubernetesNodes(script), events.append, randomness=lambda: 0.5, monotonic=lambda: script.now)
    return events, [watch.step() for _ in range(steps)]


def test_a_list_and_a_watch():
    """The list is reported at once, then each new, changed and deleted node; the next watch continues after them."""
    script = Script(
        (10, node("a"), node("b")),
        watches=(
            [("ADDED", node("c", 11)), ("MODIFIED", node("a", 12, "10.0.9.0/24")), ("DELETED", node("b", 13))],
            [],
        ),
    )
    events, delays = follow(script, 3)
    assert events == [
        Synced({"a": parsed("a"), "b": parsed("b")}),
        Changed(parsed("c")),
        Changed(parsed("a", "10.0.9.0/24")),
        Deleted("b"),
    ]
    assert script.calls == ["list", "watch 10", "probe", "watch 13"]
    assert delays == [0.0, 0.5, 0.5]


def test_heartbeats_are_dropped():
    """A change that leaves the node's value as it is, a repeated event and an unknown deletion are not reported."""
    heartbeat = ("MODIFIED", node("a", 11, conditions=[{"lastHeartbeatTime": "now"}]))
    events, _ = follow(Script((10, node("a")), watches=([heartbeat, heartbeat, ("DELETED", node("x", 12))],)), 2)
    assert events == [Synced({"a": parsed("a")})]


def test_a_node_of_another_uid_is_a_change():
    """A node that was deleted and created again while the connection was cut has another UID."""
    again = {**node("a", 12), "metadata": {"name": "a", "uid": "new", "resourceVersion": "12"}}
    events, _ = follow(Script((10, node("a")), watches=([("MODIFIED", again)],)), 2)
    assert events[1:] == [Changed(parse_node(again))]


def test_bookmarks_move_the_position():
    """A bookmark is the position of the next watch, and no node."""
    bookmark = ("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": "55"}})
    script = Script((10, node("a")), watches=([bookmark, CUT], []))
    events, _ = follow(script, 3)
    assert events == [Synced({"a": parsed("a")})]
    assert script.calls[-1] == "watch 55"


def test_each_answer_counts_as_contact():
    """Lists, watches and all their events, also bookmarks and heartbeats, are contact with the server."""
    heartbeat = WatchEvent("MODIFIED", node("a", 6, conditions=[1]))
    bookmark = WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": "7"}})
    script = Script((5, node("a", 5)), watches=([heartbeat, bookmark],))
    contacts: list[bool] = []
    events: list[NodeEvent] = []
    watch = NodeWatch(KubernetesNodes(script), events.append, on_contact=lambda: contacts.append(True))
    watch.step()
    watch.step()
    assert len(contacts) == 4
    assert len(events) == 1


def test_internal_error_does_not_end_the_thread():
    """A mistake in the work for an answer is reported as a failure, and the thread lists again."""
    script = Script((5, node("a", 5)), (6, node("a", 6)), watches=([], CUT))
    script.lists.insert(0, ())  # an answer that the client does not give
    events: queue.Queue[NodeEvent] = queue.Queue()
    watch = NodeWatch(KubernetesNodes(script), events.put, randomness=lambda: -1.0)
    watch.start()
    failed = events.get(timeout=30)
    assert isinstance(failed, Failed)
    assert "internal error" in str(failed.error)
    assert isinstance(events.get(timeout=30), Synced)
    watch.stop()


def test_an_expired_position_lists_again():
    """410 lists again at once, in a small cluster; what changed meanwhile is in the new list."""
    script = Script((10, node("a")), (90, node("b")), watches=([Expired("w", "old")], []))
    events, delays = follow(script, 4)
    assert events == [Synced({"a": parsed("a")}), Synced({"b": parsed("b")})]
    assert script.calls == ["list", "watch 10", "list", "watch 90"]
    assert delays[1] == 0.5 / 500


def test_expired_positions_in_a_row_are_delayed():
    """A server that answers each watch with 410 is asked less and less often."""
    script = Script(*[(10, node("a"))] * 4, watches=(Expired("w", "old"),) * 4)
    _, delays = follow(script, 8)
    assert delays[1::2] == [0.5 / 500, 1.5, 3.0, 6.0]


def test_agents_of_a_large_cluster_list_again_in_turn():
    """410 at the same time in 5,000 agents spreads their lists over ten seconds."""
    nodes = [node(f"n{number}") for number in range(5000)]
    _, delays = follow(Script((10, *nodes), watches=([Expired("w", "old")],)), 2)
    assert delays[1] == 5.0


def test_a_restored_store_lists_again():
    """A server whose resourceVersion is below the last one was restored from a backup: its watch would be silent."""
    script = Script((100, node("a")), (60, node("b")), watches=([CUT], []), probes=(60,))
    events, _ = follow(script, 5)
    assert events == [Synced({"a": parsed("a")}), Synced({"b": parsed("b")}, is_older=True)]
    assert script.calls == ["list", "watch 100", "probe", "list", "watch 60"]


def test_an_older_event_is_never_applied():
    """An event with a lower resourceVersion does not change a node: the nodes are listed again."""
    old = ("MODIFIED", node("a", 9, "10.0.9.0/24"))
    script = Script((10, node("a")), (11, node("a")), watches=([old], []))
    events, _ = follow(script, 3)
    assert events == [Synced({"a": parsed("a")})] * 2


def test_a_failed_list_is_repeated_with_longer_delays():
    """Each failure is reported; delays double up to a minute, half of them random."""
    error = Forbidden("list", "no", status=403)
    script = Script(*[(error,)] * 9, (10, node("a")))
    events, delays = follow(script, 10)
    assert events == [Failed(error)] * 9 + [Synced({"a": parsed("a")})]
    assert delays == [0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 45.0, 45.0, 45.0, 0.0]


def test_a_failed_watch_is_reported_until_it_is_open():
    """A watch that cannot be opened is a failure; when it opens, the nodes are up to date again."""
    script = Script((10, node("a")), watches=(CUT, CUT, [("ADDED", node("b", 11))]), probes=(10, CUT, 10))
    events, delays = follow(script, 5)
    assert events[1:] == [*[Failed(CUT)] * 3, Recovered(), Changed(parsed("b"))]
    assert delays == [0.0, 0.75, 1.5, 3.0, 0.5]


def test_a_cut_of_a_lasting_watch_is_no_failure():
    """A watch that was open for a while and is cut continues, without a report."""
    script = Script((10, node("a")), watches=([CUT], [CUT], []))
    events, delays = follow(script, 4)
    assert events == [Synced({"a": parsed("a")})]
    assert delays == [0.0, 0.5, 0.5, 0.5]


def test_a_watch_that_ends_at_once_is_a_failure():
    """A server that ends each watch at once, with or without an error, is asked less and less often."""
    script = Script((10, node("a")), watches=([CUT], [], [CUT]))
    script.watch_lasts_s = 0.1
    events, delays = follow(script, 4)
    assert [type(event) for event in events] == [Synced, Failed, Recovered, Failed, Recovered, Failed]
    assert delays == [0.0, 0.75, 1.5, 3.0]


def test_a_short_watch_with_an_event_is_no_failure():
    """A watch that ends at once but after an event is no failure."""
    script = Script((10, node("a")), watches=([("ADDED", node("b", 11)), CUT],))
    script.watch_lasts_s = 0.1
    events, delays = follow(script, 2)
    assert events[1:] == [Changed(parsed("b"))]
    assert delays == [0.0, 0.5]


def test_the_server_says_when_to_come_back():
    """The delay is at least the server's Retry-After."""
    error = TooManyRequests("list", "wait", retry_after_s=33, status=429)
    _, delays = follow(Script((error,)), 1)
    assert delays == [33]


@pytest.mark.parametrize("document", [{}, {"metadata": {"name": "a", "resourceVersion": "11"}}])
def test_an_event_that_is_no_node_lists_again(document):
    """An object without name or UID is a failure, and the nodes are listed again."""
    script = Script((10, node("a")), (12, node("a")), watches=([("ADDED", document)],))
    events, _ = follow(script, 3)
    assert [type(event) for event in events] == [Synced, Failed, Synced]
    assert isinstance(events[1].error, InvalidAnswer)


def test_a_list_without_a_position_is_a_failure():
    """A list without a resourceVersion cannot be followed by a watch."""
    script = Script(("", node("a")))
    events, _ = follow(script, 1)
    assert isinstance(events[0].error, InvalidAnswer)


def test_a_list_with_expired_pages_is_a_failure():
    """410 for the pages of a list is a failure with a delay, not a reason to list at once."""
    events, delays = follow(Script((Expired("list", "old"),)), 1)
    assert isinstance(events[0].error, OutcomeUnknown)
    assert delays == [0.75]


def test_stop_ends_an_open_watch():
    """A watch that opens after stop() is closed."""
    script = Script((10, node("a")), watches=([],))
    watch = NodeWatch(KubernetesNodes(script), list[NodeEvent]().append, monotonic=lambda: script.now)
    watch.step()
    watch.stop()
    watch.step()
    assert script.is_closed
