"""A private network and mount namespace for a whole process, which then stands for the host itself; disks for it.

One rule: there is nothing to clean up. The machine never sees what is made inside, and the kernel takes it away with
the process, however that ends.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.support import libc
from tests.support.namespaces import Namespace
from tests.support.processes import output


def enter(*hidden: str, namespaces: int = libc.NEW_MOUNTS | libc.NEW_NETWORK) -> Namespace:
    """Moves this process into `namespaces` of its own and returns the network namespace, `lo` up, named "host".

    Everything below /run and the `hidden` directories is empty inside and private. Raises OSError without root.
    """
    libc.unshare(namespaces)
    output("mount", "--make-rprivate", "/")
    for directory in ("/run", *hidden):
        output("mount", "-t", "tmpfs", "podwire", str(_nearest(Path(directory))))
    output("ip", "link", "set", "lo", "up")
    output("ip", "netns", "attach", "host", str(os.getpid()))
    host = Namespace("host")
    host.set_sysctl("net/ipv4/ip_forward", "0")  # it would be as on the machine
    return host


def mount_disk(directory: Path, size_bytes: int, files: int = 0) -> None:
    """Mounts a fresh ext4 file system on `directory`, to be called inside; its image has no name any more.

    It takes so many `files`, or one for each 4 KiB.

    A fresh one, since ext4 creates files more slowly where many have just been deleted: runs would disturb each other.
    """
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="podwire-") as image:
        image.truncate(size_bytes)
        inodes = str(files or size_bytes // 4096)
        output("mkfs.ext4", "-q", "-F", "-N", inodes, "-E", "lazy_itable_init=0,lazy_journal_init=0", image.name)
        directory.mkdir(parents=True)
        output("mount", "-o", "loop", image.name, str(directory))


def _nearest(directory: Path) -> Path:
    """Returns the directory, or the nearest one above it that exists: nothing is made on the machine."""
    return next(path for path in (directory, *directory.parents) if path.is_dir())
