"""Decides which blocks of the image lie together, from what a seed learned while it played the verbs.

One rule: the fewer verbs use a block, the farther it lies from those that all use.

The file is layout.c's: for each size class the number of its blocks, then a byte for each block, which says in which
steps it was written to (bit by bit, in the order of boot.practice) and becomes its group.
"""

from __future__ import annotations

import struct

# The steps of boot.practice: VERSION; ADD, CHECK, DEL of loopback, then of bridge; what needs netfilter, portmap too.
_VERSION = 0b0000_0001
_BRIDGE = 0b0111_0000
_COUNT = struct.Struct("=I")


def group_of(steps: int) -> int:
    """Returns the group of a block: 1 what every start uses, 2 most verbs, 3 some verb, 0 none."""
    if steps & _VERSION:
        return 1
    if (steps & _BRIDGE).bit_count() > 1:
        return 2
    return 3 if steps else 0


_GROUPS = bytes(map(group_of, range(256)))


def groups(learned: bytes) -> bytes:
    """Returns the file of groups for the file of steps."""
    parts = []
    position = 0
    while position < len(learned):
        blocks = position + _COUNT.size
        (count,) = _COUNT.unpack_from(learned, position)
        position = blocks + count
        parts += [learned[blocks - _COUNT.size : blocks], learned[blocks:position].translate(_GROUPS)]
    return b"".join(parts)
