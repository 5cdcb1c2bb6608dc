"""Kubernetes Events about the node: each text once an hour, and a failure is only logged."""

from typing import Any

import pytest

from agent.api_errors import ApiError, Conflict, Forbidden, OutcomeUnknown, TooManyRequests
from agent.api_object import Document
from agent.events import EVENTS, EventRecorder, Subject


class Cluster:
    """A server that keeps the Events, or refuses them with `error`; its time is `now`."""

    def __init__(self, node_name: str = "node-1") -> None:
        self.events: list[Any] = []
        self.log: list[str] = []
        self.error: ApiError | None = None
        self.now = 0.0
        self.recorder = EventRecorder(
            self, node_name, self.log.append, monotonic=lambda: self.now, clock=lambda: 1_795_000_000
        )

    def create(self, collection: str, document: Document) -> Document:
        assert collection == EVENTS
        if self.error:
            raise self.error
        self.events.append(document)
        return document

    def report(self, message: str = "10.244.1.0/24 belongs to two nodes", **options: Any) -> int:
        """Reports an Event and returns the number that arrived."""
        self.recorder.report("DuplicatePodCIDR", message, **options)
        count = len(self.events)
        self.recorder.send_queued()
        return len(self.events) - count


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_an_event_about_an_ipspace(cluster):
    """An Event about an IPSpace is in the same namespace, named after the object; the node is only its source."""
    cluster.report("refused", about=Subject.of_space("default", "77ab"))
    (event,) = cluster.events
    about = {"apiVersion": "podwire.io/v1", "kind": "IPSpace", "name": "default", "uid": "77ab"}
    assert event["involvedObject"] == about
    assert event["metadata"]["name"].startswith("default.")
    assert event["source"]["host"] == "node-1"
    assert cluster.report("refused") == 1, "the same text about the Node is another Event"


def test_an_event_names_the_node(cluster):
    """An Event is in the namespace default, about the Node by name and UID, from this agent."""
    cluster.recorder.node_uid = "8a7e"
    cluster.report()
    (event,) = cluster.events
    name = event["metadata"].pop("name")
    assert name.startswith("node-1.")
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "8a7e"},
        "type": "Warning",
        "reason": "DuplicatePodCIDR",
        "message": "10.244.1.0/24 belongs to two nodes",
        "source": {"component": "podwire-agent", "host": "node-1"},
        "reportingComponent": "podwire-agent",
        "reportingInstance": "node-1",
        "firstTimestamp": "2026-11-18T11:06:40Z",
        "lastTimestamp": "2026-11-18T11:06:40Z",
        "count": 1,
    }


def test_an_event_without_the_uid_has_the_name(cluster):
    """Before the Node's UID is known the Event has its name there, as kubelet's have."""
    cluster.report(is_warning=False)
    assert cluster.events[0]["involvedObject"]["uid"] == "node-1"
    assert cluster.events[0]["type"] == "Normal"


def test_a_text_is_created_once_an_hour(cluster):
    """The same text counts once an hour, another text at once; the same text has the same name."""
    assert cluster.report() == 1
    cluster.now = 3599.0
    assert cluster.report() == 0
    assert cluster.report("other") == 1
    cluster.now = 3601.0
    assert cluster.report() == 1
    names = [event["metadata"]["name"] for event in cluster.events]
    assert names[0] == names[2] != names[1]


def test_an_event_that_the_cluster_has_is_no_failure(cluster):
    """An Event of an earlier agent with the same text counts as created."""
    cluster.error = Conflict("POST", "already exists", status=409)
    cluster.report()
    assert cluster.log == []


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [
        (Forbidden("Kubernetes API: POST", "no right", status=403), 60),
        (OutcomeUnknown("Kubernetes API: POST", "cut"), 60),
        (TooManyRequests("Kubernetes API: POST", "wait", retry_after_s=90, status=429), 90),
    ],
)
def test_a_failure_is_logged_and_repeated_later(cluster, error, wait_s):
    """A failure is one log line; the next report of the text after a minute, or the server's time, tries again."""
    cluster.error = error
    assert cluster.report() == 0
    assert len(cluster.log) == 1
    assert "no Kubernetes Event DuplicatePodCIDR (10.244.1.0/24 belongs to two nodes): Kubernetes API" in cluster.log[0]
    cluster.error, cluster.now = None, wait_s - 1.0
    assert cluster.report() == 0
    cluster.now = wait_s + 1.0
    assert cluster.report() == 1


def test_events_are_limited(cluster):
    """Of a hundred texts in an hour, 25 become Events and the others log lines."""
    assert sum(cluster.report(f"text {number}") for number in range(100)) == 25
    assert len(cluster.log) == 75
    cluster.now = 3601.0
    assert cluster.report("text 99") == 1


def test_long_texts_and_names_are_cut():
    """A message has at most 1,000 characters, an Event's name at most 253, and no dots in a row."""
    cluster = Cluster("n" * 199 + "." + "m" * 53)
    cluster.report("x" * 5000 + "\ud800")
    (event,) = cluster.events
    assert event["message"] == "x" * 1000
    assert event["metadata"]["name"].startswith("n" * 199 + ".")
    assert len(event["metadata"]["name"]) == 199 + 1 + 16
    cluster.report("\ud800")


def test_the_thread_creates_and_ends(cluster):
    """The thread creates what waits, then ends."""
    cluster.recorder.report("Drained", "a")
    cluster.recorder.start()
    cluster.recorder.stop(60)
    assert [event["reason"] for event in cluster.events] == ["Drained"]
