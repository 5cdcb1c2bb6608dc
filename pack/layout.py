"""Decides which blocks of the image lie together, from what an image builder learned while it played the verbs.

One rule: the fewer verbs use a block, the farther it lies from those that all use, beside what the same ones use.

The file is layout.c's: for each class the number of its blocks and their size, then the steps that write to each block,
and those that read it (bit by bit, in the order of boot.practice). What it becomes: the number of groups, how much the
blocks of each take, then for each class the number of its blocks and the group of each; group 0 is what no
step uses, 1 what every start writes to, 2 what most verbs do.
"""

from __future__ import annotations

import struct
from array import array

# The steps of boot.practice: VERSION; ADD, CHECK, DEL of loopback, then of bridge; then the plugins that are chained.
_VERSION = 0b0000_0001
_BRIDGE = 0b0111_0000
_HEADER = struct.Struct("=II")
_COUNT = struct.Struct("=I")

Group = tuple[bool, int, int]
_UNUSED: Group = False, 0, 0
_HOT: Group = False, 1, 0
_WARM: Group = False, 2, 0


def group_of(written: int, read: int) -> Group:
    """Returns the group of a block: whether it is only read, tier (1 every start, 2 most verbs, 3 some), the steps."""
    for tier, enough in ((1, _every_start), (2, _most_verbs)):
        if enough(written | read):
            return not enough(written), tier, 0
    return (not written, 3, written | read) if written | read else _UNUSED


def _every_start(steps: int) -> bool:
    return bool(steps & _VERSION)


def _most_verbs(steps: int) -> bool:
    return (steps & _BRIDGE).bit_count() > 1


def groups(learned: bytes) -> bytes:
    """Returns the file of groups for the file of what was learned."""
    classes: list[tuple[int, list[Group]]] = []
    sizes: dict[Group, int] = {_UNUSED: 0, _HOT: 0, _WARM: 0}
    position = 0
    while position < len(learned):
        count, size = _HEADER.unpack_from(learned, position)
        start, middle = position + _HEADER.size, position + _HEADER.size + 4 * count
        position = middle + 4 * count
        steps = (array("I", learned[first : first + 4 * count]) for first in (start, middle))
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
