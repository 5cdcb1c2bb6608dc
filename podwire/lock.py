"""One podwire at a time: a lock on what is changed, a directory or a namespace.

One rule: it does not wait; the second podwire fails and names the process of the first.
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
    """Locks an open file for the block, and closes it after that; raises CniError(11), "another podwire `busy`"."""
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
    return "; ".join(["wait for its end", *(f"process {pid}: {locks.get_command(pid)}" for pid in holders[:1])])
