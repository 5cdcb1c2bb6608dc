"""The agent's part for network policies in this process: a scripted API server, records, a socket, real nftables."""

import errno
import fcntl
import json
import queue
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Any

import pytest

from agent.api_answer import WatchEvent
from agent.api_errors import Expired
from agent.kubernetes import Listing
from agent.log import Log
from agent.metrics import Metrics
from agent.policy import local_pods
from agent.policy.cluster_objects import NAMESPACES, PODS, POLICIES
from agent.policy.service import PolicyService
from agent.settings import parse
from attachment.policy import gate, records, table
from attachment.policy.records import PodRecord
from kernel.netfilter import nft
from process.loop import Loop, now
from process.signals import Terminated
from tests.support.policy_node import private_directory

ADDRESS = "10.22.0.7"
DENY: Any = {"metadata": {"namespace": "shop", "name": "deny"}, "spec": {"podSelector": {}}}


def pod(name="db", uid="1", **labels):
    """Returns a pod's object, without an address in its status."""
    return {"metadata": {"namespace": "shop", "name": name, "uid": uid, "labels": labels}}


class Script:
    """An API server: `objects` by collection, and events that a test sends."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Any]] = {PODS: [], NAMESPACES: [], POLICIES: []}
        self.events: dict[str, queue.Queue[Any]] = {path: queue.Queue() for path in self.objects}

    def list_objects(self, path, parse, query=None, *, page_size=100):
        """Returns the objects of a collection."""
        return Listing([parse(one) for one in self.objects[path]], "10")

    def get(self, path, query=None):
        """Returns a page without objects."""
        return {"metadata": {"resourceVersion": "10"}}

    def watch(self, path, resource_version, query, *, timeout_s):
        """Opens a watch, which a test's exception ends."""
        return ScriptedWatch(self.events[path])


