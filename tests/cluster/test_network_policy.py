"""podwire-agent with --network-policy, the built plugins and real packets, on a node with the API server's double."""

import json
import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from agent.policy.cluster_objects import ClusterObjects
from agent.policy.newest import NewestPolicies
from agent.policy.selection import PolicySelection
from tests.support import manifests, stores
from tests.support.agent_nodes import ClusterNode, Pod, error_of, pod_args
from tests.support.cluster_agent import Agent, run_once
from tests.support.cluster_world import World, world
from tests.support.kubernetes_store import NAMESPACES, PODS, POLICIES
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.policy_flood import Flood
from tests.support.sockets import NO_ANSWER_S, call, service

pytestmark = pytest.mark.timeout(1000)

CONF = f"--conf={manifests.NETWORK_POLICY / '10-podwire.conflist'}"
DENY = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
FROM_CLIENTS = {
    "podSelector": {"matchLabels": {"app": "db"}},
    "ingress": [{"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "client"}}}]}],
}


@dataclass
class Cluster:
    """One node with an agent, and its pods, which the API server knows before they start."""

    world: World

    @property
    def node(self) -> ClusterNode:
        """The node."""
        return self.world.nodes[0]

    @property
    def agent(self) -> Agent:
        """The node's agent."""
        return self.world.agents[0]

    def policy(self, namespace: str, name: str, spec: dict[str, Any] | None) -> None:
        """Creates, changes or (None) deletes a policy."""
        path = f"{POLICIES}/{namespace}.{name}"
        if spec is None:
            self.world.server.store.remove(path)
        else:
            metadata = {"namespace": namespace, "name": name}
            self.world.server.store.put(path, {"metadata": metadata, "spec": spec})

    def schedule(self, namespace: str, name: str, app: str, address: str = "", number: int = 0) -> None:
        """Creates or changes the object of a pod of node `number` (from 0)."""
        metadata = {"namespace": namespace, "name": name, "labels": {"app": app}}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]} if address else {}
        document = {"metadata": metadata, "spec": {"nodeName": self.world.nodes[number].name}, "status": status}
        self.world.server.store.put(f"{PODS}/{namespace}.{name}", document)

    def start(self, namespace: str, name: str, app: str, *options: str, number: int = 0) -> Pod:
        """Starts a pod, as kubelet does: its object, its ADD, its status."""
        self.schedule(namespace, name, app, number=number)
        pod = self.world.nodes[number].add(name, *pod_args(namespace, name), *options)
        self.schedule(namespace, name, app, pod.addresses[4], number)
        return pod

    def stop(self, namespace: str, name: str) -> None:
        """Deletes a pod."""
        self.node.delete(name)
        self.world.server.store.remove(f"{PODS}/{namespace}.{name}")


@pytest.fixture
def cluster(tmp_path, request):
    """Nodes (by default one) whose agents enforce policies, and the namespaces shop and web."""
    with world(tmp_path, "--network-policy", CONF, count=getattr(request, "param", 1), pods=False) as created:
        for name in ("shop", "web"):
            created.server.store.put(f"{NAMESPACES}/{name}", {"metadata": {"name": name}})
        yield Cluster(created)


def reaches(source: Pod, target: Pod, version: int = 4) -> bool:
    """Returns whether a pod reaches another one over TCP."""
    ip = target.addresses[version]
    with service(target.namespace, "tcp", ip) as server:
        return call([server], source.namespace, "tcp", ip, 80, timeout_s=NO_ANSWER_S) is not None


def become(expected: bool, source: Pod, target: Pod) -> bool:
    """Returns whether a pod soon reaches another one, or no longer does."""
    return eventually(lambda: all(reaches(source, target, version) == expected for version in (4, 6)), within_s=10)


def new_namespace(cluster: Cluster, name: str) -> Namespace:
    """Creates a pod's network namespace before ADD."""
    cluster.node.run("ip", "netns", "add", name)
    return Namespace(f"../../proc/{cluster.node.pid}/root/run/netns/{name}")


def wait_listed(cluster: Cluster, *names: str) -> None:
    """Waits until the agent's file lists these namespaces."""
    text = f'"namespaces":[{",".join(f"{name!r}" for name in names)}]'.replace("'", '"')
    assert eventually(lambda: text in cluster.node.run("cat", "/run/podwire/policy/namespaces"))


