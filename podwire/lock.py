"""Locks a directory or a namespace, so that only one podwire process changes it.

A process never waits for the lock: the second one fails, and its error names the first.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cni.errors import CniError, Code
from kernel import locks


@contextmanager
def exclusive_lock(descriptor: int, busy: str) -> Iterator[None]:
    """Locks an open file for the block and then closes it; raises CniError(11), "another podwire `busy`"."""
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CniError(Code.TRY_AGAIN_LATER, f"another podwire {busy}", _hint(descriptor)) from error
        yield
    finally:
        os.close(descriptor)


def _hint(descriptor: int) -> str:
    try:
        holders = locks.get_holders(os.fstat(descriptor))
    except OSError:
        holders = []
    return "; ".join(
        ["wait until it has finished", *(f"process {pid}: {locks.get_command(pid)}" for pid in holders[:1])]
    )
