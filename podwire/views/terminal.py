"""A full-screen view on a terminal without a library: single keys, the alternate screen, and all restored at the end.

The executable has no module termios, so the terminal is set by the system calls behind it.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from process.signals import unblocked

_TCGETS, _TCSETS = 0x5401, 0x5402  # asm-generic/ioctls.h
_TERMIOS = struct.Struct("=4I20s")  # struct termios of the kernel: four flags, c_line and c_cc
_ICANON, _ECHO = 0x2, 0x8  # of c_lflag
_ENTER, _LEAVE = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"  # alternate screen, cursor
_HOME, _CLEAR_LINE, _CLEAR_REST = "\033[H", "\033[K", "\033[J"
_KEYS = 16


@contextmanager
def full_screen(keyboard: int, stream: TextIO) -> Iterator[None]:
    """Shows the alternate screen and reads single keys without echo inside the block; raises OSError."""
    before = fcntl.ioctl(keyboard, _TCGETS, bytes(_TERMIOS.size))
    *flags, local, control = _TERMIOS.unpack(before)
    fcntl.ioctl(keyboard, _TCSETS, _TERMIOS.pack(*flags, local & ~(_ICANON | _ECHO), control))
    try:
        stream.write(_ENTER)
        yield
    finally:
        stream.write(_LEAVE)
        stream.flush()
        fcntl.ioctl(keyboard, _TCSETS, before)


def draw(lines: list[str], stream: TextIO) -> None:
    """Replaces the screen by lines, which must fit."""
    stream.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines[:-1]) + "".join(lines[-1:]) + _CLEAR_LINE)
    stream.write(_CLEAR_REST)
    stream.flush()


def wait_for_keys(keyboard: int, timeout_s: float) -> str:
    """Returns the keys that were pressed, "" after `timeout_s`; a closed keyboard counts as "q"."""
    poll = select.poll()
    poll.register(keyboard, select.POLLIN)
    with unblocked():
        ready = poll.poll(max(timeout_s, 0) * 1000)
    if not ready:
        return ""
    return os.read(keyboard, _KEYS).decode("ascii", "replace") or "q"