@pytest.mark.parametrize("address", ["10.244.1.100"])
def test_a_pod_is_isolated_from_its_first_packet(cluster, address):
    """Of datagrams that are sent to a new pod all the time, it gets none that a policy denies, and all allowed ones."""
    cluster.policy("shop", "default-deny", DENY)
    cluster.policy("shop", "from-clients", FROM_CLIENTS)
    wait_listed(cluster, "shop")
    stranger, client = cluster.start("web", "stranger", "other"), cluster.start("web", "client", "client")
    for name, sender, is_allowed in (("db-0", stranger, False), ("db-1", client, True)):
        namespace = new_namespace(cluster, name)
        flood = Flood()
        with ExitStack() as stack, flood.running():
            received = flood.receive(stack, namespace)
            flood.to(stack, sender.namespace, b"x", [address])
            pod = cluster.start("shop", name, "db", "--args", f"IP={address}")
            assert pod.addresses[4] == address
            assert not reaches(stranger, pod)
            assert reaches(client, pod), "the first connection that a policy allows"
            flood.settle()
        assert (received[b"x"] > 0) == is_allowed
        assert not reaches(pod, client), "egress is denied"
        cluster.stop("shop", name)


def test_a_change_of_policies_reaches_running_pods(cluster):
    """A new, changed or deleted policy, and a changed label, take effect within moments."""
    stranger, client = cluster.start("web", "stranger", "other"), cluster.start("web", "client", "client")
    db = cluster.start("shop", "db", "db")
    assert reaches(stranger, db)
    cluster.policy("shop", "from-clients", FROM_CLIENTS)
    assert become(False, stranger, db)
    assert become(True, client, db)
    cluster.schedule("web", "stranger", "client", stranger.addresses[4])
    assert become(True, stranger, db)
    cluster.policy("shop", "from-clients", {**FROM_CLIENTS, "ingress": []})
    assert become(False, client, db)
    assert cluster.agent.metric("podwire_agent_policies") == 1
    assert cluster.agent.metric("podwire_agent_policy_pods") == 1
    cluster.policy("shop", "from-clients", None)
    assert become(True, client, db)
    assert cluster.agent.metric("podwire_agent_policy_lag_seconds") == 0


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_peers_are_on_every_node(cluster):
    """A pod of another node is a peer by its address; the pod's node reaches it, another node does not."""
    cluster.policy("shop", "from-clients", FROM_CLIENTS)
    wait_listed(cluster, "shop")
    db = cluster.start("shop", "db", "db")
    stranger, client = (cluster.start("web", app, app, number=1) for app in ("other", "client"))
    assert eventually(lambda: reaches(client, db), within_s=10)
    assert not reaches(stranger, db)
    here, there = (node.network for node in cluster.world.nodes)
    with service(db.namespace, "tcp", db.addresses[4]) as server:
        for source, is_allowed in ((here, True), (there, False)):
            called = call([server], source, "tcp", db.addresses[4], 80, timeout_s=NO_ANSWER_S)
            assert (called is not None) == is_allowed


def test_without_agent_only_pods_without_policies_start(cluster):
    """Running pods stay as they are; ADD fails in a namespace with policies until an agent runs, and says why."""
    cluster.policy("shop", "from-clients", FROM_CLIENTS)
    wait_listed(cluster, "shop")
    stranger, client, db = (
        cluster.start(*words) for words in (("web", "a", "other"), ("web", "b", "client"), ("shop", "db", "db"))
    )
    cluster.agent.stop(signal.SIGKILL)
    other = cluster.start("web", "c", "client")
    assert (reaches(stranger, db), reaches(client, db)) == (False, True)
    cluster.schedule("shop", "late", "db")
    error = error_of(cluster.node.try_add("late", *pod_args("shop", "late")))
    assert error["code"] == 11
    assert "network policies" in error["msg"]
    restarted = cluster.world.restart(0)
    late = cluster.start("shop", "late", "db")
    restarted.wait_ready()
    for version in (4, 6):
        assert [reaches(one, late, version) for one in (stranger, client, other)] == [False, True, True]
        assert [reaches(one, db, version) for one in (stranger, client, other)] == [False, True, True]


def test_strict_waits_for_policies_as_new_as_the_pod(cluster):
    """With strict no pod starts before the agent has seen the policies that the server had when the pod came."""
    cluster.world.restart(0, "--network-policy=strict").wait_ready()
    stranger = cluster.start("web", "stranger", "other")
    cluster.world.server.is_silent = True
    cluster.policy("shop", "from-clients", FROM_CLIENTS)
    started: list[Pod] = []
    thread = threading.Thread(target=lambda: started.append(cluster.start("shop", "db", "db")))
    thread.start()
    time.sleep(1)
    assert not started
    cluster.world.server.is_silent = False
    cluster.world.server.cut_watches()
    thread.join()
    assert not reaches(stranger, started[0])


