"""Real agents on nodes of a test cluster: memory, processor time, and how soon a node has another block.

One rule: agents, plugins and etcd are real, and a wait is what a runtime sees, which tries ADD again.
"""

from __future__ import annotations

import base64
import json
import os
import re
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from agent.pools.block_protocol import NodeRecord
from agent.pools.documents import encode, format_entry
from agent.pools.store import NodeEntry
from tests.support.cluster_agent import Agent
from tests.support.etcd import Etcd, encoded
from tests.support.etcd_members import EtcdMembers
from tests.support.pool_world import PoolWorld, pool_world

# Requests of clients, also by way of the JSON gateway, which calls the same services.
_STARTED = re.compile(
    r'^grpc_server_started_total\{grpc_method="(\w+)",grpc_service="etcdserverpb\.(KV|Watch)".*\} (\S+)$', re.M
)
_TICKS = os.sysconf("SC_CLK_TCK")
_KEYS_AT_ONCE = 100  # etcd allows 128 changes in a transaction
_RETRY_S = 0.05
_WAIT_S = 60.0
_PODS = 20  # fewer than three quarters of a block
_POOLS: Any = [{"name": "default", "cidrs": ["10.64.0.0/12"]}]


def measure_footprint(directory: Path, entries: int, idle_s: float) -> dict[str, Any]:
    """Starts an agent with the entries of other nodes in etcd, and lets it idle.

    Returns its memory in MiB, the seconds until it is ready, its share of a core when idle, and its requests.
    """
    with pool_world(directory, count=1, pools=_POOLS) as world:
        (node,) = world.nodes
        world.agents[node.name].stop()
        for begin in range(0, entries, _KEYS_AT_ONCE):
            _put(world.etcd, {_key(n): encode(format_entry(_entry(n))) for n in range(begin, begin + _KEYS_AT_ONCE)})
        requests, started = count_requests(world.etcd), time.monotonic()
        agent = world.start(node)
        agent.wait_ready(within_s=120)
        start_s, start_cpu_s = time.monotonic() - started, cpu_s(agent)
        time.sleep(idle_s / 2)  # until the routes are there
        start_requests = count_requests(world.etcd, requests)
        used_s, requests, began = cpu_s(agent), count_requests(world.etcd), time.monotonic()
        time.sleep(idle_s)
        share = (cpu_s(agent) - used_s) / (time.monotonic() - began)
        return {
            "entries": entries,
            "start_s": start_s,
            "start_cpu_s": start_cpu_s,
            "peak_mib": memory_mib(agent, "VmHWM"),
            "idle_mib": memory_mib(agent, "VmRSS"),
            "idle_share": share,
            "idle_requests": sum(count_requests(world.etcd, requests).values()),
            "start_requests": start_requests,
        }


def measure_waits(directory: Path, rounds: int, stopped_rounds: int) -> dict[str, Any]:
    """Measures waits for an address with all members of etcd, and with the leader stopped at the moment of need.

    Also counts the requests during ADD and DEL of pods while the node has free addresses.
    """
    with pool_world(directory, count=1, members=3, pools=_POOLS) as world:
        assert isinstance(world.etcd, EtcdMembers)
        pods = _Pods(world)
        before = count_requests(world.etcd)
        if not before:
            raise RuntimeError("etcd counts no requests")
        pods.fill(_PODS)
        pods.clear()
        requests = sum(count_requests(world.etcd, before).values())
        normal = [pods.wait_for_block() for _ in range(rounds)]
        stopped = [_wait_without_leader(world.etcd, pods) for _ in range(stopped_rounds)]
        rows = [_wait_row("all members run", normal), _wait_row("the leader is stopped", stopped)]
        return {"rows": rows, "requests_of_pods": requests}


