"""A run of ADD and DEL on the nodes of a cluster with pools, while machines, agents, etcd and links fail.

One rule: each fault is something that happens in a data center, and ends. Only statements that are true are made: a
machine is declared off while it is off, and a restored store is closed to agents until `recover`. A pod has its address
surely from the end of a successful ADD until DEL begins, or until its machine is powered off.
"""

import contextlib
import json
import random
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agent.api_errors import ApiError
from agent.pools.block_protocol import Evidence
from agent.pools.etcd import EtcdStore
from agent.pools.reclaim import read_suspect, reclaim, recover
from tests.support.agent_nodes import ClusterNode
from tests.support.cluster_agent import Agent
from tests.support.etcd_members import EtcdMembers
from tests.support.machine import eventually
from tests.support.pool_world import PoolWorld

_CONF = json.dumps({"cniVersion": "1.0.0", "name": "podwire", "ipam": {"type": "host-local", "pool": "default"}})
_MOST_PODS = 60
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NODE_ID = "/var/lib/podwire/node-id"
_HEAL_S = 400.0


@dataclass
class Machine:
    """A machine of the run: its node, its pods, and the lock that its worker holds during a verb."""

    node: ClusterNode
    pods: dict[str, str] = field(default_factory=dict)  # the address of each pod
    is_on: bool = True
    leftover: list[str] = field(default_factory=list)  # pods of former boots, of which the runtime deletes
    working: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0


@dataclass
class History:
    """Which pods have which addresses now, and what happened before; several threads may use it."""

    holders: dict[str, str] = field(default_factory=dict)
    duplicates: list[str] = field(default_factory=list)
    added: int = 0
    verbs: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    started_s: float = field(default_factory=time.monotonic)

    def begin(self, address: str, pod: str) -> None:
        """Notes that a pod has an address."""
        with self.lock:
            if other := self.holders.get(address):
                self.duplicates.append(f"{address} of {other} and {pod}")
            self.holders[address] = pod
            self.added += 1

    def end(self, pods: dict[str, str]) -> None:
        """Notes that DEL begins for pods with these addresses, or that their machine is off."""
        with self.lock:
            for pod, address in pods.items():
                if self.holders.get(address) == pod:
                    del self.holders[address]

    def fault(self, text: str) -> None:
        """Notes a fault that begins or ends."""
        self.faults.append(f"{time.monotonic() - self.started_s:6.1f} {text}")


