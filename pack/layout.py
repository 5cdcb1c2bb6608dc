"""Decides which blocks of the image lie together, from what a seed learned while it played the verbs.

One rule: the fewer verbs use a block, the farther it lies from those that all use.

The file is layout.c's: for each class the number of its blocks and their size (0: pages), then for each block how many
pages it has (a slot: 1), then the steps that write to each, then those that read it (bit by bit, in the order of
boot.practice). What it becomes: the pages each group needs, then for each class the number of its blocks and the group
of each.
"""

from __future__ import annotations

import struct
from functools import cache

# The steps of boot.practice: VERSION; ADD, CHECK, DEL of loopback, then of bridge; what needs netfilter, portmap too.
_VERSION = 0b0000_0001
_BRIDGE = 0b0111_0000
_HEADER = struct.Struct("=II")
_COUNT = struct.Struct("=I")
_GROUPS = 7
_PAGE = 4096
_LARGE = 16  # pages: only a part of a larger block is used


@cache
def group_of(pages: int, written: int, read: int) -> int:
    """Returns the group of a block: what 1 every start writes to, 2 reads; 3 and 4 most verbs, 5 and 6 some; 0 none."""
    if pages > _LARGE:
        return 0
    for group, enough in ((1, _every_start), (3, _most_verbs), (5, bool)):
        if enough(written):
            return group
        if enough(read):
            return group + 1
    return 0


def _every_start(steps: int) -> bool:
    return bool(steps & _VERSION)


def _most_verbs(steps: int) -> bool:
    return (steps & _BRIDGE).bit_count() > 1


def groups(learned: bytes) -> bytes:
    """Returns the file of groups for the file of what was learned."""
    parts = []
    needed = [0] * _GROUPS
    position = 0
    while position < len(learned):
        count, size = _HEADER.unpack_from(learned, position)
        position += _HEADER.size
        pages, written, read = (learned[position + i * count : position + (i + 1) * count] for i in range(3))
        position += 3 * count
        own = bytes(map(group_of, pages, written, read))
        parts += [_COUNT.pack(count), own]
        for group in range(_GROUPS):
            if size:
                needed[group] += -(-own.count(group) // (_PAGE // size))
            else:
                needed[group] += sum(length for length, other in zip(pages, own, strict=True) if other == group)
    return struct.pack(f"={_GROUPS}I", *needed) + b"".join(parts) if parts else b""
