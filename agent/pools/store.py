"""The store that the agents of a cluster share: the space, the owner of each block, an entry of each node.

One rule: a change is a compare-and-swap of the whole value, not of its revision. A restored store counts again from the
backup's revision, so a late request could find its expected revision with another value.

etcd.py and kubernetes_store.py implement it; tests/cluster/test_store_contract.py runs over both, and over a double.

A read raises ApiError. A change raises nothing: its outcome is LOST if it was certainly not executed, and UNKNOWN
without a certain answer; `problem` is the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from agent.api_errors import ApiError, OutcomeUnknown
from agent.pools.block_protocol import BlockRecord, NodeRecord, SwapOutcome
from agent.pools.space import Space
from cni.address import Address, Network

T_co = TypeVar("T_co", covariant=True)


class BlockNote(NamedTuple):
    """The parts of a block's object beside the protocol's values.

    The pool, the node's name and the time (RFC 3339) are remarks for people, which decide nothing. `key` is that of the
    pod to which a sticky address belongs, also while the block is free; "" for all other blocks.
    """

    pool: str = ""
    node_name: str = ""
    claimed: str = ""  # the time
    key: str = ""


class Stored(NamedTuple, Generic[T_co]):
    """A value that was read. `raw` are its bytes in the store, which a compare-and-swap expects; b"" without an object.

    With a `problem` the object is not valid: the value is DAMAGED_BLOCK or DAMAGED_ENTRY (documents.py), which the
    protocol leaves alone, and a change that expects it is LOST. Only a block has a `note`.
    """

    value: T_co
    raw: bytes = b""
    problem: str = ""
    note: BlockNote = BlockNote()


class NodeEntry(NamedTuple):
    """An entry of a node: the protocol's record, and what the other nodes need to reach its pods.

    `name` is that of its Node object, or of the host. `networks` are its blocks of the mode "routed". `registered` is a
    time (RFC 3339): of two entries with one name the later one is that of the machine that runs.
    """

    record: NodeRecord
    name: str = ""
    addresses: tuple[Address, ...] = ()
    networks: tuple[Network, ...] = ()
    registered: str = ""  # the time


class Entries(NamedTuple):
    """The entries of all nodes by node ID, and the revision after which a watch continues."""

    by_node: Mapping[str, Stored[NodeEntry]]
    revision: str  # an opaque text, unlike that of StorePosition


class EntryChanged(NamedTuple):
    """A change of a node's entry; None if it was deleted. With a `problem` it is not valid: see Stored."""

    node: str
    entry: NodeEntry | None
    revision: str
    problem: str = ""


class SpaceChanged(NamedTuple):
    """A change of the space: read it again."""

    revision: str


class StorePosition(NamedTuple):
    """The position of a store in its history: its cluster's ID and the revision of its latest answer.

    A lower revision or another ID shows a restore; some restores show neither.
    """

    cluster: str = ""
    revision: int = 0


class Changes(Protocol):
    """An open watch: the iteration yields each change, and ends or raises ApiError when the watch ends."""

    def __iter__(self) -> Iterator[EntryChanged | SpaceChanged]:
        """Yields the changes when they arrive."""

    def close(self) -> None:
        """Ends the iteration, from any thread."""


class SwapReply(NamedTuple):
    """A store's reply to a compare-and-swap: the outcome, and why it is not SUCCEEDED.

    `raw` is the new value as the store has it after SUCCEEDED, b"" if that is not known without another request.
    `space` is the one that the transaction of a block's change has read, None if the store has no transactions.
    """

    outcome: SwapOutcome
    problem: str = ""
    raw: bytes = b""
    space: Space | None = None


def send_swap(name: str, send: Callable[[], bytes]) -> SwapReply:
    """Sends a compare-and-swap of an object, and returns the reply; `send` returns the new `raw`, b"" for LOST."""
    try:
        if raw := send():
            return SwapReply(SwapOutcome.SUCCEEDED, raw=raw)
    except OutcomeUnknown as error:
        return SwapReply(SwapOutcome.UNKNOWN, str(error))
    except ApiError as error:
        return SwapReply(SwapOutcome.LOST, str(error))
    return SwapReply(SwapOutcome.LOST, f"{name} is no longer as it was read")


class Store(Protocol):
    """A store of one space; several threads may use it. Reads are linearizable."""

    @property
    def position(self) -> StorePosition:
        """The position in the latest answer of a list."""

    def read_space(self) -> Stored[Space | None]:
        """Returns the space, None without one; raises ValueError if it is not valid."""

    def swap_space(self, expected: Stored[Space | None], new: Space) -> SwapReply:
        """Changes the space, as the administrator."""

    def read_block(self, block: Network) -> Stored[BlockRecord]:
        """Returns a block; FREE without an object."""

    def list_blocks(self, owner: str = "") -> Mapping[Network, Stored[BlockRecord]]:
        """Returns all blocks that have ever been claimed, or those of one owner."""

    def swap_block(self, block: Network, expected: Stored[BlockRecord], new: BlockRecord, note: BlockNote) -> SwapReply:
        """Changes a block; the note is stored with it."""

    def read_entry(self, node: str) -> Stored[NodeEntry | None]:
        """Returns the entry of a node."""

    def list_entries(self) -> Entries:
        """Returns the entries of all nodes."""

    def swap_entry(self, node: str, expected: Stored[NodeEntry | None], new: NodeEntry) -> SwapReply:
        """Changes the entry of a node."""

    def list_problems(self) -> list[str]:
        """Returns a text for each invalid object of the space, also for each with a wrong name.

        The other lists leave out objects with a wrong name: no agent created them.
        """

    def watch(self, revision: str) -> Changes:
        """Opens a watch of the entries and the space after a revision.

        Raises Expired, here or in the iteration, if the revision is too old or the store was restored: list again.
        """
