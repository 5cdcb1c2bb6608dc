"""Locks a directory or a namespace, so that only one podwire process changes it.

A process never waits for the lock: the second one fails, and its error names the first. A namespace is locked by the
name of a socket: plugins that the process runs (sbr, vrf) lock the namespace's file, and would wait for this process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cni.errors import CniError, Code
from kernel import locks

_CREDENTIALS = struct.Struct("=3i")  # struct ucred (unix(7)): process, user, group


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


@contextmanager
def exclusive_namespace(place: os.stat_result, busy: str) -> Iterator[None]:
    """Locks a namespace, by its inode, for the block; raises CniError(11), "another podwire `busy`".

    The kernel removes the name of an abstract socket with the process (unix(7)). Raises OSError.
    """
    address = f"\0podwire {place.st_dev}:{place.st_ino}"
    with _stream_socket() as holder:
        try:
            holder.bind(address)
            holder.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                msg = f"another podwire {busy}"
                raise CniError(Code.TRY_AGAIN_LATER, msg, _describe(_get_listener(address))) from error
            raise
        yield


def _hint(descriptor: int) -> str:
    try:
        holders = locks.get_holders(os.fstat(descriptor))
    except OSError:
        holders = []
    return _describe(holders[:1])


def _get_listener(address: str) -> list[int]:
    """Returns the process that listens on a socket, if it is visible."""
    with suppress(OSError), _stream_socket() as client:
        client.setblocking(False)
        client.connect(address)
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid = int(_CREDENTIALS.unpack(credentials)[0])
        return [pid] if pid else []
    return []


def _stream_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def _describe(holders: list[int]) -> str:
    return "; ".join(["wait until it has finished", *(f"process {pid}: {locks.get_command(pid)}" for pid in holders)])
