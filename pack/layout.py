"""Computes the groups of the image's blocks from the uses that an image builder recorded while it ran the verbs.

One rule: blocks that the same verbs use are one group, and groups that more verbs use come first.

The input begins with the names of the steps of boot.run_scenarios(), a line for each, and an empty line. Then layout.c
writes for each class the number of its blocks and their size, the steps that write to each block, and those that read
it, one bit for each step. The output is the number of groups, the size of each, then for each class the number of its
blocks and the group of each. No step uses group 0; every start writes to group 1, most verbs to group 2, and both only
read groups 3 and 4.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

# The steps that decide the tiers, by the names that boot.run_scenarios() yields.
_VERSION = "VERSION"
_BRIDGE = ("bridge ADD", "bridge CHECK", "bridge DEL")
_MAX_STEPS = 32  # bits of a block
_HEADER = struct.Struct("=II")
_COUNT = struct.Struct("=I")

Group = tuple[bool, bool, int, int]  # used by some verbs only, only read, tier, steps
_UNUSED: Group = False, False, 0, 0
_COMMON: tuple[Group, ...] = tuple((False, only_read, tier, 0) for only_read in (False, True) for tier in (1, 2))


class Tiers(NamedTuple):
    """The bits of the steps that decide the tier of a block."""

    version: int
    bridge: int

    def group_of(self, written: int, read: int) -> Group:
        """Returns a block's group; its tier is 1 if every start uses the block, 2 for most verbs, 3 for some."""
        for steps, only_read in ((written, False), (written | read, True)):
            for tier, enough in ((1, self._every_start), (2, self._most_verbs)):
                if enough(steps):
                    return False, only_read, tier, 0
        return (True, not written, 3, written | read) if written | read else _UNUSED

    def _every_start(self, steps: int) -> bool:
        return bool(steps & self.version)

    def _most_verbs(self, steps: int) -> bool:
        return (steps & self.bridge).bit_count() > 1


def tiers(names: Sequence[str]) -> Tiers:
    """Returns the tiers for steps with these names; raises ValueError if a needed one is missing, or for too many."""
    if len(names) > _MAX_STEPS:
        raise ValueError(f"{len(names)} steps, but a block has one bit for each of {_MAX_STEPS}")
    for name in (_VERSION, *_BRIDGE):
        if names.count(name) != 1:
            raise ValueError(f"{names.count(name)} steps are named {name!r}, which must be one: {', '.join(names)}")
    return Tiers(1 << names.index(_VERSION), sum(1 << names.index(name) for name in _BRIDGE))


def groups(uses: bytes) -> bytes:
    """Returns the file of groups for the file of recorded uses; raises ValueError as tiers() does."""
    names, end, uses = uses.partition(b"\n\n")
    if not end:
        raise ValueError("the file of recorded uses does not begin with the names of the steps")
    group_of = tiers(names.decode().split("\n")).group_of
    classes: list[tuple[int, list[Group]]] = []
    sizes: dict[Group, int] = dict.fromkeys((_UNUSED, *_COMMON), 0)
    position = 0
    while position < len(uses):
        count, size = _HEADER.unpack_from(uses, position)
        start, middle = position + _HEADER.size, position + _HEADER.size + 4 * count
        position = middle + 4 * count
        steps = (array("I", uses[first : first + 4 * count]) for first in (start, middle))
        classes.append((size, [group_of(written, read) for written, read in zip(*steps, strict=True)]))
    for size, groups_of_class in classes:
        for group in groups_of_class:
            sizes[group] = sizes.get(group, 0) + size
    sizes[_UNUSED] = 0
    order = sorted(sizes)
    number = {group: index for index, group in enumerate(order)}
    parts = [_COUNT.pack(len(order)), *(_COUNT.pack(sizes[group]) for group in order)]
    for _, groups_of_class in classes:
        parts += [_COUNT.pack(len(groups_of_class)), array("H", map(number.__getitem__, groups_of_class)).tobytes()]
    return b"".join(parts) if classes else b""
