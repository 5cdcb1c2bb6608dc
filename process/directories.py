"""Directories for the files that plugins keep on the node's disk.

A directory is created when its first file is written; checking that it can be created leaves no trace.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from process import record

_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR)  # NFS and old overlayfs, old kernels


def create(directory: str, mode: int = 0o755) -> None:
    """Creates a directory and its missing parents, which get mode 0755; raises OSError.

    os.makedirs would give the parents mode 0777 less the umask.
    """
    if record.is_dry_run():
        if not os.path.isdir(directory):
            record.note_change(_description(directory))
        return
    try:
        os.mkdir(directory, mode)
        record.note_change(_description(directory))
    except FileExistsError:
        pass
    except FileNotFoundError:
        above = os.path.dirname(directory)
        if above in ("", directory):
            raise
        create(above)
        with suppress(FileExistsError):  # another process was quicker
            os.mkdir(directory, mode)
            record.note_change(_description(directory))


def check_writable(directory: str) -> None:
    """Raises the OSError that creating a file in `directory` would raise; leaves no trace.

    Checks the nearest existing parent if `directory` does not exist; for a relative path that may be the current one.
    """
    while not os.path.lexists(directory) and directory not in (".", "/"):  # the current directory may have been deleted
        directory = os.path.dirname(directory) or "."
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory) from error
        return
    try:
        write(fd, b"x")
    finally:
        os.close(fd)


def _description(directory: str) -> str:
    return f"make the directory {directory}"


def write(fd: int, content: bytes) -> None:
    """Writes all of `content`; raises OSError when there is no room for all of it."""
    if os.write(fd, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
