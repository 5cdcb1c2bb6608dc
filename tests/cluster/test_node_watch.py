"""The agent's view of the nodes, with a server that cuts connections, expires, goes back to a backup and comes back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent.api_errors import OutcomeUnknown
from agent.node_source import KubernetesNodes
from agent.node_watch import Changed, Deleted, Failed, NodeEvent, NodeWatch, Recovered, Synced
from tests.support.kubernetes_double import NODES, Fault


class Follower:
    """A running NodeWatch and the events that it reports."""

    def __init__(self, client: Any, **options: Any) -> None:
        self.events: queue.Queue[NodeEvent] = queue.Queue()
        self.watch = NodeWatch(KubernetesNodes(client), self.events.put, randomness=lambda: 0.0, **options)
        self.watch.start()

    def next(self) -> NodeEvent:
        return self.events.get(timeout=10)

    def next_but_failures(self) -> tuple[int, NodeEvent]:
        """Returns the number of failures before the next other event, and this event."""
        count = 0
        while isinstance(event := self.next(), Failed):
            count += 1
        return count, event


@pytest.fixture
def follower(double, client) -> Iterator[Follower]:
    """A NodeWatch of the double, with two nodes, after its first list."""
    for name in ("a", "b"):
        put(double, name)
    new = Follower(client)
    assert set(synced(new.next())) == {"a", "b"}
    yield new
    new.watch.stop()


def put(double, name: str, cidr: str = "10.0.1.0/24", **status: Any) -> None:
    double.store.put(f"{NODES}/{name}", {"spec": {"podCIDR": cidr}, "status": status})


def synced(event: NodeEvent) -> dict[str, str]:
    assert isinstance(event, Synced)
    return {name: str(node.pod_cidrs[0]) for name, node in event.nodes.items()}


def changed(event: NodeEvent) -> tuple[str, str]:
    assert isinstance(event, Changed)
    return event.node.name, str(event.node.pod_cidrs[0])


def test_changes_arrive(double, follower):
    """New, changed and deleted nodes arrive; a heartbeat does not."""
    put(double, "c", "10.0.3.0/24")
    assert changed(follower.next()) == ("c", "10.0.3.0/24")
    put(double, "a", conditions=[{"lastHeartbeatTime": "now"}])
    double.store.remove(f"{NODES}/b")
    assert follower.next() == Deleted("b")


def test_changes_during_a_cut_arrive(double, follower):
    """A cut connection continues by resourceVersion: what changed meanwhile arrives, without a new list."""
    double.wait_for_watch()
    double.faults.append(Fault("watch=1", status=503, times=2))
    double.cut_watches()
    put(double, "a", "10.0.7.0/24")
    failures, event = follower.next_but_failures()
    assert failures >= 2
    assert event == Recovered()
    assert changed(follower.next()) == ("a", "10.0.7.0/24")
    assert sum("watch" not in one and "limit=100" in one for one in double.requests) == 1


def test_a_compaction_during_a_cut_lists_again(double, follower):
    """After 410 the list has what changed meanwhile, and the deleted node is gone."""
    double.wait_for_watch()
    double.faults.append(Fault("watch=1", status=503))
    double.cut_watches()
    double.store.remove(f"{NODES}/b")
    put(double, "a", "10.0.7.0/24")
    double.store.compact()
    failures, event = follower.next_but_failures()
    assert failures >= 1
    assert synced(event) == {"a": "10.0.7.0/24"}


def test_a_restored_backup_lists_again(double, follower):
    """A server that comes back with an older store is noticed, and its nodes count."""
    double.wait_for_watch()
    backup = double.store.backup()
    put(double, "a", "10.0.7.0/24")
    assert changed(follower.next()) == ("a", "10.0.7.0/24")
    double.store.restore(backup)
    double.cut_watches()
    assert synced(follower.next_but_failures()[1]) == {"a": "10.0.1.0/24", "b": "10.0.1.0/24"}
    put(double, "b", "10.0.8.0/24")
    assert changed(follower.next()) == ("b", "10.0.8.0/24")


def test_a_silently_cut_connection_is_noticed(double, new_client):
    """A server whose packets no longer arrive is noticed by the missing bookmarks."""
    put(double, "a")
    double.is_silent = True
    follower = Follower(new_client(watch_s=0.5))
    assert synced(follower.next()) == {"a": "10.0.1.0/24"}
    put(double, "a", "10.0.7.0/24")
    event = follower.next()  # a watch that was silent for less than 5 s is a failure
    assert isinstance(event, Failed)
    assert isinstance(event.error, OutcomeUnknown)
    double.is_silent = False
    assert follower.next_but_failures()[1] == Recovered()
    assert changed(follower.next()) == ("a", "10.0.7.0/24")
    follower.watch.stop()


def test_a_wrong_token_leaves_the_nodes(double, follower, token_file):
    """A token that expires is reported, with the time of the first failure; a new one ends the failure."""
    double.wait_for_watch()
    double.tokens = {"new": None}
    double.cut_watches()
    while "HTTP 401" not in str(event := follower.next()):
        assert isinstance(event, Failed)
    token_file.write_text("new")
    assert follower.next_but_failures()[1] == Recovered()


@pytest.mark.parametrize("fault", [None, Fault(status=503, times=1000)], ids=["watch", "delay"])
def test_stop_is_prompt(double, client, fault):
    """A call of stop() ends an open watch, and the delay after a failure, at once."""
    double.bookmark_s = 60
    if fault:
        double.faults.append(fault)
    follower = Follower(client)
    follower.next()
    if not fault:
        double.wait_for_watch()
    follower.watch.stop(5)
    assert "node-watch" not in [thread.name for thread in threading.enumerate()]
