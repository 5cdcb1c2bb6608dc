"""How many blocks a network needs, which to claim, and which to give back. Pure.

One rule: nothing here is about safety; block_protocol decides which blocks a node may have.

A node claims another block when less than a quarter of a block is free, so that pods rarely wait for a claim, and more
if ADDs had no address. It claims two when its latest claim was less than a minute ago: more pods are coming, and one
change of its entry serves both. It gives one back when two have been unused for ten minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from agent.pools import block_protocol as protocol
from agent.pools.grants_file import BlockState, FileEntry
from agent.pools.space import Pool
from cni.address import Network

MAX_BLOCKS_AT_ONCE = 8
_LOW_SHARE = 4
_SPARE_BLOCKS = 1
UNUSED_S = 600.0
GROWTH_S = 60.0
_GROWTH_BLOCKS = 2
# After so many tries the agent lists the blocks. With 19 of 20 blocks claimed a node tries 20 on average.
MAX_TRIES = 64


class PoolUsage(NamedTuple):
    """The numbers of a pool on this node."""

    blocks: int = 0
    size: int = 0
    used: int = 0

    @property
    def free(self) -> int:
        """The number of free addresses."""
        return max(0, self.size - self.used)


def usage_of(entries: Collection[FileEntry], used: Mapping[Network, int]) -> PoolUsage:
    """Returns the numbers of the granted blocks."""
    granted = [entry for entry in entries if entry.state is BlockState.GRANTED]
    sizes = sum(entry.size for entry in granted)
    return PoolUsage(len(granted), sizes, sum(min(used[entry.block], entry.size) for entry in granted))


def count_to_claim(
    entries: Collection[FileEntry], used: Mapping[Network, int], size: int, demand: int, *, is_growing: bool = False
) -> int:
    """Returns how many more blocks a network needs of one pool and IP version, up to MAX_BLOCKS_AT_ONCE.

    Blocks that are being claimed count as free ones. `size` is that of a block, `demand` the number of ADDs that had
    no address. A network `is_growing` if it has claimed a block less than GROWTH_S ago.
    """
    coming = [entry for entry in entries if entry.state in (BlockState.GRANTED, BlockState.CLAIMING)]
    free = sum(max(0, entry.size - used[entry.block]) for entry in coming)
    needed = max(demand, size // _LOW_SHARE, 1)
    usable = max(1, size - 2)  # of a routed block without exclusions
    missing = -(-(needed - free) // usable)
    if missing > 0 and is_growing and any(entry.state is BlockState.GRANTED for entry in entries):
        missing = max(missing, _GROWTH_BLOCKS)
    return min(max(0, missing), MAX_BLOCKS_AT_ONCE)


class UnusedBlocks:
    """The time since which each granted block has been unused, by this node's monotonic clock."""

    def __init__(self) -> None:
        self._since: dict[Network, float] = {}

    def observe(self, entries: Collection[FileEntry], used: Mapping[Network, int], now_s: float) -> None:
        """Notes which granted blocks are unused now."""
        unused = [entry.block for entry in entries if entry.state is BlockState.GRANTED and not used[entry.block]]
        self._since = {block: self._since.get(block, now_s) for block in unused}

    def surplus(self, entries: Collection[FileEntry], now_s: float, *, is_on_demand: bool) -> FileEntry | None:
        """Returns a block to give back, None without one. Of a pool on demand no unused block is kept as a spare.

        The block with the gateway stays until the next boot, because the bridge keeps that address.
        """
        unused = [entry for entry in entries if now_s - self._since.get(entry.block, now_s) >= UNUSED_S]
        removable = [entry for entry in unused if entry.gateway not in entry.block]
        spare = 0 if is_on_demand else _SPARE_BLOCKS
        return removable[-1] if removable and len(unused) > spare else None


class Candidates:
    """The blocks of a pool and IP version that this node tries to claim, in its own order."""

    def __init__(self, node: str, pool: Pool, version: int) -> None:
        self._pool, self._version = pool, version
        self._count = pool.count_blocks(version)
        self._numbers = protocol.candidates(node, self._count)
        self._tries = 0
        self._free: Iterator[Network] | None = None
        self.is_exhausted = False

    @property
    def needs_list(self) -> bool:
        """Whether so many candidates had owners that a list of all blocks is cheaper."""
        return self._free is None and not self.is_exhausted and self._tries >= min(MAX_TRIES, self._count)

    def use_list(self, claimed: Collection[Network]) -> None:
        """Continues with the blocks that are not claimed, from a number that depends on the node."""
        begin = next(self._numbers, 0)
        numbers = (number % self._count for number in range(begin, begin + self._count))
        blocks = (self._pool.block(self._version, number) for number in numbers)
        self._free = (block for block in blocks if block not in claimed)

    def next(self, known: Collection[Network]) -> Network | None:
        """Returns the next candidate that overlaps no known block; None if there is none, or `needs_list`."""
        while not self.needs_list:
            block = self._next()
            if block is None:
                return None
            if not any(block.overlaps(other) for other in known) and self._pool.size_of(block):
                return block
        return None

    def _next(self) -> Network | None:
        if self._free is None:
            self._tries += 1
            number = next(self._numbers, None)
            block = None if number is None else self._pool.block(self._version, number)
        else:
            block = next(self._free, None)
        self.is_exhausted = block is None
        return block
