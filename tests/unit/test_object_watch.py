"""The objects of a cluster, such as its nodes: lists and watches of a scripted server, step by step."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import pytest

from agent.api_answer import WatchEvent
from agent.api_errors import ApiError, Expired, Forbidden, InvalidAnswer, OutcomeUnknown, TooManyRequests
from agent.api_object import Document
from agent.kubernetes import PAGE_SIZE, Listing
from agent.node import Node, parse_node
from agent.object_source import kubernetes_nodes
from agent.object_watch import Changed, Deleted, Failed, ObjectEvent, ObjectWatch, Recovered, Synced
from agent.pools.pods import PodKeys, pods_of_node

T = TypeVar("T")
CUT = OutcomeUnknown("watch", "cut")


def node(name: str, version: int = 1, cidr: str = "10.0.1.0/24", **status: Any) -> Document:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"podCIDR": cidr}, "status": status}


def parsed(name: str, cidr: str = "10.0.1.0/24") -> Node:
    return parse_node(node(name, cidr=cidr))


class Script:
    """A server with prepared answers: lists, probes of the resourceVersion, watches. An exception is raised."""

    def __init__(
        self, *lists: Any, watches: tuple[Any, ...] = (), probes: tuple[Any, ...] = (), lasts_s: float = 60.0
    ) -> None:
        self.lists, self.watches, self.probes = list(lists), list(watches), list(probes)
        self.calls: list[str] = []
        self.now = 0.0
        self.watch_lasts_s = lasts_s
        self.is_closed = False

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        self.calls.append("probe")
        probe = self.probes.pop(0) if self.probes else 999
        if isinstance(probe, ApiError):
            raise probe
        return {"metadata": {"resourceVersion": str(probe)}, "items": []}

    def list_objects(
        self,
        path: str,
        parse: Callable[[Document], T],
        query: Mapping[str, str] | None = None,
        *,
        page_size: int = PAGE_SIZE,
    ) -> Listing[T]:
        self.calls.append("list")
        version, *nodes = self.lists.pop(0)
        if isinstance(version, ApiError):
            raise version
        return Listing([parse(one) for one in nodes], str(version))

    def watch(
        self, path: str, resource_version: str, query: Mapping[str, str] | None, *, timeout_s: int
    ) -> ScriptedWatch:
        self.calls.append(f"watch {resource_version}")
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
    watch = ObjectWatch(kubernetes_nodes(script), events.append, randomness=lambda: 0.5, monotonic=lambda: script.now)
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


def test_each_answer_counts_as_contact():
    """Lists, watches and all their events, also bookmarks and heartbeats, are contact with the server."""
    heartbeat = WatchEvent("MODIFIED", node("a", 6, conditions=[1]))
    bookmark = WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": "7"}})
    script = Script((5, node("a", 5)), watches=([heartbeat, bookmark],))
    contacts: list[bool] = []
    events: list[ObjectEvent[Node]] = []
    watch = ObjectWatch(kubernetes_nodes(script), events.append, on_contact=lambda: contacts.append(True))
    watch.step()
    watch.step()
    assert len(contacts) == 4
    assert len(events) == 1


def test_internal_error_does_not_end_the_thread():
    """A mistake in the work for an answer is reported as a failure, and the thread lists again."""
    script = Script((5, node("a", 5)), (6, node("a", 6)), watches=([], CUT))
    script.lists.insert(0, ())  # an answer that the client does not give
    events: queue.Queue[ObjectEvent[Node]] = queue.Queue()
    watch = ObjectWatch(kubernetes_nodes(script), events.put, randomness=lambda: -1.0)
    watch.start()
    failed = events.get(timeout=30)
    assert isinstance(failed, Failed)
    assert "internal error" in str(failed.error)
    assert isinstance(events.get(timeout=30), Synced)
    watch.stop()


class Case(NamedTuple):
    """A script, and what it leads to after some steps; what is None is not compared."""

    script: Script
    steps: int
    events: list[ObjectEvent[Node]] | None = None
    delays: list[float] | None = None
    calls: list[str] | None = None


A = (10, node("a"))
KNOWN = Synced({"a": parsed("a")})
HEARTBEAT = ("MODIFIED", node("a", 11, conditions=[{"lastHeartbeatTime": "now"}]))
BOOKMARK = ("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": "55"}})
AGAIN = {**node("a", 12), "metadata": {"name": "a", "uid": "new", "resourceVersion": "12"}}
ADDED = ("ADDED", node("b", 11))
EXPIRED = Expired("w", "old")
FORBIDDEN = Forbidden("list", "no", status=403)
RETRY = TooManyRequests("list", "wait", retry_after_s=33, status=429)
LARGE = (10, *(node(f"n{number}") for number in range(5000)))
CASES = {
    "heartbeats, repeated events and unknown deletions are dropped": Case(
        Script(A, watches=([HEARTBEAT, HEARTBEAT, ("DELETED", node("x", 12))],)), 2, [KNOWN]
    ),
    "a node that was deleted and created again has another UID": Case(
        Script(A, watches=([("MODIFIED", AGAIN)],)), 2, [KNOWN, Changed(parse_node(AGAIN))]
    ),
    "a bookmark is the position of the next watch": Case(
        Script(A, watches=([BOOKMARK, CUT], [])), 3, [KNOWN], calls=["list", "watch 10", "probe", "watch 55"]
    ),
    "an expired position lists again at once in a small cluster": Case(
        Script(A, (90, node("b")), watches=([EXPIRED], [])),
        4,
        [KNOWN, Synced({"b": parsed("b")})],
        [0.0, 0.5 / 500, 0.0, 0.5],
        ["list", "watch 10", "list", "watch 90"],
    ),
    "expired positions in a row are delayed": Case(
        Script(*[A] * 4, watches=(EXPIRED,) * 4), 8, delays=[0.0, 0.5 / 500, 0.0, 1.5, 0.0, 3.0, 0.0, 6.0]
    ),
    "5,000 agents spread their lists over ten seconds": Case(Script(LARGE, watches=([EXPIRED],)), 2, delays=[0.0, 5.0]),
    "a server with a lower position was restored from a backup": Case(
        Script((100, node("a")), (60, node("b")), watches=([CUT], []), probes=(60,)),
        5,
        [KNOWN, Synced({"b": parsed("b")}, is_older=True)],
        calls=["list", "watch 100", "probe", "list", "watch 60"],
    ),
    "an older event changes no node, and lists again": Case(
        Script(A, (11, node("a")), watches=([("MODIFIED", node("a", 9, "10.0.9.0/24"))], [])), 3, [KNOWN] * 2
    ),
    "delays of failed lists double up to a minute, half of them random": Case(
        Script(*[(FORBIDDEN,)] * 9, A),
        10,
        [*[Failed(FORBIDDEN)] * 9, KNOWN],
        [0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 45.0, 45.0, 45.0, 0.0],
    ),
    "a watch that cannot be opened is a failure until it opens": Case(
        Script(A, watches=(CUT, CUT, [ADDED]), probes=(10, CUT, 10)),
        5,
        [KNOWN, *[Failed(CUT)] * 3, Recovered(), Changed(parsed("b"))],
        [0.0, 0.75, 1.5, 3.0, 0.5],
    ),
    "a cut of a lasting watch is no failure": Case(
        Script(A, watches=([CUT], [CUT], [])), 4, [KNOWN], [0.0, 0.5, 0.5, 0.5]
    ),
    "a short watch with an event is no failure": Case(
        Script(A, watches=([ADDED, CUT],), lasts_s=0.1), 2, [KNOWN, Changed(parsed("b"))], [0.0, 0.5]
    ),
    "the delay is at least the server's Retry-After": Case(Script((RETRY,)), 1, [Failed(RETRY)], [33]),
}


@pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))
def test_events_and_delays(case):
    """Each script of a server leads to its events, delays and requests."""
    events, delays = follow(case.script, case.steps)
    assert case.events in (None, events)
    assert case.delays in (None, delays)
    assert case.calls in (None, case.script.calls)


def test_a_watch_that_ends_at_once_is_a_failure():
    """A server that ends each watch at once, with or without an error, is asked less and less often."""
    events, delays = follow(Script(A, watches=([CUT], [], [CUT]), lasts_s=0.1), 4)
    assert [type(event) for event in events] == [Synced, Failed, Recovered, Failed, Recovered, Failed]
    assert delays == [0.0, 0.75, 1.5, 3.0]


@pytest.mark.parametrize("document", [{}, {"metadata": {"name": "a", "resourceVersion": "11"}}])
def test_an_event_that_is_no_node_lists_again(document):
    """An object without name or UID is a failure, and the nodes are listed again."""
    events, _ = follow(Script(A, (12, node("a")), watches=([("ADDED", document)],)), 3)
    assert [type(event) for event in events] == [Synced, Failed, Synced]
    assert isinstance(events[1].error, InvalidAnswer)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(("", node("a")), InvalidAnswer), ((Expired("list", "old"),), OutcomeUnknown)],
    ids=["no position", "expired pages"],
)
def test_a_list_that_cannot_be_used_is_a_failure(answer, error):
    """A list without a position, or with expired pages, is a failure with a delay, no reason to list at once."""
    events, delays = follow(Script(answer), 1)
    assert isinstance(events[0].error, error)
    assert delays == [0.75]


def test_stop_ends_an_open_watch():
    """A watch that opens after stop() is closed."""
    script = Script((10, node("a")), watches=([],))
    watch = ObjectWatch(kubernetes_nodes(script), list[ObjectEvent[Node]]().append, monotonic=lambda: script.now)
    watch.step()
    watch.stop()
    watch.step()
    assert script.is_closed


def pod(name: str, version: int, phase: str = "Running") -> Document:
    metadata = {"namespace": "team-a", "name": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase}}


def test_the_keys_of_a_nodes_pods_follow_its_watch():
    """The pods with an address are reported after the list and each change; a failure is reported until the next."""
    keys, problems = list[Mapping[str, str]](), list[str]()
    events = [("ADDED", pod("b", 11)), ("MODIFIED", pod("a", 12, "Failed")), ("DELETED", pod("b", 13)), EXPIRED]
    script = Script((10, pod("a", 9)), (FORBIDDEN,), watches=(events,))
    handle = PodKeys(lambda pods: keys.append(dict(pods)), problems.append).handle
    watch = ObjectWatch(pods_of_node(script, "node-1"), handle, randomness=lambda: 0.5)
    for _ in range(3):
        watch.step()
    a, b = {"team-a/a": "team-a/a"}, {"team-a/b": "team-a/b"}
    assert keys == [a, {**a, **b}, b, {}]
    assert [problem[:20] for problem in problems] == [*[""] * 4, "the pods of this nod"]
