"""The search for the block of a key, without an index: each key has an order of candidates, the same on all nodes.

One rule: the search ends at the block that has the key; a block that never had one is taken only after all candidates
before it have been read. So a key finds its block again, as long as objects of blocks are not deleted.

Each CIDR has an order of its own, so that one that is added at the end of a pool's list changes nothing for present
keys. After some candidates of the first CIDR the blocks are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import BlockRecord
from agent.pools.space import Pool
from agent.pools.store import Stored
from cni.address import Network

# With 9 of 10 addresses taken every fifth new key lists the blocks, and a present one reads 10 of them at most times.
MAX_TRIES = 16


class KeySearch:
    """The search for a key in a pool: read the block that `next` returns and pass it to `use_block`, until `result`."""

    def __init__(self, key: str, pool: Pool, version: int) -> None:
        self._key, self._pool, self._version = key, pool, version
        self._counts = pool.block_counts(version)
        self._candidates = islice(self._order(0), MAX_TRIES) if self._counts else iter(())
        self._current: Network | None = None
        self.result: tuple[Network, Stored[BlockRecord]] | None = None
        self.is_exhausted = False

    def next(self) -> Network | None:
        """Returns the block to read now; None if the blocks have to be listed, or `is_exhausted`.

        It is the same one until it is offered: its request may fail.
        """
        if self._current is None:
            self._current = next((block for block in self._candidates if self._pool.size_of(block)), None)
        return self._current

    def use_block(self, block: Network, stored: Stored[BlockRecord]) -> None:
        """Sets `result` if the block that was read is that of the key, or has none."""
        self._current = None
        if self._is_mine(stored) or self._is_unused(stored):
            self.result = block, stored

    def use_list(self, blocks: Mapping[Network, Stored[BlockRecord]]) -> None:
        """Takes note of all blocks; `result` is then one without a key at most: `next` returns it, to be read."""
        mine = [block for block, stored in blocks.items() if self._is_mine(stored) and self._is_usable(block)]
        every = (block for number in range(len(self._counts)) for block in self._order(number))
        free = (block for block in every if block not in blocks or self._is_unused(blocks[block]))
        chosen = mine or list(islice((block for block in free if self._pool.size_of(block)), 1))
        self._candidates = iter(chosen)
        self.is_exhausted = not chosen

    def _is_mine(self, stored: Stored[BlockRecord]) -> bool:
        return not stored.problem and stored.note.key == self._key

    def _is_unused(self, stored: Stored[BlockRecord]) -> bool:
        return not (stored.problem or stored.note.key or stored.value.owner)

    def _is_usable(self, block: Network) -> bool:
        is_in_pool = block.version == self._version and self._pool.cidr_of(block) is not None
        return is_in_pool and not self._pool.is_draining(block) and self._pool.size_of(block) > 0

    def _order(self, number: int) -> Iterator[Network]:
        """Yields the blocks of a CIDR (by its number) in the key's order: hashed ones, then all from the first."""
        count, before = self._counts[number], sum(self._counts[:number])
        hashed = list(islice(protocol.candidates(self._key, count), MAX_TRIES))
        for at in hashed:
            yield self._pool.block(self._version, before + at)
        for step in range(count):
            yield self._pool.block(self._version, before + (hashed[0] + step) % count)
