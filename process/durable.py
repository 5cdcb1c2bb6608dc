"""Replaces files so that after a crash, also of the machine, a file has its old content or its new one.

One rule: a function returns when its change is on the disk.
"""

from __future__ import annotations

import os
from contextlib import suppress

from process import directories


def write(path: str, content: bytes, mode: int = 0o644, *, draft: str) -> None:
    """Creates or replaces a file, with the permissions `mode` less the umask; raises OSError.

    `draft` is a path in the same directory, to which the content is written first. A killed process leaves it, and the
    next call replaces it. The caller ensures, by a lock, that no other process uses the same draft at the same time.
    """
    with suppress(FileNotFoundError):
        os.unlink(draft)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            directories.write(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    synchronize(os.path.dirname(path) or ".")


def synchronize(directory: str) -> None:
    """Writes the entries of a directory, thus created, renamed and deleted files, to the disk; raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
