"""Policies under races: pods start and stop, agents die and policies change while datagrams are sent all the time."""

import contextlib
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.test_network_policy import DENY, Cluster, new_namespace, wait_listed
from tests.support import manifests
from tests.support.agent_nodes import SERVER, Pod
from tests.support.cluster_world import world
from tests.support.kubernetes_store import NAMESPACES
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.policy_flood import UDP_PORT, Flood
from tests.support.pool_faults import set_boot_id
from tests.support.sockets import PORT, open_socket, service

pytestmark = pytest.mark.timeout(3000)

SLOTS = 4  # pods that run at the same time
ADDRESSES = tuple(f"10.244.1.{100 + slot}" for slot in range(SLOTS))  # each is allocated again at once
FIRST_SYN_S = 0.9  # a dropped one is sent again after a second
ONE_PEER = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "client"}}}]
ALLOW_PEER = {"podSelector": {}, "ingress": [{"from": ONE_PEER}], "egress": [{"to": ONE_PEER}]}

# By receiver: the senders that policies allow. "db" is denied everything but the peer.
ALLOWED = {
    "db": (),
    "open": ("stranger", "open"),
    "stranger": ("open",),
    "outside": ("open",),
    "peer": ("db", "open"),
    "node": ("db", "open"),
}


def connects(source: Namespace, ip: str) -> bool:
    """Returns whether the first packet of a connection arrives, and its answer."""
    with open_socket(source, "tcp", "0.0.0.0") as caller:
        caller.settimeout(FIRST_SYN_S)
        with contextlib.suppress(OSError):
            caller.connect((ip, PORT))
            return True
    return False


