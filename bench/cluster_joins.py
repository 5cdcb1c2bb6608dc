"""Nodes that join a large cluster: what each costs in the agent of every other node, and when all are reached.

One rule: the pure part is measured alone and in this process; the whole agent is a real one, with a double of the API
server, which sends Nodes as large as those of a real cluster.
"""

from __future__ import annotations

import time
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from agent.cluster import Cluster
from agent.node import Node, parse_node
from bench.cluster_agents import cpu_s
from tests.support import cluster_nodes
from tests.support.agent_nodes import SERVER, cluster
from tests.support.certificates import create
from tests.support.cluster_agent import Agent
from tests.support.cluster_world import options_of
from tests.support.kubernetes_double import NODES, KubernetesDouble

_ROUNDS = 20
_BLOCKS = 4  # of each IP version on a node
_LIMIT_S = 600.0


def measure_joins(directory: Path, nodes: int) -> dict[str, Any]:
    """Returns the processor time of a join and of a changed entry in ms, and the figures of `nodes` joins at once."""
    sizes = (nodes // 10, nodes)
    return {
        "join_ms": {str(size): join_ms(size) for size in sizes},
        "entry_ms": {str(size): entry_ms(size) for size in sizes},
        **join_at_once(directory, nodes),
    }


def join_ms(nodes: int) -> float:
    """Returns the processor time of a node that is created, and then gets its podCIDR, among others."""
    known = Cluster("node-00000")
    known.replace({f"node-{number:05}": parse_node(cluster_nodes.node(number)) for number in range(nodes)})
    joining = [parse_node(cluster_nodes.node(number)) for number in range(nodes, nodes + _ROUNDS)]
    began = time.process_time()
    for node in joining:
        known.set(node._replace(pod_cidrs=()))
        known.set(node)
    return 1000 * (time.process_time() - began) / _ROUNDS


def entry_ms(nodes: int) -> float:
    """Returns the processor time of an entry that gets another block of each IP version, among others."""
    known = Cluster("node-00000", fixed=False)
    known.replace({f"node-{number:05}": _node_of_pools(number, _BLOCKS) for number in range(nodes)})
    changed = [_node_of_pools(number, _BLOCKS + 1) for number in range(1, _ROUNDS + 1)]
    began = time.process_time()
    for node in changed:
        known.set(node)
    return 1000 * (time.process_time() - began) / _ROUNDS


def _node_of_pools(number: int, blocks: int) -> Node:
    numbers = [64 * ((_BLOCKS + 1) * number + block) for block in range(blocks)]
    networks = [ip_network((0x0A000000 + first, 26)) for first in numbers]
    networks += [ip_network((0xFD00 << 112 | first, 122)) for first in numbers]
    addresses = ip_address(0xAC100000 + number), ip_address(0xFD16 << 112 | number)
    return Node(f"node-{number:05}", f"uid-{number}", tuple(networks), addresses)


def join_at_once(directory: Path, nodes: int) -> dict[str, float]:
    """Creates Nodes as fast as the server can, each without and then with its podCIDRs; a real agent routes to them."""
    create(directory, SERVER)
    with cluster(directory, 1) as (fabric, (node,)):
        with fabric.entered():
            server = KubernetesDouble(directory, SERVER)
        this = cluster_nodes.node(nodes)
        this["metadata"]["name"] = node.name
        this["status"]["addresses"] = [{"type": "InternalIP", "address": node.addresses[0]}]
        server.store.put(f"{NODES}/{node.name}", this)
        with server.running():
            agent = Agent(node, *options_of(directory, server), "--no-install")
            agent.wait_ready()
            used_s, began = cpu_s(agent), time.monotonic()
            for number in range(nodes):
                document = cluster_nodes.node(number)
                path = f"{NODES}/{document['metadata']['name']}"
                server.store.put(path, {**document, "spec": {}})
                server.store.put(path, document)
            last = time.monotonic()
            while agent.metric("podwire_agent_routes") < 2 * nodes:
                if time.monotonic() - last > _LIMIT_S:
                    raise RuntimeError(f"routes are missing {_LIMIT_S} s after the last event")
                time.sleep(0.1)
            late_s = time.monotonic() - last
            agent_cpu_s = cpu_s(agent) - used_s
            agent.stop()
    return {"nodes": nodes, "joining_s": last - began, "late_s": late_s, "agent_cpu_s": agent_cpu_s}
