"""Requests of this node that change blocks: each change names the value that the store is expected to have.

One rule: no change expects a value that may be old. A value serves one change; then the block is read again, unless
the answer to the change contains the new value.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import BlockRecord, SwapOutcome
from agent.pools.space import Space
from agent.pools.store import BlockNote, Store, Stored, SwapReply
from cni.address import Network


class RequestFailed(Exception):  # noqa: N818 - as in agent.api_errors
    """A change had no certain answer, or was refused twice for the same value: wait, read and try again."""


class BlockRequests:
    """The requests of one manager. `note` returns the note of a block; its arguments are the pool's name and the key.

    `space` is the space in the answer to the latest change, None if the answer had none.
    """

    def __init__(self, store: Store, note: Callable[[str, str], BlockNote]) -> None:
        self._store, self._note = store, note
        self.space: Space | None = None
        self._values: dict[Network, Stored[BlockRecord]] = {}  # each for one change
        self._refused: dict[object, bytes] = {}  # the expected value of the last refused change of each object

    def take_or_read(self, block: Network) -> Stored[BlockRecord] | None:
        """Returns the known value of a block and forgets it. Reads an unknown one and returns None: call again."""
        value = self._values.pop(block, None)
        if value is None:
            self._values[block] = self._store.read_block(block)
        return value

    def expect(self, block: Network, value: Stored[BlockRecord]) -> None:
        """Stores the expected value of a block, so that its next change needs no read."""
        self._values[block] = value

    def forget(self, *blocks: Network) -> None:
        """Forgets the values of blocks."""
        for block in blocks:
            self._values.pop(block, None)

    def forget_all(self) -> None:
        """Forgets the values of all blocks."""
        self._values.clear()

    def swap(
        self, block: Network, expected: Stored[BlockRecord], new: BlockRecord, pool: str, key: str = ""
    ) -> SwapOutcome:
        """Requests a change of a block; raises RequestFailed unless it succeeds, or the store has another value.

        Without `key` the block keeps the one that it has.
        """
        note = self._note(pool, key or expected.note.key)
        change = self._store.swap_block(block, expected, new, note)
        self.space = change.space
        if protocol.succeeded(change.outcome) and change.raw:
            self._values[block] = Stored(new, change.raw, note=note)
        return self.check_outcome(block, expected.raw, change)

    def check_outcome(self, target: object, expected: bytes, change: SwapReply) -> SwapOutcome:
        """Returns the outcome of a change of the object `target`.

        Raises RequestFailed if it is not known, or if the store refuses the same expected value a second time.
        """
        if change.outcome is SwapOutcome.SUCCEEDED:
            self._refused.pop(target, None)
            return change.outcome
        is_refused_again = self._refused.get(target) == expected
        self._refused[target] = expected
        if change.outcome is SwapOutcome.UNKNOWN or is_refused_again:
            raise RequestFailed(change.problem)
        return change.outcome