@dataclass
class Race:
    """Pods on node 1, their floods, and what went wrong."""

    cluster: Cluster
    flood: Flood
    wrong: list[str] = field(default_factory=list)
    strangers: list[Pod] = field(default_factory=list)
    peers: list[Pod] = field(default_factory=list)
    connections: int = 0
    allowed: Counter[str] = field(default_factory=Counter)

    def connect(self, source: Pod, target: Pod, what: str) -> None:
        """Notes whether a first connection that a policy allows fails."""
        self.connections += 1
        if not connects(source.namespace, target.addresses[4]):
            self.wrong.append(f"first connection failed: {what}")

    def judge(self, who: str, received: Counter[bytes]) -> None:
        """Notes the datagrams that no policy allows."""
        for payload, count in received.items():
            kind, target = payload.decode().partition("-")[0], who.partition("-")[0]
            if kind in ALLOWED[target]:
                self.allowed[f"{kind} to {target}"] += count
            else:
                self.wrong.append(f"{who} got {count} datagrams of {payload.decode()}")

    def receive(self, stack: ExitStack, who: str, namespace: Namespace) -> None:
        """Receives in a namespace, and judges it in the end."""
        received = self.flood.receive(stack, namespace)
        stack.callback(lambda: self.judge(who, received))

    def place(self, stack: ExitStack, name: str, app: str, number: int) -> Pod:
        """Starts a pod that stays: a client that floods, or a peer that serves."""
        ip = f"10.244.{number + 1}.{10 + len(self.strangers) + len(self.peers)}"
        pod = self.cluster.start("web", name, app, "--args", f"IP={ip}", number=number)
        self.receive(stack, name, pod.namespace)
        if app == "client":
            server = stack.enter_context(service(pod.namespace, "tcp", pod.addresses[4]))
            server.socket.listen(4096)
            self.peers.append(pod)
        elif name.endswith("1"):
            self.flood.broadcast(stack, pod.namespace, pod.addresses[4], name.encode(), ADDRESSES)
            self.strangers.append(pod)
        else:
            pod.namespace.set_sysctl("net/ipv4/neigh/eth0/retrans_time_ms", "5")
            self.flood.to(stack, pod.namespace, name.encode(), ADDRESSES)
            self.strangers.append(pod)
        return pod

    def place_local(self, stack: ExitStack) -> None:
        """Starts the clients of node 1."""
        for name, app in (("stranger-0", "other"), ("stranger-1", "other"), ("peer-0", "client")):
            self.place(stack, name, app, 0)

    def send_everything(self, stack: ExitStack, namespace: Namespace, name: str, ip: str) -> None:
        """Sends what a pod must not send, from its first moment: to others, and with others' source addresses."""
        others = [other for other in ADDRESSES if other != ip]
        strangers, peers = ([pod.addresses[4] for pod in pods] for pods in (self.strangers, self.peers))
        self.flood.to(stack, namespace, name.encode(), [*others, *strangers, *peers, SERVER])
        targets = [*others, *strangers, *peers, "10.244.1.1", SERVER]
        sources = [*peers, *strangers, "198.51.100.7"]
        pairs = [(random.choice(sources), target) for target in targets]
        self.flood.forged(stack, namespace, f"forged-{name}".encode(), [pair for pair in pairs if pair[0] != pair[1]])

    def run_pod(self, number: int, slot: int) -> None:
        """Starts a pod, makes its first connections, and stops it; every fourth one has no policies."""
        kind, kubernetes_namespace = ("open", "web") if number % 4 == 3 else ("db", "shop")
        name, ip = f"{kind}-{number}", ADDRESSES[slot]
        namespace = new_namespace(self.cluster, name)
        with ExitStack() as stack:
            received = self.flood.receive(stack, namespace)
            self.send_everything(stack, namespace, name, ip)
            pod = self.cluster.start(kubernetes_namespace, name, "other", "--args", f"IP={ip}")
            assert pod.addresses[4] == ip
            with service(pod.namespace, "tcp", ip) as server:
                server.socket.listen(100)
                for peer in self.peers if kind == "db" else self.strangers:
                    self.connect(peer, pod, f"{peer.addresses[4]} to {name}")
                for peer in self.peers:
                    self.connect(pod, peer, f"{name} to {peer.addresses[4]}")
            self.flood.settle()
            self.cluster.stop(kubernetes_namespace, name)
            self.flood.settle()
            self.judge(name, received)

    def run_pods(self, numbers: range) -> None:
        """Starts and stops pods on all slots."""

        def run(slot: int) -> None:
            for number in numbers[slot::SLOTS]:
                self.run_pod(number, slot)

        with ThreadPoolExecutor(SLOTS) as pool:
            for done in [pool.submit(run, slot) for slot in range(SLOTS)]:
                done.result()

    @contextlib.contextmanager
    def agents_die(self) -> Iterator[list[float]]:
        """Kills and starts the agent of node 1 again and again."""
        is_over, kills = threading.Event(), []

        def run() -> None:
            while not is_over.wait(random.uniform(0.1, 2)):
                self.cluster.agent.stop(signal.SIGKILL)
                time.sleep(random.uniform(0, 1))
                began = time.monotonic()
                self.cluster.world.restart(0).wait_ready()
                kills.append(time.monotonic() - began)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield kills
        finally:
            is_over.set()
            thread.join()

    def reboot(self) -> None:
        """Ends all of node 1, as a reboot does: its agent, pods, packet filter and /run, but not its disk."""
        node = self.cluster.node
        self.cluster.agent.stop(signal.SIGKILL)
        names = [line.split()[0] for line in node.run("ip", "netns").splitlines()]
        for name in names:
            node.run("ip", "netns", "delete", name)
        node.run("sh", "-c", "rm -rf /run/podwire; nft flush ruleset; ip link delete cni0")
        set_boot_id(node)
        for name in names:  # as kubelet does first
            node.run("/opt/cni/bin/podwire", "del", "podwire", name)


@pytest.fixture
def race(tmp_path) -> Iterator[Race]:
    """Two nodes with plugins that log their steps; in the namespace shop everything is denied but one peer."""
    conf = json.loads((manifests.NETWORK_POLICY / "10-podwire.conflist").read_text())
    conf["plugins"][0] |= {"logFile": str(tmp_path / "verbs.log"), "logLevel": "debug"}
    (tmp_path / "10-podwire.conflist").write_text(json.dumps(conf))
    options = ("--network-policy", f"--conf={tmp_path / '10-podwire.conflist'}")
    with world(tmp_path, *options, count=2, pods=False) as created:
        cluster, flood = Cluster(created), Flood()
        for name in ("shop", "web"):
            created.server.store.put(f"{NAMESPACES}/{name}", {"metadata": {"name": name}})
        cluster.policy("shop", "default-deny", DENY)
        cluster.policy("shop", "peer", ALLOW_PEER)
        wait_listed(cluster, "shop")
        with flood.running():
            yield Race(cluster, flood)


