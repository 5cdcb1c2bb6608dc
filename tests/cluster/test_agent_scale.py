"""The whole agent in a cluster of 5,000 nodes of a real one's size: memory and processor time."""

import os
import time
from pathlib import Path

import pytest

from tests.support import cluster_nodes
from tests.support.cluster_agent import Agent
from tests.support.cluster_world import served
from tests.support.kubernetes_double import NODES, KubernetesDouble
from tests.support.machine import eventually

pytestmark = pytest.mark.timeout(1000)
COUNT = 5000
HEARTBEAT_S = 300.0
PEAK_MIB = 60
WATCHED_S = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


def put(server: KubernetesDouble, number: int, beat: int = 0) -> None:
    document = cluster_nodes.node(number, beat)
    server.store.put(f"{NODES}/{document['metadata']['name']}", document)


def peak_mib(agent: Agent) -> int:
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def cpu_s(agent: Agent) -> float:
    fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@pytest.mark.long
@pytest.mark.alone
def test_5000_nodes(tmp_path: Path):
    """Routes to 5,000 nodes through VXLAN, with IPv4 and IPv6, take at most 60 MiB, and heartbeats 2 % of a core."""
    with served(tmp_path, "--no-install", count=1) as created:
        server, (node,) = created.server, created.nodes
        for number in range(COUNT):
            put(server, number)
        document = cluster_nodes.node(COUNT)
        document["metadata"]["name"] = node.name
        document["status"]["addresses"] = [{"type": "InternalIP", "address": node.addresses[0]}]
        server.store.put(f"{NODES}/{node.name}", document)
        server.store.compact()
        agent = Agent(node, *created.options)
        agent.wait_ready(within_s=300)
        assert eventually(lambda: agent.metric("podwire_agent_routes") == 2 * COUNT, within_s=300)
        first_peak_mib = peak_mib(agent)
        before_s, began, beats = cpu_s(agent), time.monotonic(), 0
        while (now := time.monotonic()) - began < WATCHED_S:
            for number in range(beats, int((now - began) * COUNT / HEARTBEAT_S)):
                put(server, number % COUNT, number + 1)
                beats += 1
            time.sleep(0.05)
        share = (cpu_s(agent) - before_s) / (time.monotonic() - began)
        server.store.remove(f"{NODES}/node-00007")
        assert eventually(lambda: node.route("10.0.7.0/24") == "")
        print(f"peak {first_peak_mib} MiB, with heartbeats {peak_mib(agent)} MiB, {share:.2%} of a core")
        assert peak_mib(agent) <= PEAK_MIB
        assert share < 0.02
        agent.stop()