def test_problems_are_on_readyz(cluster):
    """A policy that cannot be read allows nothing and is named; so are a missing setting and another engine."""
    client, db = cluster.start("web", "client", "client"), cluster.start("shop", "db", "db")
    cluster.policy("shop", "wrong", {**FROM_CLIENTS, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/99"}}]}]})
    cluster.agent.wait_for("policies: NetworkPolicy shop/wrong", "10.0.0.0/99")
    assert become(False, client, db)
    cluster.policy("shop", "wrong", FROM_CLIENTS)
    assert become(True, client, db)
    cluster.agent.wait_ready()
    cluster.node.run("sysctl", "-w", "net.bridge.bridge-nf-call-iptables=0")
    cluster.agent.wait_for("net.bridge.bridge-nf-call-iptables is not 1")
    cluster.node.run("sysctl", "-w", "net.bridge.bridge-nf-call-iptables=1")
    cluster.node.run("nft", "add table ip filter; add chain ip filter KUBE-NWPLCY-DEFAULT")
    cluster.agent.wait_for("kube-router enforces network policies on this node (chain KUBE-NWPLCY-DEFAULT")


def test_a_network_without_the_key_is_a_problem(cluster, tmp_path):
    """An agent whose network lacks networkPolicy says that new pods get no policies."""
    conf = tmp_path / "10-podwire.conflist"
    conf.write_text((manifests.INSTALL / conf.name).read_text())
    cluster.world.restart(0, f"--conf={conf}").wait_for(f'policies: {conf} has no "networkPolicy": true')


def test_dropped_packets_are_counted_and_remove_deletes_the_filter(cluster):
    """The metric names namespace, direction and policies; --remove leaves no table and no file that ADD waits for."""
    cluster.policy("shop", "from-clients", FROM_CLIENTS)
    wait_listed(cluster, "shop")
    stranger, db = cluster.start("web", "stranger", "other"), cluster.start("shop", "db", "db")
    assert not reaches(stranger, db)
    (policy,) = json.loads(cluster.agent.get("/policy")[1])["policies"]
    assert (policy["namespace"], policy["name"]) == ("shop", "from-clients")
    labels = 'direction="ingress",namespace="shop",policies="from-clients"'
    metric = f"podwire_agent_policy_dropped_packets_total{{{labels}}}"
    assert eventually(lambda: f"{metric} " in cluster.agent.get("/metrics")[1], within_s=60)
    assert cluster.agent.metric(metric) >= 1
    cluster.agent.stop()
    assert run_once(cluster.node, *cluster.world.options, "--no-install", "--remove").returncode == 0
    assert "podwire_policy" not in cluster.node.run("nft", "list", "tables")
    assert reaches(stranger, db)


def test_agent_without_the_option_ends_the_policies(cluster):
    """An agent that starts without --network-policy deletes the filter: nothing would keep it up to date."""
    cluster.policy("shop", "deny", DENY)
    wait_listed(cluster, "shop")
    stranger, db = cluster.start("web", "stranger", "other"), cluster.start("shop", "db", "db")
    assert not reaches(stranger, db)
    cluster.world.options = tuple(each for each in cluster.world.options if each != "--network-policy")
    cluster.world.restart(0).wait_ready()
    assert reaches(stranger, db)
    assert "podwire_policy" not in cluster.node.run("nft", "list", "tables")


def test_port_without_guard_is_reported(cluster):
    """After `nft flush ruleset` the agent names a pod's port that is not guarded; the printed command guards it."""
    cluster.policy("shop", "deny", DENY)
    wait_listed(cluster, "shop")
    cluster.start("shop", "db", "db")
    cluster.node.run("nft", "flush", "ruleset")
    assert eventually(lambda: "of pod shop/db is not guarded" in cluster.agent.readiness()[1])
    cluster.node.run(cluster.node.tool, "repair", "podwire")
    assert eventually(lambda: "is not guarded" not in cluster.agent.readiness()[1])


def test_the_tool_names_the_policy(cluster):
    """`podwire policy why`, `trace` and `test` name the policy that denies; doctor does not report what it drops."""
    cluster.policy("shop", "from-clients", FROM_CLIENTS)
    wait_listed(cluster, "shop")
    cluster.start("web", "stranger", "other")
    cluster.start("shop", "db", "db")
    why = (cluster.node.tool, "policy", "why", "web/stranger", "shop/db:80")
    denied = cluster.node.done(*why)
    reason = "policy from-clients of namespace shop isolates it (ingress): no policy allows tcp 80 from stranger"
    assert (denied.returncode, denied.stdout.count(reason)) == (1, 2), denied
    trace = cluster.node.done(cluster.node.tool, "trace", "web/stranger", "shop/db:80").stdout
    assert "network policy from-clients of namespace shop drops it (ingress of shop/db)" in trace
    assert "look: podwire policy why web/stranger shop/db:80" in trace
    tested = json.loads(cluster.node.done(cluster.node.tool, "test", "web/stranger", "--json").stdout)
    states = {(path["path"], path["protocol"]): path["state"] for path in tested["paths"] if path["state"] != "ok"}
    assert states == dict.fromkeys([("pod-to-pod", "tcp"), ("pod-to-pod", "udp")], "denied"), tested
    assert all(reason.partition(":")[0] in path["detail"] for path in tested["paths"] if path["state"] == "denied")
    doctor = cluster.node.done(cluster.node.tool, "doctor").stdout
    assert "podwire_policy" not in doctor
    assert "\n0 problems" in doctor
    cluster.schedule("web", "stranger", "client")
    assert eventually(lambda: cluster.node.done(*why).returncode == 0)


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_trace_names_the_policy_of_a_pod_on_another_node(cluster):
    """A packet that leaves the node, and that policies deny at the other end, is not lost beyond the node."""
    cluster.policy("shop", "from-clients", FROM_CLIENTS)
    wait_listed(cluster, "shop")
    cluster.start("web", "stranger", "other")
    address = cluster.start("shop", "db", "db", number=1).addresses[4]
    why = (cluster.node.tool, "policy", "why", "web/stranger", f"{address}:80")
    assert eventually(
        lambda: "no policy allows" in cluster.node.done(*why).stdout
    )  # the other node's agent learns of the pod first
    trace = cluster.node.done(cluster.node.tool, "trace", "web/stranger", f"{address}:80").stdout
    assert "no policy allows tcp 80 from stranger of namespace web" in trace.replace("\n  ", " "), trace
    assert f"look: podwire policy why web/stranger {address}:80" in trace
    assert "podwire doctor" not in trace


@pytest.mark.long
def test_a_real_server_has_all_three_kinds(real_server):
    """With the rights of deploy/network-policy/ the agent follows all kinds, and learns a namespace's newest policy."""
    admin = real_server.client("admin")
    roles = [one for one in manifests.render(manifests.NETWORK_POLICY) if one["kind"] == "ClusterRole"]
    stores.apply(admin, [*roles, *(stores.binding(one["metadata"]["name"]) for one in roles)])
    for name in ("shop", "web"):
        admin.create(NAMESPACES, {"metadata": {"name": name, "labels": {"team": name}}})
    created = [
        admin.create(POLICIES.replace("v1/", f"v1/namespaces/{name}/"), {"metadata": {"name": "deny"}, "spec": DENY})
        for name in ("shop", "web")
    ]
    container = {"name": "db", "image": "db", "ports": [{"name": "sql", "containerPort": 5432}]}
    pod = {"metadata": {"name": "db", "labels": {"app": "db"}}, "spec": {"containers": [container]}}
    admin.create("/api/v1/namespaces/shop/pods", pod)

    client, selection = real_server.client("agent"), PolicySelection()
    calls: queue.Queue[Callable[[], None]] = queue.Queue()
    objects = ClusterObjects(client, selection, calls.put, lambda: None, print)
    newest = NewestPolicies(client, calls.put, print)
    for watch in objects.watches:
        watch.start()
    while not objects.are_synced:
        calls.get(timeout=60)()
    assert not [*objects.problems()]
    assert selection.namespaces["shop"].labels["team"] == "shop"
    assert selection.policies["shop"]["deny"].ingress == ()
    for name, policy in zip(("shop", "web", "empty"), (*created, None), strict=True):
        revisions: list[int] = []
        newest.request_revision(name, revisions.append)
        while not revisions:
            calls.get(timeout=60)()
        assert revisions == [int(policy["metadata"]["resourceVersion"] if policy else 0)]
    later = admin.create(POLICIES.replace("v1/", "v1/namespaces/shop/"), {"metadata": {"name": "b"}, "spec": DENY})
    calls.get(timeout=60)()
    assert selection.policies["shop"].keys() == {"deny", "b"}
    assert eventually(lambda: objects.policies_revision >= int(later["metadata"]["resourceVersion"]))
    for watch in objects.watches:
        watch.stop()