@pytest.mark.long
def test_no_denied_packet_passes_and_no_allowed_connection_fails(race, request, capsys):
    """While pods start and stop, also while agents die and after a reboot, the policies hold from the first packet."""
    third = (1000 if request.config.getoption("--nightly") else 60) // 3
    cluster, flood = race.cluster, race.flood
    with ExitStack() as stack:
        race.receive(stack, "outside", cluster.world.fabric)
        race.receive(stack, "node", cluster.node.network)
        race.place(stack, "stranger-2", "other", 1)
        race.place(stack, "peer-1", "client", 1)
        remote = race.strangers[:], race.peers[:]
        with ExitStack() as local:
            race.place_local(local)
            race.run_pods(range(third))
            with race.agents_die() as kills:
                race.run_pods(range(third, 2 * third))
            for slot in range(SLOTS):  # they run when the node goes down; their leases and objects stay
                cluster.start("shop", f"lost-{slot}", "other", "--args", f"IP={ADDRESSES[slot]}")
        race.strangers, race.peers = remote
        race.reboot()
        starting = threading.Thread(target=race.run_pods, args=[range(2 * third, 2 * third + 3)])
        starting.start()
        time.sleep(1.5)
        agent = cluster.world.restart(0)
        starting.join()
        agent.wait_ready()
        with ExitStack() as local:
            race.place_local(local)
            race.run_pods(range(2 * third + 4, 3 * third))
        flood.settle()
    with capsys.disabled():
        print(f"\n{flood.sent} datagrams sent, {race.connections} first connections, {len(kills)} agents killed")
        print("allowed:", dict(race.allowed), *race.wrong, sep="\n")
    assert not race.wrong


def test_no_packet_passes_while_add_waits(race):
    """What passes before a pod's policies are in force is neither delivered to it nor sent by it, also later."""
    with ExitStack() as stack:
        race.place(stack, "stranger-2", "other", 1)
        race.place(stack, "peer-1", "client", 1)
        race.place_local(stack)
        race.cluster.agent.stop(signal.SIGKILL)
        starting = threading.Thread(target=race.run_pods, args=[range(3)])
        starting.start()
        time.sleep(1)
        race.cluster.world.restart(0)
        starting.join()
    assert not race.wrong
    assert race.connections == 3 * 4


@pytest.mark.long
@pytest.mark.alone
def test_how_long_a_start_waits_with_2000_policies(race, request, tmp_path, capsys):
    """ADD waits few milliseconds for the agent; another node's agent knows a peer some milliseconds after ADD."""
    number, cluster = 1000 if request.config.getoption("--nightly") else 100, race.cluster
    for one in range(1998):  # and two of the fixture
        spec = {"podSelector": {"matchLabels": {"app": f"a{one}"}}, "ingress": [{"from": ONE_PEER}]}
        cluster.policy("shop" if one < 20 else f"team-{one // 20}", f"p-{one}", spec)
    assert eventually(lambda: cluster.agent.metric("podwire_agent_policies") == 2000, within_s=60)
    with ExitStack() as stack:
        race.place(stack, "stranger-2", "other", 1)
        race.place_local(stack)
        for one in range(number // 2):
            race.run_pod(4 * one, 0)
        alone = waits(tmp_path)
        race.run_pods(range(1000, 1000 + number // 2))
        at_once = waits(tmp_path)[len(alone) :]
        vault = cluster.start("shop", "vault", "db", number=1)
        delays = [known_after(cluster, vault, f"peer-{one}") for one in range(2, 42)]
    with capsys.disabled():
        for what, times in (("alone", alone), ("four at once", at_once), ("known to another node", delays)):
            times.sort()
            print(f"{what}: p50 {times[len(times) // 2]:.1f} ms, p99 {times[len(times) * 99 // 100]:.1f} ms")
    assert not race.wrong
    assert alone[number // 4] < 50


def waits(directory: Path) -> list[float]:
    """Returns how long the ADDs in the verb log waited for the agent, in milliseconds."""
    entries = [json.loads(line) for line in (directory / "verbs.log").read_text().splitlines()]
    steps = [step for entry in entries for step in entry.get("steps", ()) if entry["command"] == "ADD"]
    return [step["ms"] for step in steps if step["what"] == "wait for podwire-agent"]


def known_after(cluster: Cluster, vault: Pod, name: str) -> float:
    """Returns the milliseconds from ADD's end, and the pod's status, until a pod's packets reach one of node 2."""
    with open_socket(vault.namespace, "udp", "0.0.0.0", UDP_PORT) as receiver:
        receiver.setblocking(False)
        pod = cluster.start("web", name, "client")
        began = time.monotonic()
        with open_socket(pod.namespace, "udp", "0.0.0.0") as sender:
            while True:
                sender.sendto(name.encode(), (vault.addresses[4], UDP_PORT))
                with contextlib.suppress(BlockingIOError):
                    assert receiver.recv(100) == name.encode()
                    return 1000 * (time.monotonic() - began)
                time.sleep(0.001)
