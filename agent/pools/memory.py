"""The manager's state in memory: this node as the protocol's agent, values that were read, tokens of claims.

One rule: all of it may be lost at any moment. The grants files have everything that must survive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.pools.block_protocol import AgentState, Token
from agent.pools.block_requests import BlockRequests
from agent.pools.grants_file import FileEntry, Grants
from agent.pools.identity import NodeIdentity
from agent.pools.network_blocks import NetworkBlocks
from agent.pools.space import ROUTED, Pool, Space
from agent.pools.store import BlockNote, NodeEntry, Store, Stored, StorePosition
from cni.address import Address, Network


class NodeFacts(NamedTuple):
    """Facts for this node's entry: the UID of its Node object ("" without one), its name and its addresses."""

    uid: str = ""
    name: str = ""
    addresses: tuple[Address, ...] = ()


class Busy(Exception):  # noqa: N818 - a state, not an error
    """A plugin holds the lock of a network's reservations now: try again soon."""


class HeldBlock(NamedTuple):
    """A block in the grants file of a network; an intent (CLAIMING) may still be free or another node's."""

    network: NetworkBlocks
    entry: FileEntry


@dataclass
class Memory:
    """The state of one manager.

    - `node_entry` is this node's entry as read last: Stored(None) without an object, None if it has to be read.
    - `position_is_checked`: the store's position in this epoch was compared with that of the last start.
    - `unverified` are granted blocks whose value has to be read.
    - `claimed` are tokens of successful claims; `grantable` those whose epoch is still the store's after the claim.
    - `pods` are the pods of this node by name ("team-a/db-0"), each with its key (pods.py); None before the first list.
    - `requests` are the changes of blocks, with the values that they expect.
    - `has_unaccounted_reservations`: a network whose grants file was lost has some outside this node's blocks.
    - `contact` and `problem`: when the store answered last (seconds since 1970), and why it does not answer now.
    """

    store: Store
    identity: NodeIdentity
    networks: list[NetworkBlocks]
    facts: NodeFacts
    clock: Callable[[], float] = time.time
    agent: AgentState = field(init=False)
    requests: BlockRequests = field(init=False)
    space: Space | None = None
    space_is_due: bool = True
    node_entry: Stored[NodeEntry | None] | None = None
    position: StorePosition = field(default_factory=StorePosition)
    position_is_checked: bool = False
    is_restored: bool = False
    is_fenced: bool = False  # this boot was declared dead
    unverified: set[Network] = field(default_factory=set)
    claimed: dict[Network, Token] = field(default_factory=dict)
    grantable: dict[Network, Token] = field(default_factory=dict)
    has_unaccounted_reservations: bool = False
    contact: int = 0
    problem: str = ""
    pods: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        identity = self.identity
        self.agent = AgentState(identity.node, identity.machine, identity.instance(self.facts.uid))
        self.requests = BlockRequests(self.store, self._note)
        self.contact = max((network.grants.contact for network in self.networks), default=0)
        self.mark_unverified()

    def held_blocks(self) -> Iterator[HeldBlock]:
        """Yields all blocks in this node's files."""
        for network in self.networks:
            for entry in network.grants.entries:
                yield HeldBlock(network, entry)

    def pool_of(self, held: HeldBlock) -> Pool | None:
        """Returns the pool of a block that its network may use; None if the block must not be granted (any longer)."""
        network, entry = held
        pool = self.space.pool_of(entry.block) if self.space else None
        if pool is None or pool.is_draining(entry.block) or not pool.size_of(entry.block):  # 0: all excluded
            return None
        return pool if uses_pool(network, pool) else None

    def time_text(self) -> str:
        """Returns the time, for people (RFC 3339)."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock()))

    def mark_unverified(self) -> None:
        """Marks all granted blocks: their values have to be compared with the store."""
        self.unverified = {held.entry.block for held in self.held_blocks() if held.entry.grant}
        self.requests.forget(*self.unverified)

    def save(self, network: NetworkBlocks, grants: Grants) -> None:
        """Writes a network's file unless only the store's position or the contact would change; raises OSError."""
        if grants != network.grants or not network.is_of_this_boot:
            self.write(network, grants)

    def write(self, network: NetworkBlocks, grants: Grants) -> None:
        """Writes a network's file, also if only the store's position or the last contact changes; raises OSError."""
        network.save(self._stamped(grants))

    def save_locked(self, network: NetworkBlocks, change: Callable[[Grants], Grants]) -> None:
        """Writes a network's file while no ADD runs; raises Busy if one runs now."""
        if not network.save_locked(lambda grants: self._stamped(change(grants))):
            raise Busy

    def _note(self, pool: str, key: str) -> BlockNote:
        """Returns the remarks of a block: its pool, this node's name, the time, and the key of a sticky address."""
        return BlockNote(pool, self.facts.name, self.time_text(), key)

    def _stamped(self, grants: Grants) -> Grants:
        grants = grants._replace(contact=self.contact, problem=self.problem)
        if self.position_is_checked and not self.is_restored:
            return grants._replace(position=self.position, epoch=self.agent.epoch)
        return grants


def uses_pool(network: NetworkBlocks, pool: Pool) -> bool:
    """Returns whether a network may have blocks of a pool: the one that it names, or one for some namespaces."""
    return bool(network.pool) and (pool.name == network.pool or bool(pool.namespaces))


def is_routed(entry: FileEntry, pool: Pool | None) -> bool:
    """Returns whether other nodes need a route to a block; without its pool: whether its subnet is the block itself."""
    return pool.mode == ROUTED if pool else entry.subnet == entry.block
