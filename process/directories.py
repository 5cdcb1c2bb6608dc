"""Directories in which plugins keep what they must remember.

One rule: a directory is made when something is put into it, and whether that can be done is found out without a trace.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from process import record

_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR)  # NFS and old overlayfs, old kernels


def create(directory: str, mode: int = 0o755) -> None:
    """Makes a directory and those above it, the latter in mode 0755; raises OSError.

    os.makedirs would give `mode` to the last one only, and to those above what the umask leaves of 0777.
    """
    if record.is_dry_run():
        if not os.path.isdir(directory):
            record.change(_making(directory))
        return
    try:
        os.mkdir(directory, mode)
        record.change(_making(directory))
    except FileExistsError:
        pass
    except FileNotFoundError:
        above = os.path.dirname(directory)
        if above in ("", directory):
            raise
        create(above)
        with suppress(FileExistsError):  # another first pod was quicker
            os.mkdir(directory, mode)
            record.change(_making(directory))


def check_writable(directory: str) -> None:
    """Raises the OSError that making a file in `directory` would meet; makes none, and leaves no trace.

    Where it is not there yet, the nearest one above is tried; of a relative path that is where we are.
    """
    while not os.path.lexists(directory) and directory not in (".", "/"):  # where we are may have been deleted
        directory = os.path.dirname(directory) or "."
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory) from error
        return
    try:
        write(fd, b"x")
    finally:
        os.close(fd)


def _making(directory: str) -> str:
    return f"make the directory {directory}"


def write(fd: int, content: bytes) -> None:
    """Writes all of `content`; raises OSError when there is no room for all of it."""
    if os.write(fd, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
