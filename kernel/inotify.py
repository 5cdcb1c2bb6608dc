"""Follows the entries of a directory with inotify(7), which Python's standard library lacks.

One rule: an event only says that there is something to read again; the kernel drops events when its queue is full, and
then reports OVERFLOW.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import NamedTuple

import _podwire

# linux/inotify.h
DELETED, MOVED_TO, OVERFLOW, IGNORED = 0x200, 0x80, 0x4000, 0x8000
_EVENT = struct.Struct("=iIII")
_READ_BYTES = 64 << 10


class EntryEvent(NamedTuple):
    """A change of an entry: one of the bits above, and the entry's name, "" if the event is about all."""

    mask: int
    name: str


def open_watch(directory: str, mask: int) -> int:
    """Returns a descriptor that becomes readable with the events `mask` in a directory; raises OSError."""
    descriptor: int = _podwire.inotify(directory, mask)
    return descriptor


def read(descriptor: int) -> list[EntryEvent]:
    """Returns the events that have arrived, without waiting for one."""
    try:
        data = os.read(descriptor, _READ_BYTES)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return []
        raise
    events, position = [], 0
    while position < len(data):
        _, mask, _, size = _EVENT.unpack_from(data, position)
        position += _EVENT.size
        events.append(EntryEvent(mask, os.fsdecode(data[position : position + size].rstrip(b"\0"))))
        position += size
    return events
