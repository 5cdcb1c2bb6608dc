"""The world: several nodes, the store, an administrator, and the invariants that hold after each event.

One rule: the administrator keeps the protocol's promises. He states that a machine is off while it is off, about a
record that was read before, and a restored store is recovered before an agent reaches it.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from typing import NamedTuple

from agent.pools import documents, reclaim
from agent.pools.block_protocol import BlockRecord, Evidence
from agent.pools.grants_file import BlockState
from agent.pools.reclaim import SuspectedNode
from agent.pools.space import parse_space
from agent.pools.store import Stored
from cni.address import Network, parse_ip
from tests.pools_world.node import API_ERRORS, Node
from tests.support.store_double import Fault, Snapshot, StoreDouble

SPACE = {
    "epoch": "epoch-0",
    "pools": [{"name": "default", "cidrs": ["10.22.0.0/29", "10.22.0.8/29"], "blockPrefixLengths": {"ipv4": 30}}],
}

_ROUNDS = 20


class Proven(NamedTuple):
    """A reclaim that the administrator has begun: the record was read, then the machine was seen to be off."""

    suspect: SuspectedNode
    is_proven: bool


class BrokenInvariant(AssertionError):  # noqa: N818 - what a walk looks for
    """An invariant of README.md does not hold, with its name: I1 to I5, I7."""


class World:
    """The events of the world are its methods; call `check` after each."""

    def __init__(self, root: Path, nodes: int = 3, space: Mapping[str, object] = SPACE) -> None:
        self._root = root
        self.store = StoreDouble()
        assert self.store.swap_space(Stored(None), parse_space(space)).raw
        self.nodes = [Node(self._directory(f"n{number}"), self.store, number) for number in range(nodes)]
        self.proofs: list[Proven] = []
        self.backup: Snapshot | None = None
        self._epochs = 0
        self._blocks: dict[Network, BlockRecord] = {}
        self._watch_writes()
        self.broken: BrokenInvariant | None = None

    def _directory(self, name: str) -> Path:
        path = self._root / name
        path.mkdir()
        return path

    # Events of a node.

    def step(self, number: int, count: int = 1, fault: Fault | None = None, request: str = "") -> None:
        """Lets an agent make steps, with a fault at its first request of a kind."""
        node = self._node(number)
        self.store.reads_space = node.number % 2 == 0  # both kinds of stores
        if fault:
            self.store.fail_next(fault, request)
        for _ in range(count):
            node.step()
        self.store._faults.clear()
        node.disk.clear()

    def add(self, number: int) -> None:
        node = self._node(number)
        if node.is_on:
            node.add()

    def pass_time(self, number: int, seconds: float) -> None:
        self._node(number).time_s += seconds

    def _node(self, number: int) -> Node:
        return self.nodes[number % len(self.nodes)]

    def copy_disk(self, number: int) -> None:
        """Starts another machine with a copy of a node's disk."""
        if not any(node.is_copy for node in self.nodes):
            place = len(self.nodes)
            self.nodes.append(self._node(number).copy(self._root / f"n{place}", place))

    # The administrator.

    def suspect(self, number: int) -> None:
        """Reads the record of a node, before any evidence."""
        suspect = reclaim.read_suspect(self.store, self._node(number).node)
        self.proofs = [*self.proofs, Proven(suspect, is_proven=False)][-3:]

    def state_off(self) -> None:
        """States of each suspect whose machines are off that they are off."""
        running = {machine.node for machine in self.nodes if machine.is_on}
        self.proofs = [
            proof._replace(is_proven=proof.is_proven or proof.suspect.node not in running) for proof in self.proofs
        ]

    def reclaim(self, number: int, fault: Fault | None = None, request: str = "") -> None:
        """Reclaims a proven suspect, or the blocks of a node that is fenced already."""
        proven = [proof for proof in self.proofs if proof.is_proven]
        if fault:
            self.store.fail_next(fault, request)
        try:
            if proven:
                reclaim.reclaim(self.store, proven[number % len(proven)].suspect, Evidence.POWERED_OFF)
            else:
                reclaim.free_blocks(self.store, self._node(number).node)
        except API_ERRORS:
            pass
        self.store._faults.clear()

    def save(self) -> None:
        self.backup = self.store.snapshot()

    def restore(self) -> None:
        """Restores the backup, and recovers: all nodes that ever started may have joined."""
        if self.backup:
            self.store.restore(self.backup)
            self._blocks = self._read_blocks()
            self.recover()

    def recover(self) -> None:
        """Begins a new epoch; agents notice it by their watch."""
        self._epochs += 1
        joined = {node.node for node in self.nodes if node.has_started}
        reclaim.recover(self.store, sorted(joined), f"epoch-{self._epochs}")
        self._report_space()

    def _report_space(self) -> None:
        for node in self.nodes:
            if node.manager:
                node.manager.space_changed()

    def toggle_draining(self) -> None:
        """Changes the space: half of the pool drains, or does not any more."""
        stored = self.store.read_space()
        if stored.value:
            (pool,) = stored.value.pools
            draining = () if pool.draining else pool.cidrs[1:]
            self.store.swap_space(stored, stored.value._replace(pools=(pool._replace(draining=draining),)))
            self._report_space()

    def deliver(self, number: int) -> None:
        """Executes a late request, in any order."""
        if self.store.late:
            self.store.deliver_late(number % len(self.store.late))

    # Invariants.

    def check(self) -> None:
        """Raises BrokenInvariant."""
        if self.broken:
            raise self.broken
        self._check_pods()
        blocks, epoch = self._read_blocks(), self._epoch()
        for node in self.nodes:
            may_claim = node.manager is not None and self._may_claim(node, epoch)
            for entry in node.entries:
                if entry.grant is None:
                    continue
                is_stores = blocks.get(entry.block) == BlockRecord(node.node, entry.grant)
                if entry.grant.epoch == epoch and not is_stores:
                    raise BrokenInvariant("I2", f"{node.boot_id} has {entry}, the store {blocks.get(entry.block)}")
                if may_claim and not is_stores:
                    raise BrokenInvariant("I5", f"{node.boot_id} is registered and has {entry}")

    def _check_pods(self) -> None:
        holders: dict[str, str] = {}
        for node in self.nodes:
            granted = [entry.block for entry in node.entries if entry.grant]
            for container, addresses in node.pods.items():
                for address in addresses:
                    other = holders.setdefault(address, container)
                    if other != container:
                        raise BrokenInvariant("I1", f"{address} of {other} and {container}")
                    if container not in node.orphans and not any(parse_ip(address) in block for block in granted):
                        raise BrokenInvariant("I2", f"{container} has {address} without a grant")

    def _may_claim(self, node: Node, epoch: str) -> bool:
        memory = getattr(node.manager, "_memory", None)
        return memory is not None and memory.agent.may_claim and memory.agent.epoch == epoch

    def _watch_writes(self) -> None:
        """Checks each change of a block when the store makes it, also those of late requests."""
        put: Callable[[str, bytes], None] = self.store._put

        def checked(key: str, raw: bytes) -> None:
            put(key, raw)
            try:
                self._check_blocks()
            except BrokenInvariant as broken:
                self.broken = self.broken or broken

        self.store._put = checked  # type: ignore[method-assign]

    def _check_blocks(self) -> None:
        before, self._blocks = self._blocks, self._read_blocks()
        epoch = self._epoch()
        for block, new in self._blocks.items():
            old = before.get(block, BlockRecord("", new.token._replace(generation=0)))
            rise = new.token.generation - old.token.generation
            if rise < 0 or (rise == 0 and new.owner not in ("", old.owner)):
                raise BrokenInvariant("I3", f"block {block}: {old} became {new}")
            for node in self.nodes if old.owner and not new.owner else ():
                for entry in node.entries:
                    is_in_use = entry.block == block and old == BlockRecord(node.node, entry.token)
                    if is_in_use and entry.grant and entry.grant.epoch == epoch:
                        raise BrokenInvariant("I4", f"block {block} became free, and {node.boot_id} has {entry}")

    def _read_blocks(self) -> dict[Network, BlockRecord]:
        objects = self.store.objects
        return {_network(key): _block(raw) for key, raw in objects.items() if key.startswith("blocks/")}

    def _epoch(self) -> str:
        raw = self.store.objects.get("space", b"")
        return parse_space(documents.decode(raw)).epoch if raw else ""

    # The end.

    def heal(self) -> None:
        """Ends all faults, and checks that nothing is lost (I7): each block is free or used by its owner."""
        self.store.drop_late()
        self.store._faults.clear()
        self.proofs.clear()
        for node in self.nodes:
            node.disk.clear()
            if node.is_copy:
                node.power_off()
        self._refuse_copies()
        machines = [node for node in self.nodes if not node.is_copy]
        for node in machines:
            node.boot()
            for _ in node.orphans & set(node.pods):
                node.delete(0)
            node.collect()
        self._report_space()
        for _ in range(_ROUNDS):
            for node in machines:
                for _ in range(8):
                    node.step()
                node.time_s += 90.0
            self.check()
            lost = self._find_lost(machines)
            if not lost:
                return
        raise BrokenInvariant("I7", lost)

    def _refuse_copies(self) -> None:
        """Resolves a copied disk that registered first: the administrator reclaims, while it is off."""
        for node in self.nodes:
            if node.is_copy:
                stored = self.store.read_entry(node.node)
                if stored.value and stored.value.record.machine == f"machine-{node.number}":
                    original = next(one for one in self.nodes if one.node == node.node and not one.is_copy)
                    original.power_off()
                    suspect = reclaim.read_suspect(self.store, node.node)
                    assert not reclaim.reclaim(self.store, suspect, Evidence.POWERED_OFF).problem

    def _find_lost(self, machines: list[Node]) -> str:
        """Returns what is lost, "" if nothing is."""
        epoch = self._epoch()
        for block, value in self._read_blocks().items():
            users = {
                node.node
                for node in machines
                for entry in node.entries
                if entry.block == block and entry.state in (BlockState.GRANTED, BlockState.DRAINING)
            }
            if users != ({value.owner} - {""}):
                return f"block {block} of {value.owner or 'no node'} is used by {users or 'no node'}"
        for node in machines:
            if not self._may_claim(node, epoch):
                return f"{node.boot_id} may not claim: {node.reports.last_problems}"
            if node.reports.events:
                return f"{node.boot_id}: {node.reports.events}"
        return ""


_ANY = ip_network("10.0.0.0/26")  # of the text of a problem


@lru_cache(4096)
def _block(raw: bytes) -> BlockRecord:
    return documents.stored_block(_ANY, raw).value


@lru_cache(256)
def _network(key: str) -> Network:
    return documents.parse_block_name(key.removeprefix("blocks/"))
