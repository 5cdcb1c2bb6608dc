"""Which reservations outlived their containers in a reboot, and may be taken back when addresses are needed.

One rule: what was made in the present boot, or might have been, is nobody's to take but DEL's and GC's.

No container survives a reboot, but its reservation does when DEL was not run before it, and nothing tells a file of the
reference's format that it is one of those. What tells is the index (index.py), which lists the reservations with the id
of the boot in which it was written. Of reservations it never knew (the reference's, above all) the clock is asked, and
since clocks are set, the runtime's own books have to agree.
"""

from __future__ import annotations

import os
import time
from enum import IntEnum

from cni.cache import ResultCache
from cni.conf import VALID_NAME, Attachment

_NS = 1_000_000_000


class Origin(IntEnum):
    """When a reservation was made: known to be ours of this boot, known to be of an earlier boot, or not known."""

    UNKNOWN = 0
    THIS_BOOT = 1
    EARLIER_BOOT = 2


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


def is_left_over(path: str, attachment: Attachment, origin: Origin, cache: ResultCache) -> bool:
    """Tells whether the reservation at `path` is of a container that a reboot ended.

    One of unknown origin is when its file is older than the boot and the runtime's cache knows its container as gone.
    """
    if not VALID_NAME.fullmatch(attachment.container_id):
        return False  # a note of the administrator's, who keeps the address to himself
    if origin is Origin.UNKNOWN:
        return _is_older_than_boot(path) and cache.is_gone(attachment)
    return origin is Origin.EARLIER_BOOT


def _is_older_than_boot(path: str) -> bool:
    try:
        changed_ns = os.lstat(path).st_ctime_ns
    except OSError:
        return False
    return changed_ns < time.time_ns() - int(time.clock_gettime(time.CLOCK_BOOTTIME) * _NS)
