"""The ID and the time of the current boot, which distinguish its records from those of an earlier boot.

A value that cannot be read is empty ("", 0), and callers then treat nothing as stale.
"""

from __future__ import annotations

import os
import time

from process import files

_NS = 1_000_000_000
_OFFSETS_BYTES = 4096


def get_boot_id() -> str:
    """Returns the kernel's ID of the current boot, "" when it cannot be read.

    A container may see another ID: systemd-nspawn and LXC mount their own file over the kernel's.
    """
    try:
        fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(fd, 64).decode("ascii", "replace").strip()
    finally:
        os.close(fd)


def get_boot_time_ns() -> int:
    """Returns the time of the machine's boot by its current wall clock, in ns since 1970; 0 when it cannot be read.

    The result is the same in every container, although time namespaces shift CLOCK_BOOTTIME (time_namespaces(7)).
    """
    try:
        shift_ns = _boottime_shift_ns()
    except (OSError, ValueError, IndexError):
        return 0
    return time.time_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - shift_ns)


def _boottime_shift_ns() -> int:
    """Returns the offset of CLOCK_BOOTTIME in this time namespace, 0 before Linux 5.6, which has none."""
    try:
        table = files.read("/proc/self/timens_offsets", _OFFSETS_BYTES).decode()
    except FileNotFoundError:
        os.stat("/proc/self")  # raises without /proc
        return 0
    for clock, seconds, nanoseconds in (line.split() for line in table.splitlines()):
        if clock == "boottime":
            return int(seconds) * _NS + int(nanoseconds)
    return 0