class ScriptedWatch:
    """The events of one watch."""

    def __init__(self, events: queue.Queue[Any]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[WatchEvent]:
        while not isinstance(event := self._events.get(), Exception):
            yield event
        raise event

    def close(self) -> None:
        """Ends the watch."""
        self._events.put(Expired("watch", "closed"))


class Agent:
    """A running service; `until` runs its loop."""

    def __init__(self, script: Script) -> None:
        self.loop, self.problem, self.note = Loop(), "starting", ""
        settings = parse(["--network-policy", "--no-install"], {"NODE_NAME": "node-1"})
        metrics = Metrics("1").add_policies()
        self.service = PolicyService(settings, self.loop, script, metrics, self.report, Log("error", "1", "n"))
        self.service.start()

    def report(self, problem: str, note: str) -> None:
        """Takes in what the service reports."""
        self.problem, self.note = problem, note

    def until(self, condition: Callable[[], bool], within_s: float = 30.0) -> bool:
        """Runs the loop until a condition is true; returns False if it does not become so."""
        end_s = now() + within_s

        def check() -> None:
            if condition() or now() > end_s:
                raise Terminated
            self.loop.call_at(now() + 0.005, check)

        check_again = self.loop.call_at(now(), check)
        with pytest.raises(Terminated):
            self.loop.run()
        check_again.cancel()
        return condition()


@pytest.fixture
def script(host):
    """A scripted server, in a namespace and with a directory of the test."""
    with ExitStack() as stack:
        stack.enter_context(host.entered())
        stack.enter_context(private_directory())
        yield Script()


@pytest.fixture
def agent(script):
    """A service with one policy, which isolates all pods of the namespace shop."""
    script.objects[POLICIES] = [DENY]
    running = Agent(script)
    assert running.until(lambda: not running.problem)
    yield running
    running.service.stop()


def listed() -> gate.Namespaces:
    """Returns the content of the agent's file."""
    namespaces = gate.read_namespaces(gate.current_boot())
    assert namespaces
    return namespaces


def write_record(name="db", uid="1", address=ADDRESS):
    """Writes the record of a pod, as ADD does; returns the name of its file."""
    record = PodRecord(
        gate.current_boot(), "shop", name, uid, "net", uid, "eth0", "veth0", "", (ip_address(address),), "bridge"
    )
    records.write(record)
    return record.file_name


def isolated(host):
    """Returns whether the kernel's map has the address of the pod."""
    return ADDRESS in host.run("nft", "list", "map", "inet", table.TABLE.name, table.INGRESS[4].name)


class Add:
    """An ADD that waits on the socket."""

    def __init__(self, record: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.connect(table.GATE_SOCKET)
        self._socket.send(json.dumps({"record": record, "generation": 1}).encode() + b"\n")
        self.answer = b""

    def is_answered(self) -> bool:
        """Returns whether the answer has arrived."""
        try:
            self.answer += self._socket.recv(100)
        except BlockingIOError:
            return False
        return True


def test_add_is_answered_when_the_pods_object_is_known(script, agent, host):
    """Without the pod's object its labels are not known: ADD waits for it, with the address isolated meanwhile."""
    add = Add(write_record())
    assert agent.until(lambda: isolated(host))
    assert not agent.until(add.is_answered, within_s=0.3)
    script.events[PODS].put(WatchEvent("ADDED", pod(uid="of the former pod of this name")))
    assert not agent.until(add.is_answered, within_s=0.3)
    script.events[PODS].put(WatchEvent("MODIFIED", pod()))
    assert agent.until(add.is_answered)
    assert json.loads(add.answer) == {"generation": listed().generation}
    assert isolated(host)


def test_add_of_a_deleted_pod_is_answered(script, agent, host):
    """A sandbox that kubelet creates again for a deleted pod is isolated, and ADD does not wait for its object."""
    script.events[PODS].put(WatchEvent("ADDED", pod()))
    script.events[PODS].put(WatchEvent("DELETED", pod()))
    script.events[PODS].put(WatchEvent("ADDED", pod("later", "2")))
    assert agent.until(Add(write_record("later", "2", "10.22.0.8")).is_answered)
    add = Add(write_record())
    assert agent.until(add.is_answered)
    assert isolated(host)


def test_many_adds_are_answered_together(script, agent):
    """ADDs that wait together have one transaction."""
    script.objects[PODS] = [pod(f"p{number}", str(number)) for number in range(50)]
    for document in script.objects[PODS]:
        script.events[PODS].put(WatchEvent("ADDED", document))
    adds = [Add(write_record(f"p{number}", str(number), f"10.22.1.{number}")) for number in range(50)]
    with nft.open_socket() as netfilter:
        before = generation(netfilter)
        assert agent.until(lambda: all(add.answer or add.is_answered() for add in adds))
        assert generation(netfilter) - before < 10


def fails_once(function):
    """Returns a function that fails at its first call."""
    errors = [OSError(errno.EMFILE, "Too many open files")]

    def call(*arguments):
        if errors:
            raise errors.pop()
        return function(*arguments)

    return call


def generation(netfilter):
    """Returns the number of nftables transactions since the boot."""
    return nft.retry_with_generation(netfilter, lambda number: number)


def test_del_is_not_overtaken(script, agent, host):
    """While DEL has the record's lock, no change of policies brings the pod's address back into the filter."""
    script.events[PODS].put(WatchEvent("ADDED", pod()))
    name = write_record()
    assert agent.until(lambda: isolated(host))

    def release(record):
        host.run("nft", "delete", "element", "inet", table.TABLE.name, table.INGRESS[4].name, f"{{ {ADDRESS} }}")
        script.events[POLICIES].put(
            WatchEvent("MODIFIED", {**DENY, "spec": {**DENY["spec"], "policyTypes": ["Ingress", "Egress"]}})
        )
        assert not agent.until(lambda: isolated(host), within_s=0.5)

    records.delete(name, release)
    assert not agent.until(lambda: isolated(host), within_s=0.3)


def test_a_policy_that_went_while_no_watch_was_open(script, agent, host):
    """What a new list lacks is gone: the pods are open, and ADD does not wait in the namespace."""
    script.events[PODS].put(WatchEvent("ADDED", pod()))
    write_record()
    assert agent.until(lambda: isolated(host))
    script.objects[POLICIES] = []
    script.events[POLICIES].put(Expired("watch", "too old"))
    assert agent.until(lambda: not isolated(host))
    assert listed().names == frozenset()


def test_generations_rise_across_restarts(script, agent):
    """The next agent's file has a higher generation, so that an answer of the former one's file does not count."""
    before = listed().generation
    agent.service.stop()
    following = Agent(script)
    assert following.until(lambda: listed().generation == before + 1)
    following.service.stop()


def test_a_flushed_ruleset_is_repaired_within_moments(script, agent, host):
    """After `nft flush ruleset` the filter is there again, before the next change of the cluster."""
    script.events[PODS].put(WatchEvent("ADDED", pod()))
    write_record()
    assert agent.until(lambda: isolated(host))
    host.run("nft", "flush", "ruleset")
    tables = ("nft", "list", "tables")
    assert agent.until(lambda: table.TABLE.name in host.run(*tables), within_s=10)
    assert isolated(host)


def test_pods_that_started_without_policies_are_named(script, agent):
    """Running pods of this node without record are no problem, but a note that names them."""
    old = pod("old", "7")
    document = {**old, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running", "podIP": ADDRESS}}
    script.events[PODS].put(WatchEvent("ADDED", document))
    assert agent.until(lambda: "shop/old" in agent.note)
    write_record("old", "7")
    assert agent.until(lambda: not agent.note)
    assert not agent.problem


def test_objects_that_cannot_be_read(script, agent, host):
    """A pod or a policy that no server would accept is reported and closed; the events after it are handled."""
    broken = {**pod(), "status": {"podIP": "10.22.0.300"}}
    script.events[PODS].put(WatchEvent("ADDED", broken))
    add = Add(write_record())
    assert agent.until(lambda: "Pod shop/db" in agent.problem)
    assert not agent.until(add.is_answered, within_s=0.3)
    script.events[PODS].put(WatchEvent("MODIFIED", pod()))
    assert agent.until(add.is_answered)
    assert not agent.problem
    closed = {**DENY, "spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "all"}}]}]}}
    script.events[POLICIES].put(WatchEvent("MODIFIED", closed))
    assert agent.until(lambda: "NetworkPolicy shop/deny" in agent.problem)
    script.events[POLICIES].put(WatchEvent("DELETED", closed))
    assert agent.until(lambda: not isolated(host))
    assert not agent.problem


def test_a_failure_between_plan_and_filter_loses_no_difference(script, agent, host, monkeypatch):
    """When the records cannot be locked once, the next turn compares everything, so a change of a set is not lost."""
    rules = [{"from": [{"podSelector": {"matchLabels": {"app": "peer"}}}]}]
    script.events[POLICIES].put(WatchEvent("MODIFIED", {**DENY, "spec": {"ingress": rules}}))
    script.events[PODS].put(WatchEvent("ADDED", pod()))
    write_record()
    assert agent.until(lambda: isolated(host))
    monkeypatch.setattr(agent.service._local, "locked", fails_once(agent.service._local.locked))
    script.events[PODS].put(WatchEvent("ADDED", {**pod("peer", "2", app="peer"), "status": {"podIP": "10.22.0.9"}}))
    assert agent.until(lambda: "10.22.0.9" in host.run("nft", "list", "table", "inet", table.TABLE.name))


def test_without_descriptors_a_pod_keeps_its_policies(script, agent, host, monkeypatch):
    """A record that cannot be locked, because the agent has too many open files, does not count as deleted."""
    script.events[PODS].put(WatchEvent("ADDED", pod()))
    write_record()
    assert agent.until(lambda: isolated(host))
    monkeypatch.setattr("agent.policy.local_pods.flock", fails_once(fcntl.flock))
    script.events[POLICIES].put(WatchEvent("MODIFIED", {**DENY, "spec": {"policyTypes": ["Egress", "Ingress"]}}))
    assert agent.until(lambda: "Too many open files" in agent.problem)
    assert isolated(host)
    assert agent.until(lambda: not agent.problem)


def test_a_pod_is_isolated_again_after_a_failed_del(script, agent, host, monkeypatch):
    """A DEL that holds the record's lock and fails leaves the pod under its policies, soon after it has ended."""
    monkeypatch.setattr(local_pods, "_RETRY_S", 0.3)
    script.events[PODS].put(WatchEvent("ADDED", pod()))
    name = write_record()
    assert agent.until(lambda: isolated(host))

    def release(record):
        script.events[PODS].put(WatchEvent("MODIFIED", pod(app="other")))
        script.events[POLICIES].put(WatchEvent("MODIFIED", {**DENY, "spec": {"policyTypes": ["Egress", "Ingress"]}}))
        assert agent.until(lambda: not isolated(host))
        raise OSError("the DEL fails")

    with pytest.raises(OSError, match="DEL fails"):
        records.delete(name, release)
    assert agent.until(lambda: isolated(host))
