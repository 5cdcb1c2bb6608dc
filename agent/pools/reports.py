"""What the manager of this node's blocks reports to the main thread, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from agent.pools.supply import Usage


class PoolState(NamedTuple):
    """The last state of the manager: what keeps this node from claiming blocks, and the numbers of its pools."""

    problems: tuple[str, ...] = ("the agent has not reached the store yet",)
    usage: Mapping[str, Usage] = {}

    @property
    def has_blocks(self) -> bool:
        """Whether plugins can allocate addresses on this node."""
        return any(usage.blocks for usage in self.usage.values())


class BlockLost(NamedTuple):
    """A block that another node may use, and the pods that have its addresses."""

    text: str


PoolEvent = PoolState | BlockLost
