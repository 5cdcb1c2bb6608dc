"""One podwire at a time: a lock on what is changed, a directory or a namespace.

One rule: nobody waits for it; who comes second is told.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cni.errors import CniError, Code


@contextmanager
def exclusive(descriptor: int, busy: str) -> Iterator[None]:
    """Locks an open file for the block, and closes it after that; raises CniError(11), "another podwire `busy`"."""
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CniError(Code.TRY_AGAIN_LATER, f"another podwire {busy}", "wait for its end") from error
        yield
    finally:
        os.close(descriptor)
