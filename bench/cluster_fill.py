"""Fills a simulated cluster: real managers of blocks, each with a directory of its own, over one store.

One rule: only pods are simulated, by the files that host-local writes for them; what a manager does is what it does on
a node.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from agent.pools import grants_file
from agent.pools.block_protocol import SwapOutcome
from agent.pools.grants_file import BlockState
from agent.pools.identity import NodeIdentity
from agent.pools.manager import Clocks, Manager
from agent.pools.memory import NodeFacts
from agent.pools.network_blocks import NetworkOptions
from agent.pools.space import parse_space
from agent.pools.store import Store, Stored
from agent.pools.supply import PoolUsage
from cni.address import Address, Network
from ipam.host_local import grants

NETWORK, POOL = "podwire", "default"
SPACE = {"epoch": "epoch-1", "pools": [{"name": POOL, "cidrs": ["10.0.0.0/8"]}]}
_PODS_PER_POLL = 25  # the manager polls twice a second: 50 pods a second on each node
_MOST_STEPS = 1000


class Filled(NamedTuple):
    """A filled cluster: the seconds that it took, blocks, and the pods that had to wait for one."""

    nodes: int
    pods: int
    seconds: float
    blocks: int
    waits: int


def create_space(store: Store) -> None:
    """Creates the pools in an empty store."""
    change = store.swap_space(Stored(None), parse_space(SPACE))
    if change.outcome is not SwapOutcome.SUCCEEDED:
        raise RuntimeError(f"the space is not created: {change.problem}")


def fill(store: Store, directory: Path, nodes: int, pods: int, first: int = 0) -> Filled:
    """Lets `nodes` join and then each get `pods` pods, some on each node in turn.

    All nodes register before the first pod, as when a cluster boots. `first` is the number of the first node.
    """
    started = time.monotonic()
    cluster = [SimulatedNode(store, directory / f"node-{number}", number) for number in range(first, first + nodes)]
    for node in cluster:
        node.poll()
    for count in range(0, pods, _PODS_PER_POLL):
        for node in cluster:
            node.add(min(_PODS_PER_POLL, pods - count))
    blocks, waits = sum(len(node.blocks) for node in cluster), sum(node.waits for node in cluster)
    return Filled(nodes, nodes * pods, time.monotonic() - started, blocks, waits)


class SimulatedNode:
    """A node whose pods are files. It is also what its manager reports to."""

    def __init__(self, store: Store, directory: Path, number: int) -> None:
        self.blocks: tuple[Network, ...] = ()
        self.waits = 0
        self._problems: tuple[str, ...] = ()
        self._data_dir = f"{directory}/networks"
        self._store = f"{self._data_dir}/{NETWORK}"
        os.makedirs(self._store)
        os.mkdir(f"{self._data_dir}.podwire")
        self._used: set[Address] = set()
        self._time_s = 1000.0
        node = hashlib.sha256(f"node {number}".encode()).hexdigest()[:32]
        identity = NodeIdentity(node, f"machine-{number}", f"boot-{number}", is_new=True)
        options = NetworkOptions(NETWORK, POOL, self._data_dir, f"{directory}/results")
        facts = NodeFacts(name=f"node-{number}", addresses=(ip_address(0xC0000000 + number),))
        clocks = Clocks(monotonic=lambda: self._time_s, random=lambda: 0.5)
        self._manager = Manager(store, identity, (options,), self, facts, clocks)

    def add(self, count: int) -> None:
        """Adds pods; those without an address try again after the manager's next poll."""
        left = count
        for _ in range(_MOST_STEPS):
            left -= self._reserve(left)
            if left:
                self.waits += left
                with open(grants.demand_path_of(self._data_dir, NETWORK, POOL), "a") as file:
                    file.write("." * left)
            self.poll()
            if not left:
                return
        raise RuntimeError(f"node {self._store}: no address for {left} pods: {self._problems}")

    def poll(self) -> None:
        """Lets the manager do all that is due, and half a second pass."""
        for _ in range(_MOST_STEPS):
            if self._manager.step() > 0:
                break
        self._time_s += 0.5

    def _reserve(self, count: int) -> int:
        """Writes up to `count` reservations; returns their number."""
        done = 0
        for address in self._free_addresses():
            if done == count:
                break
            fd = os.open(f"{self._store}/{address}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, b"container\r\neth0")
            os.close(fd)
            self._used.add(address)
            done += 1
        return done

    def _free_addresses(self) -> Iterator[Address]:
        """Yields the free addresses of the blocks; the first address of the first block is the gateway."""
        for number, block in enumerate(self.blocks):
            for offset in range(1 if number else 2, block.num_addresses - 1):
                if (address := block[offset]) not in self._used:
                    yield address

    # What the manager reports.

    def problems(self, texts: tuple[str, ...]) -> None:
        """Keeps the problems for an error."""
        self._problems = texts

    def usage(self, pools: Mapping[str, PoolUsage]) -> None:
        """Reads the granted blocks, the pods' addresses, when their number has changed."""
        if sum(usage.blocks for usage in pools.values()) != len(self.blocks):
            entries = grants_file.read(grants.path_of(self._data_dir, NETWORK)).entries
            self.blocks = tuple(entry.block for entry in entries if entry.state is BlockState.GRANTED)

    def event(self, text: str) -> None:
        """Raises RuntimeError: no block may be lost."""
        raise RuntimeError(text)
