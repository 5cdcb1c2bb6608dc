"""Which reservations outlived their containers in a reboot, and may be reclaimed when addresses are needed.

One rule: only DEL and GC release what was made in the current boot, or may have been.

No container survives a reboot, but its reservation does when DEL was not run before it, and nothing in a file of the
reference's format shows that. Three sources are compared, because each may be wrong:

- The index (index.py) lists reservations with the ID of the boot in which it was written. A container on the same
  store may see another ID (systemd-nspawn and LXC mount one over the kernel's), so that all others look stale to it.
- The file's change time is older than the boot. All containers have the machine's clock, but it may be set: on a
  machine without a hardware clock it is behind after the boot, and files of earlier boots are from the future.
- The runtime's cache says that the container is gone. It is wrong where namespaces are out of sight.

The first two together suffice, unless the cache names a namespace that exists; so do the last two for a reservation
that no index lists (the reference's). For a file from the future, the first and the last have to agree. A reservation
that is neither older than the boot nor from the future stays until the clock is right. On a file system that several
machines may share, against all advice, nothing is reclaimed: one's current boot is not the other's.
"""

from __future__ import annotations

import os
import time
from enum import IntEnum
from functools import cache as remembered

from attachment.cache import ResultCache
from cni.conf import VALID_NAME, Attachment
from process import files

_MOUNTS_BYTES = 4 << 20
# File systems of one machine; one that is not known may be shared. hostfs is user-mode Linux's.
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hostfs", "jfs", "nilfs2", "overlay", "ramfs", "tmpfs"}
_LOCAL |= {"reiserfs", "ubifs", "xfs", "zfs"}


class Origin(IntEnum):
    """When a reservation was made: known to be ours of this boot, known to be of an earlier boot, or not known."""

    UNKNOWN = 0
    THIS_BOOT = 1
    EARLIER_BOOT = 2


def is_left_over(
    path: str, attachment: Attachment, origin: Origin, cache: ResultCache, began_ns: int, *, returns: bool = False
) -> bool:
    """Tells whether a reboot ended the container of the reservation at `path`; the boot `began_ns` (boot.py).

    `returns`: ADD runs for this very attachment, so its namespace is a new one, whatever its path.
    """
    if origin is Origin.THIS_BOOT or not VALID_NAME.fullmatch(attachment.container_id):
        return False  # invalid: a note of the administrator's, who reserves the address
    gone = cache.is_gone(attachment)
    if origin is Origin.UNKNOWN and not gone:
        return False
    if origin is Origin.EARLIER_BOOT and not returns and cache.is_running(attachment):
        return False
    changed_ns = _changed_ns(path)
    is_older = changed_ns < began_ns
    is_of_the_future = origin is Origin.EARLIER_BOOT and gone and changed_ns > time.time_ns()
    return (is_older or is_of_the_future) and _is_local(os.path.dirname(path))


def get_file_system(directory: str) -> str:
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
    return get_file_system(directory) in _LOCAL


def _changed_ns(path: str) -> int:
    """Returns the change time of a file; now for one that cannot be read, which is of the current boot."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return time.time_ns()