class Run:
    """A run with random faults, which the seed determines up to the machine's timing."""

    def __init__(self, world: PoolWorld, seed: int) -> None:
        assert isinstance(world.etcd, EtcdMembers)
        self.world, self.etcd, self.random = world, world.etcd, random.Random(seed)
        self.history = History()
        self.machines = [Machine(node) for node in world.nodes]
        self.errors: list[str] = []
        self._stopped = threading.Event()
        self._ids: dict[str, str] = {}
        self._backups = 0

    # The pods.

    def work(self, machine: Machine) -> None:
        """Runs verbs on a machine until the end."""
        rng = random.Random(machine.node.name)
        while not self._stopped.is_set():
            with machine.working:
                if machine.is_on:
                    self._one_verb(machine, rng)
            time.sleep(0.02)

    def _one_verb(self, machine: Machine, rng: random.Random) -> None:
        if machine.leftover:
            self._verb(machine, "DEL", machine.leftover.pop())
        elif machine.pods and rng.random() < len(machine.pods) / _MOST_PODS:
            pod = rng.choice(list(machine.pods))
            self.history.end({pod: machine.pods.pop(pod)})
            self._verb(machine, "DEL", pod)
        else:
            machine.count += 1
            pod = f"{machine.node.name}-{machine.count}"
            answer = self._verb(machine, "ADD", pod)
            if "ips" in answer:
                machine.pods[pod] = answer["ips"][0]["address"].partition("/")[0]
                self.history.begin(machine.pods[pod], pod)
            elif answer.get("code") == 11:
                self.history.refused += 1
            else:
                self.errors.append(f"{machine.node.name}: ADD: {answer}")

    def _verb(self, machine: Machine, verb: str, pod: str) -> dict[str, Any]:
        env = {"CNI_COMMAND": verb, "CNI_CONTAINERID": pod, "CNI_NETNS": f"/run/netns/{pod}", "CNI_IFNAME": "eth0"}
        done = machine.node.done("/opt/cni/bin/host-local", stdin=_CONF, env={**env, "CNI_PATH": "/opt/cni/bin"})
        self.history.verbs += 1
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        if verb == "DEL" and done.returncode:
            self.errors.append(f"{machine.node.name}: DEL: {answer}")
        return answer

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Runs verbs on all machines during the block."""
        threads = [threading.Thread(target=self.work, args=(machine,), daemon=True) for machine in self.machines]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join(200)

    # The faults.

    def faults(self) -> tuple[Callable[[], None], ...]:
        """Returns the faults."""
        return (
            self._stop_agent, self._kill_agent, self._stop_member, self._kill_member, self._cut_node, self._cut_member,
            self._lose_packets_to_etcd, self._lose_packets_from_etcd, self._reboot, self._declare_off,
            self._replace_member, self._restore_store, self._copy_disk,
        )  # fmt: skip

    def cause(self, seconds: float) -> None:
        """Causes faults one after another, each at least once if there is time."""
        end = time.monotonic() + seconds
        order: list[Callable[[], None]] = []
        while time.monotonic() < end:
            if not order:
                order = list(self.faults())
                self.random.shuffle(order)
            fault = order.pop()
            self.history.fault(fault.__name__.strip("_").replace("_", " "))
            try:
                fault()
            except (ApiError, OSError, ValueError, RuntimeError) as error:
                self.history.fault(f"  not done: {error}")
            self._pause(0.3)

    def _pause(self, most_s: float) -> None:
        time.sleep(most_s * (0.5 + 0.5 * self.random.random()))

    def _any(self) -> Machine:
        return self.random.choice([machine for machine in self.machines if machine.is_on])

    def _agent(self, machine: Machine) -> Agent:
        return self.world.agents[machine.node.name]

    def _stop_agent(self) -> None:
        agent = self._agent(self._any())
        agent.process.send_signal(signal.SIGSTOP)
        self._pause(3)
        agent.process.send_signal(signal.SIGCONT)

    def _kill_agent(self) -> None:
        machine = self._any()
        self._agent(machine).stop(signal.SIGKILL)
        self._pause(1)
        self.world.start(machine.node)

    def _stop_member(self) -> None:
        number = self.random.randrange(len(self.etcd.urls))
        self.etcd.pause(number)
        self._pause(4)
        self.etcd.resume(number)

    def _kill_member(self) -> None:
        number = self.random.randrange(len(self.etcd.urls))
        self.etcd.kill(number)
        self._pause(2)
        self.etcd.start(number)

    @contextlib.contextmanager
    def _down(self, *ports: str) -> Iterator[None]:
        for port in ports:
            self.world.fabric.ip("link", "set", port, "down")
        try:
            yield
        finally:
            for port in ports:
                self.world.fabric.ip("link", "set", port, "up")

    def _cut_node(self) -> None:
        with self._down(f"n{self._any().node.number}"):
            self._pause(4)

    def _cut_member(self) -> None:
        with self._down(self.etcd.port(self.random.randrange(len(self.etcd.urls)))):
            self._pause(4)

    def _lose_packets_to_etcd(self) -> None:
        self._lose(self._any().node, "output", "dport")

    def _lose_packets_from_etcd(self) -> None:
        self._lose(self._any().node, "input", "sport")

    def _lose(self, node: ClusterNode, hook: str, port: str) -> None:
        """Drops the packets of one direction: requests that never arrive, or answers."""
        rules = f"table inet lost {{ chain c {{ type filter hook {hook} priority 0; tcp {port} 2379 drop; }}; }}\n"
        node.run("nft", "-f", "-", stdin=rules)
        self._pause(5)
        node.run("nft", "delete", "table", "inet", "lost")

    def _power_off(self, machine: Machine) -> None:
        with machine.working:
            machine.is_on = False
            self._agent(machine).stop(signal.SIGKILL)
            self.history.end(machine.pods)
            machine.leftover += machine.pods
            machine.pods.clear()
        self.world.fabric.ip("link", "set", f"n{machine.node.number}", "down")

    def _boot(self, machine: Machine) -> None:
        """Boots a machine: another boot ID, the same disk, no pods; the runtime deletes what the former boot left."""
        set_boot_id(machine.node)
        self.world.fabric.ip("link", "set", f"n{machine.node.number}", "up")
        self.world.start(machine.node)
        machine.is_on = True

    def _reboot(self) -> None:
        machine = self._any()
        self._power_off(machine)
        self._pause(1)
        self._boot(machine)

    def _declare_off(self) -> None:
        machine = self._any()
        self._power_off(machine)
        try:
            suspect = read_suspect(self.world.store, self.node_id(machine))
            done = reclaim(self.world.store, suspect, Evidence.POWERED_OFF)
            self.history.fault(f"  {machine.node.name} is off: {len(done.blocks)} blocks are free {done.problem}")
            self._pause(2)
        finally:
            self._boot(machine)

    def node_id(self, machine: Machine) -> str:
        """Returns the ID of a node."""
        name = machine.node.name
        if name not in self._ids:
            self._ids[name] = json.loads(machine.node.run("cat", _NODE_ID))["node"]
        return self._ids[name]

    def _replace_member(self) -> None:
        self.etcd.replace(self.random.randrange(len(self.etcd.urls)))
        self._pause(2)

    def _restore_store(self) -> None:
        """Restores a backup that is some seconds old; agents cannot reach the store until `recover` is done."""
        self._backups += 1
        name = f"backup{self._backups}"
        self.etcd.backup(name)
        self._pause(3)
        ids = [self.node_id(machine) for machine in self.machines]
        with self._down(*(f"n{machine.node.number}" for machine in self.machines if machine.is_on)):
            self.etcd.restore(name)
            recover(self.world.store, ids)

    def _copy_disk(self) -> None:
        """Boots a copy of a machine's disk on another machine: its agent does nothing, and no pod gets an address."""
        machine, copy = self._any(), self.world.spare
        assert copy
        for path in (copy.disk / "cni").iterdir():  # the directory itself is mounted
            shutil.rmtree(path)
        shutil.copytree(machine.node.disk / "cni", copy.disk / "cni", dirs_exist_ok=True)
        copy.run(copy.tool, "install")
        copy.run("mkdir", "-p", "/var/lib/podwire")
        copy.run("sh", "-c", f"cat >{_NODE_ID}", stdin=machine.node.run("cat", _NODE_ID))
        set_boot_id(copy)
        agent = self.world.start(copy)
        self._pause(4)
        answer = self._verb(Machine(copy), "ADD", f"copy-{uuid.uuid4().hex}")
        if answer.get("code") != 11:
            self.errors.append(f"a copied disk: {answer}")
        agent.stop(signal.SIGKILL)

    # The end.

    def heal(self) -> list[str]:
        """Waits until all machines are ready and can add pods; returns what is still wrong."""
        end = time.monotonic() + _HEAL_S
        wrong: list[str] = []
        for machine in self.machines:
            agent = self._agent(machine)
            if not eventually(agent.is_ready, within_s=max(1.0, end - time.monotonic())):
                wrong.append(f"{machine.node.name} is not ready: {agent.readiness()[1]}")
        for machine in self.machines:
            added = lambda machine=machine: "ips" in self._verb(machine, "ADD", f"last-{uuid.uuid4().hex}")  # noqa: E731
            if not eventually(added, within_s=100):
                wrong.append(f"{machine.node.name} gets no address")
        return wrong


def set_boot_id(node: ClusterNode) -> None:
    """Gives a node another boot ID, as a boot does."""
    path = node.disk / "boot_id"
    path.write_text(f"{uuid.uuid4()}\n")
    node.run("mount", "--bind", str(path), _BOOT_ID)


def unowned(store: EtcdStore, machines: int) -> list[str]:
    """Returns the blocks in the store whose owner is no node with a record of this epoch that is not fenced (I7)."""
    entries = store.list_entries().by_node
    running = {node for node, entry in entries.items() if entry.value and not entry.value.record.is_fenced}
    assert len(running) >= machines
    return [
        f"{network}: owner {stored.value.owner}"
        for network, stored in store.list_blocks().items()
        if stored.value.owner and stored.value.owner not in running
    ]
