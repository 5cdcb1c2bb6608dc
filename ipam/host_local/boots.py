"""Recognizes reservations that a reboot orphaned; ADD may reclaim them when it needs addresses.

One rule: only DEL and GC release reservations that are, or may be, of the current boot.

No container survives a reboot, but its reservation does unless DEL ran before, and a file in the reference plugin's
format does not contain its boot. Three sources are compared, because each may be wrong:

- The index (index.py) lists reservations with the ID of the boot in which it was written. A container that uses the
  same store may read another ID (systemd-nspawn and LXC mount a file over the kernel's), so that the reservations of
  all other programs look stale to it.
- The file's change time is before the boot. All containers share the machine's clock, but the clock may be set: without
  a hardware clock it is behind after a boot, and files of earlier boots have change times in the future.
- The runtime's cache says that the container is no longer running. That is wrong if this process cannot see the
  container's namespace.

The first two sources suffice together, unless the cache names a namespace that exists. The last two suffice for a
reservation that no index lists, such as the reference plugin's. For a file from the future, the first and the last
source have to agree. A reservation that is neither older than the boot nor from the future stays until the clock is
right. On a file system that several machines may share, which is not supported, nothing is reclaimed: each machine has
its own current boot.
"""

from __future__ import annotations

import os
import time
from enum import IntEnum
from functools import cache as cached

from attachment.cache import ResultCache
from cni.conf import VALID_NAME, Attachment
from process import files

_MOUNTS_BYTES = 4 << 20
# File systems that belong to one machine; others may be shared. hostfs is user-mode Linux's.
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hostfs", "jfs", "nilfs2", "overlay", "ramfs", "tmpfs"}
_LOCAL |= {"reiserfs", "ubifs", "xfs", "zfs"}


class Origin(IntEnum):
    """The time of a reservation: created by podwire in this boot, in an earlier boot, or unknown."""

    UNKNOWN = 0
    THIS_BOOT = 1
    EARLIER_BOOT = 2


def is_orphaned(
    path: str, attachment: Attachment, origin: Origin, cache: ResultCache, began_ns: int, *, is_readded: bool = False
) -> bool:
    """Returns whether a reboot ended the container of the reservation file `path`; `began_ns` is the time of the boot.

    `is_readded`: ADD runs for this attachment, so its namespace is a new one even if the path is the same.
    """
    if origin is Origin.THIS_BOOT or not VALID_NAME.fullmatch(attachment.container_id):
        return False  # not an ID: a remark of the administrator, which reserves the address
    is_gone = cache.is_gone(attachment)
    if origin is Origin.UNKNOWN and not is_gone:
        return False
    if origin is Origin.EARLIER_BOOT and not is_readded and cache.is_running(attachment):
        return False
    changed_ns = _changed_ns(path)
    is_older = changed_ns < began_ns
    is_of_the_future = origin is Origin.EARLIER_BOOT and is_gone and changed_ns > time.time_ns()
    return (is_older or is_of_the_future) and _is_local(os.path.dirname(path))


def get_file_system(directory: str) -> str:
    """Returns the type of a directory's file system, "" if it cannot be determined.

    Looks it up by the mount ID, since mountinfo does not contain the device numbers that stat(2) returns for btrfs.
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


@cached
def _is_local(directory: str) -> bool:
    return get_file_system(directory) in _LOCAL


def _changed_ns(path: str) -> int:
    """Returns the change time of a file; the present time if it cannot be read, which counts as the current boot."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return time.time_ns()
