"""The events that the manager of this node's blocks sends to the main thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from agent.pools.supply import PoolUsage


class PoolState(NamedTuple):
    """The problems that keep this node from claiming blocks, and the numbers of its pools."""

    problems: tuple[str, ...] = ("the agent has not reached the store yet",)
    usage: Mapping[str, PoolUsage] = {}

    @property
    def has_blocks(self) -> bool:
        """Whether plugins can allocate addresses on this node."""
        return any(usage.blocks for usage in self.usage.values())


class BlockLost(NamedTuple):
    """A message about a block that another node may use, with the pods that have its addresses."""

    text: str


class PoolsDecided(NamedTuple):
    """The decision of this agent about the pools of an IPSpace object: they are in effect, or refused."""

    name: str
    uid: str
    text: str
    is_refused: bool


PoolEvent = PoolState | BlockLost | PoolsDecided
