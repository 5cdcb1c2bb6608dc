"""Log destinations: writes one line to a file, to stderr or to journald, and cuts text to the size of a line.

A line is written whole or not at all, and writing never waits for a reader.

- A file is opened for each line and appended to by one write, so lines of several processes do not mix, and a file that
  logrotate has renamed is created again, in mode 0600. Its directory is not created. Symbolic links are not followed,
  and only regular files are written to: a FIFO without a reader would block.
- journald gets its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).
"""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Mapping

from process.stderr import one_line

LEVELS = ("error", "info", "debug")
STDERR, JOURNALD = "stderr", "journald"
JOURNAL_SOCKET = "/run/systemd/journal/socket"
LINE_BYTES = 64 << 10

_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_IN_MEMORY = ("overlay", "ramfs", "rootfs", "tmpfs")
_COUNT_BYTES = 512  # kept free at the end of a list, for "and 9999 more"

Size = Callable[[object], int]  # the bytes that a value takes in a line


def write_line(target: str, text: str) -> None:
    """Writes a line to a file or to stderr; raises OSError, ValueError when it cannot be written."""
    if target != STDERR:
        _append(target, f"{text}\n".encode("utf-8", "replace"))
    elif sys.stderr is not None:
        print(text, file=sys.stderr)


def send_to_journald(fields: Mapping[str, str]) -> None:
    """Sends an entry to journald, without its empty fields; raises OSError when journald cannot take it at once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as journal:
        journal.sendto(datagram(fields), socket.MSG_DONTWAIT, JOURNAL_SOCKET)


def datagram(fields: Mapping[str, str]) -> bytes:
    """Returns an entry in journald's native protocol, without its empty fields."""
    data = bytearray()
    for name, value in fields.items():
        content = value.encode("utf-8", "replace")
        if content:
            data += name.encode() + b"\n" + len(content).to_bytes(8, "little") + content + b"\n"
    return bytes(data)


def warn(text: str) -> None:
    """Prints on stderr why something is missing in the log."""
    if sys.stderr is not None:
        print(one_line(f"podwire: log: {text}"), file=sys.stderr)


def cut(text: str, max_bytes: int, size: Size) -> str:
    """Returns as much of a text as fits into `max_bytes` of a line; encodes at most that many characters."""
    if len(text) * 6 + 2 <= max_bytes:  # no character takes more than six
        return text
    if len(text) <= max_bytes and size(text) <= max_bytes:
        return text
    text = text[:max_bytes]
    while size(text) > max_bytes - len("..."):
        text = text[: len(text) * 7 // 8]
    return text + "..."


def cut_list(items: Iterable[object], count: int, max_bytes: int, size: Size) -> list[object]:
    """Returns as many of `count` items as fit into `max_bytes` of a line, then how many more there are.

    Iterates no further than it needs, so a generator builds no more items.
    """
    shown: list[object] = []
    left_bytes = max_bytes - _COUNT_BYTES
    for item in items:
        short = cut(item, max_bytes // 4, size) if isinstance(item, str) else item
        left_bytes -= size(short) + 1
        if left_bytes < 0:
            return [*shown, f"and {count - len(shown)} more"]
        shown.append(short)
    return shown


def _append(path: str, data: bytes) -> None:
    """Appends a line to a file by one write; raises OSError, ValueError."""
    if not path.startswith("/"):
        raise ValueError("it must be an absolute path, stderr or journald")
    fd = os.open(path, _OPEN, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or not _stores(fd):
            raise ValueError("it is not a regular file")
        written = os.write(fd, data)
        if written < len(data):
            end = os.lseek(fd, 0, os.SEEK_CUR)
            if os.fstat(fd).st_size == end:  # half a line would corrupt the next one
                os.ftruncate(fd, end - written)
            raise ValueError("there is no room for the line")
    finally:
        os.close(fd)


def _stores(fd: int) -> bool:
    """Returns whether a file's file system stores data; in proc and sysfs a line is a command to the kernel.

    These have no blocks, wherever they are mounted. Some file systems in memory have none either, but a known type.
    """
    if os.fstatvfs(fd).f_blocks:
        return True
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
        mount = next((line.split()[1] for line in info if line.startswith("mnt_id:")), "")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        types = (line.partition(" - ")[2].split(" ")[0] for line in mounts if line.split(" ")[0] == mount)
        return next(types, "") in _IN_MEMORY
