"""Computes the groups of the image's blocks from the uses that an image builder recorded while it ran the verbs.

One rule: blocks that the same verbs use are one group, and groups that more verbs use come first.

layout.c writes the input: for each class the number of its blocks and their size, then the steps that write to each
block, and those that read it (one bit for each step of boot.run_scenarios). The output is the number of groups, the
size of each, then for each class the number of its blocks and the group of each. No step uses group 0; every start
writes to group 1, and most verbs to group 2.
"""

from __future__ import annotations

import struct
from array import array

# The steps of boot.run_scenarios: VERSION; ADD, CHECK, DEL of loopback, then of bridge; then the chained plugins.
_VERSION = 0b0000_0001
_BRIDGE = 0b0111_0000
_HEADER = struct.Struct("=II")
_COUNT = struct.Struct("=I")

Group = tuple[bool, int, int]
_UNUSED: Group = False, 0, 0
_HOT: Group = False, 1, 0
_WARM: Group = False, 2, 0


def group_of(written: int, read: int) -> Group:
    """Returns the group of a block: only read or not, its tier (1: every start, 2: most verbs, 3: some), its steps."""
    for tier, enough in ((1, _every_start), (2, _most_verbs)):
        if enough(written | read):
            return not enough(written), tier, 0
    return (not written, 3, written | read) if written | read else _UNUSED


def _every_start(steps: int) -> bool:
    return bool(steps & _VERSION)


def _most_verbs(steps: int) -> bool:
    return (steps & _BRIDGE).bit_count() > 1


def groups(uses: bytes) -> bytes:
    """Returns the file of groups for the file of recorded uses."""
    classes: list[tuple[int, list[Group]]] = []
    sizes: dict[Group, int] = {_UNUSED: 0, _HOT: 0, _WARM: 0}
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
