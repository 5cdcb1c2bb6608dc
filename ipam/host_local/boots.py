"""Which reservations outlived their containers in a reboot, and may be taken back when addresses are needed.

One rule: what was made in the present boot, or might have been, is nobody's to take but DEL's and GC's.

No container survives a reboot, but its reservation does when DEL was not run before it, and nothing tells a file of the
reference's format that it is one of those. What tells is the index (index.py), which lists the reservations with the id
of the boot in which it was written. Of reservations it never knew (the reference's, above all) the clock is asked, and
since clocks are set, the runtime's own books have to agree. Where several machines may share the store, against all
advice, one's present boot is not the other's, and nothing is taken back.
"""

from __future__ import annotations

import os
import time
from enum import IntEnum
from functools import cache as remembered

from cni import files
from cni.cache import ResultCache
from cni.conf import VALID_NAME, Attachment

_NS = 1_000_000_000
_MOUNTS_BYTES = 4 << 20
# File systems of one machine; one that is not known may be shared. hostfs is user-mode Linux's.
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hostfs", "jfs", "nilfs2", "overlay", "ramfs", "tmpfs"}
_LOCAL |= {"reiserfs", "ubifs", "xfs", "zfs"}


class Origin(IntEnum):
    """When a reservation was made: known to be ours of this boot, known to be of an earlier boot, or not known."""

    UNKNOWN = 0
    THIS_BOOT = 1
    EARLIER_BOOT = 2


def is_left_over(path: str, attachment: Attachment, origin: Origin, cache: ResultCache) -> bool:
    """Tells whether the reservation at `path` is of a container that a reboot ended.

    One of unknown origin is when its file is older than the boot and the runtime's cache knows its container as gone.
    """
    if not VALID_NAME.fullmatch(attachment.container_id):
        return False  # a note of the administrator's, who keeps the address to himself
    if origin is Origin.UNKNOWN:
        found = _is_older_than_boot(path) and cache.is_gone(attachment)
    else:
        found = origin is Origin.EARLIER_BOOT
    return found and _is_local(os.path.dirname(path))


def file_system(directory: str) -> str:
    """Returns the kind of file system that a directory is on, "" when that is not to be found out.

    By its mount, as the device numbers that stat(2) tells of btrfs are nobody else's.
    """
    try:
        fd = os.open(directory, os.O_PATH)
        try:
            about = files.read(f"/proc/self/fdinfo/{fd}", _MOUNTS_BYTES).split()
        finally:
            os.close(fd)
        mount = about[about.index(b"mnt_id:") + 1]
        for line in files.read("/proc/self/mountinfo", _MOUNTS_BYTES).splitlines():
            if line.split(b" ", 1)[0] == mount:
                return line.partition(b" - ")[2].split()[0].decode()
    except (OSError, ValueError, IndexError):
        pass
    return ""


@remembered
def _is_local(directory: str) -> bool:
    return file_system(directory) in _LOCAL


def _is_older_than_boot(path: str) -> bool:
    try:
        changed_ns = os.lstat(path).st_ctime_ns
    except OSError:
        return False
    return changed_ns < time.time_ns() - int(time.clock_gettime(time.CLOCK_BOOTTIME) * _NS)