def _wait_row(state: str, seconds: Sequence[float]) -> dict[str, Any]:
    last = max(0, -(-99 * len(seconds) // 100) - 1)
    return {
        "state": state,
        "count": len(seconds),
        "p50_s": statistics.median(seconds),
        "p99_s": sorted(seconds)[last],
    }


def _wait_without_leader(etcd: EtcdMembers, pods: _Pods) -> float:
    leader = etcd.leader()
    etcd.pause(leader)
    try:
        return pods.wait_for_block()
    finally:
        etcd.resume(leader)
        etcd.wait()


class _Pods:
    """Pods of a node that have only addresses; `host-local` is called as a runtime does."""

    def __init__(self, world: PoolWorld) -> None:
        (self._node,) = world.nodes
        self._world, self._names, self._count = world, list[str](), 0

    def fill(self, count: int) -> None:
        """Adds pods, each of which must have an address at once."""
        for _ in range(count):
            if not self._add():
                raise RuntimeError(f"no address for pod {self._count}: {self._answer}")

    def clear(self) -> None:
        """Deletes all pods."""
        for name in self._names:
            self._verb("DEL", name)
        self._names.clear()

    def wait_for_block(self) -> float:
        """Takes all free addresses of the node, faster than its agent looks; returns how long the next ADD waits."""
        self._reserve_all()
        started = time.monotonic()
        while not self._add():
            if time.monotonic() - started > _WAIT_S:
                raise RuntimeError(f"no address after {_WAIT_S} s: {self._answer}")
            time.sleep(_RETRY_S)
        return time.monotonic() - started

    def _reserve_all(self) -> None:
        """Writes a reservation for each address of the node's blocks, as if all pods came at once."""
        directory = self._node.disk / "cni" / "networks" / "podwire"
        for text in self._world.blocks(self._node):
            for address in list(IPv4Network(text))[1:-1]:
                path = directory / str(address)
                if not path.exists():
                    path.write_text("other\r\neth0")

    def _add(self) -> bool:
        self._count += 1
        name = f"pod-{self._count}"
        self._answer = self._verb("ADD", name)
        if "ips" in self._answer:
            self._names.append(name)
        return "ips" in self._answer

    def _verb(self, verb: str, pod: str) -> dict[str, Any]:
        conf = {"cniVersion": "1.0.0", "name": "podwire", "ipam": {"type": "host-local", "pool": "default"}}
        env = {"CNI_COMMAND": verb, "CNI_CONTAINERID": pod, "CNI_NETNS": "/run/netns/none", "CNI_IFNAME": "eth0"}
        done = self._node.done(
            "/opt/cni/bin/host-local", stdin=json.dumps(conf), env={**env, "CNI_PATH": "/opt/cni/bin"}
        )
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        return answer


def count_requests(etcd: Etcd, before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Returns the requests that etcd's members have got, by gRPC method, or those since `before`."""
    counts: Counter[str] = Counter()
    for url in etcd.urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            for method, service, value in _STARTED.findall(answer.read().decode()):
                counts[f"{service}.{method}"] += int(float(value))
    counts.subtract(before or {})
    return {method: count for method, count in counts.items() if count}


def _put(etcd: Etcd, values: Mapping[str, bytes]) -> None:
    puts = [
        {"request_put": {"key": encoded(key), "value": base64.b64encode(value).decode()}}
        for key, value in values.items()
    ]
    etcd.call("kv/txn", {"success": puts})


def _key(number: int) -> str:
    return f"/podwire/v1/default/nodes/{number:032x}"


def _entry(number: int) -> NodeEntry:
    """Returns the entry of a node with five blocks, with the texts of real ones."""
    blocks = tuple(IPv4Network((0x0B000000 + 64 * (5 * number + one), 26)) for one in range(5))
    uid = f"{number:08x}-7b1c-4b7e-9d2a-5a7f00c0ffee"
    return NodeEntry(
        NodeRecord(uid, f"{uid}/", "e1"),
        f"node-{number:05}",
        (IPv4Address(0xC6336400 + number % 200 + 1),),
        blocks,
        "2026-11-25T12:00:00Z",
    )


def memory_mib(agent: Agent, field: str) -> float:
    """Returns a field of the agent's memory in /proc, such as VmHWM."""
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


def cpu_s(agent: Agent) -> float:
    """Returns the agent's processor time."""
    fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
