"""The agent's part for network policies in this process: a scripted API server, records, a socket, real nftables."""

import errno
import fcntl
import json
import queue
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
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
from kernel.boot import get_boot_id
from kernel.netfilter import nft
from process.loop import Loop, now
from process.signals import Terminated
from tests.support.errors import failure_of
from tests.support.policy_node import private_directory

pytestmark = pytest.mark.needs("nft_inet")
ADDRESS = "10.22.0.7"
ON_NODE: Any = {"spec": {"nodeName": "node-1"}, "status": {"phase": "Running", "podIP": ADDRESS}}
DENY: Any = {"metadata": {"namespace": "shop", "name": "deny"}, "spec": {"podSelector": {}}}


def pod(name="db", uid="1", **labels):
    """Returns a pod's object, without an address in its status."""
    metadata = {"namespace": "shop", "name": name, "uid": uid, "labels": labels}
    return {"metadata": {**metadata, "creationTimestamp": "2026-11-29T10:00:00Z"}}


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
        settings, metrics = parse(["--network-policy"], {"NODE_NAME": "node-1"}), Metrics("1").add_policies()
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
def agent(script, monkeypatch):
    """A service with one policy, which isolates all pods of the namespace shop; it often looks at the node."""
    monkeypatch.setattr("agent.policy.service._NODE_S", 0.2)
    script.objects[POLICIES] = [DENY]
    running = Agent(script)
    assert running.until(lambda: not running.problem)
    yield running
    running.service.stop()


def listed() -> gate.Namespaces:
    """Returns the content of the agent's file."""
    namespaces = gate.read_namespaces(get_boot_id())
    assert namespaces
    return namespaces


def write_record(name="db", uid="1", address=ADDRESS):
    """Writes the record of a pod, as ADD does; returns the name of its file."""
    record = PodRecord(
        get_boot_id(), "shop", name, uid, "net", uid, "eth0", "veth0", "", (ip_address(address),), "bridge"
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
    document = {**old, **ON_NODE}
    script.events[PODS].put(WatchEvent("ADDED", document))
    assert agent.until(lambda: "shop/old" in agent.note)
    write_record("old", "7")
    assert agent.until(lambda: not agent.note)
    assert not agent.problem


def test_damaged_record_keeps_its_pod_isolated(script, agent, host):
    """The pod of a record that another program has damaged keeps its policies, and the file is named."""
    name = write_record()
    assert agent.until(lambda: isolated(host))
    draft = Path(records.path_of(".draft"))
    draft.write_text("[")
    draft.rename(records.path_of(name))
    assert agent.until(lambda: f"{records.path_of(name)} is not the record" in agent.problem)
    script.events[POLICIES].put(WatchEvent("MODIFIED", {**DENY, "spec": {"policyTypes": ["Ingress", "Egress"]}}))
    egress = ("nft", "list", "map", "inet", table.TABLE.name, table.EGRESS[4].name)
    assert agent.until(lambda: ADDRESS in host.run(*egress))
    assert isolated(host)
    write_record()
    assert agent.until(lambda: not agent.problem)


def test_deleted_directory_is_created_again(script, agent, host):
    """When another program has deleted the directory of records, the pods are named, and new records are read."""
    script.events[PODS].put(WatchEvent("MODIFIED", {**pod(), **ON_NODE}))
    write_record()
    assert agent.until(lambda: isolated(host))
    shutil.rmtree(table.PODS_DIRECTORY)
    assert agent.until(lambda: "shop/db" in agent.note)
    write_record()
    assert agent.until(lambda: isolated(host) and not agent.note)


def test_policies_change_although_the_file_cannot_be_written(script, agent, host):
    """When the list of namespaces cannot be written, the filter still follows, and the file is named."""
    write_record()
    assert agent.until(lambda: isolated(host))
    Path(table.NAMESPACES_FILE).unlink()
    Path(table.NAMESPACES_FILE).mkdir()
    script.events[POLICIES].put(WatchEvent("DELETED", DENY))
    assert agent.until(lambda: not isolated(host))
    assert f"cannot write {table.NAMESPACES_FILE}" in agent.problem
    Path(table.NAMESPACES_FILE).rmdir()
    assert agent.until(lambda: not agent.problem)


def test_deleted_socket_is_created_again(script, agent):
    """When another program has deleted the socket, ADD is answered again."""
    script.events[PODS].put(WatchEvent("ADDED", pod()))
    Path(table.GATE_SOCKET).unlink()
    assert agent.until(lambda: Path(table.GATE_SOCKET).exists())
    assert agent.until(Add(write_record()).is_answered)


def test_nested_request_is_refused(script, agent):
    """A request that is nested too deeply is refused by closing the connection; the next one is answered."""
    script.events[PODS].put(WatchEvent("ADDED", pod()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(table.GATE_SOCKET)
        client.send(b"[" * 4000)
        client.setblocking(False)
        assert agent.until(lambda: failure_of(lambda: client.recv(1), BlockingIOError) is None)
    assert agent.until(Add(write_record()).is_answered)


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
