"""Requests of this node about blocks: each change expects the value that was read last.

One rule: after every answer the object is read again before the next request about it, unless the answer had its value.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import Block, Outcome
from agent.pools.space import Space
from agent.pools.store import BlockNote, Change, Store, Stored
from cni.address import Network


class RequestFailed(Exception):  # noqa: N818 - as in agent.api_errors
    """A change had no certain answer, or was refused twice for the same value: wait, read and try again."""


class BlockRequests:
    """The requests of one manager. `note` returns the remarks of a change, from the pool and the key.

    `space` is the space in the answer to the latest change of a block, None if it had none.
    """

    def __init__(self, store: Store, note: Callable[[str, str], BlockNote]) -> None:
        self._store, self._note = store, note
        self.space: Space | None = None
        self._values: dict[Network, Stored[Block]] = {}  # blocks as read last; a request uses a value up
        self._refused: dict[object, bytes] = {}

    def take_value(self, block: Network) -> Stored[Block] | None:
        """Returns the known value of a block and forgets it; without one reads it and returns None: call again."""
        value = self._values.pop(block, None)
        if value is None:
            self._values[block] = self._store.read_block(block)
        return value

    def expect(self, block: Network, value: Stored[Block]) -> None:
        """Stores the value of a block, so that its next change needs no read."""
        self._values[block] = value

    def forget(self, *blocks: Network) -> None:
        """Forgets the values of blocks."""
        for block in blocks:
            self._values.pop(block, None)

    def forget_all(self) -> None:
        """Forgets the values of all blocks."""
        self._values.clear()

    def swap(self, block: Network, expected: Stored[Block], new: Block, pool: str, key: str = "") -> Outcome:
        """Requests a change of a block; raises RequestFailed unless it succeeds or meets another value.

        Without `key` the block keeps the one that it has.
        """
        note = self._note(pool, key or expected.note.key)
        change = self._store.swap_block(block, expected, new, note)
        self.space = change.space
        if protocol.succeeded(change.outcome) and change.raw:
            self._values[block] = Stored(new, change.raw, note=note)
        return self.outcome(block, expected.raw, change)

    def outcome(self, key: object, expected: bytes, change: Change) -> Outcome:
        """Returns the outcome; raises RequestFailed for UNKNOWN, and for a second refusal of one expected value."""
        if change.outcome is Outcome.SUCCEEDED:
            self._refused.pop(key, None)
            return change.outcome
        is_refused_again = self._refused.get(key) == expected
        self._refused[key] = expected
        if change.outcome is Outcome.UNKNOWN or is_refused_again:
            raise RequestFailed(change.problem)
        return change.outcome
