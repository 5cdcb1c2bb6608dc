"""Which boot this is: what tells notes of this one from those of an earlier one.

One rule: where it cannot be told there is no name for it, and nothing is taken for left over.
"""

from __future__ import annotations

import os


def boot_id() -> bytes:
    """Returns the kernel's name for the present boot, b"" where there is no /proc."""
    try:
        fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, 64)
    finally:
        os.close(fd)
