"""Moves a process into new network and mount namespaces, in which it represents the host; and mounts disks for it.

One rule: there is nothing to clean up. The machine never sees the objects in these namespaces, and the kernel deletes
them when the process ends.
"""

import os
import tempfile
from pathlib import Path

from tests.support import libc
from tests.support.namespaces import Namespace
from tests.support.processes import output


def enter(*hidden: str, namespaces: int = libc.NEW_MOUNTS | libc.NEW_NETWORK) -> Namespace:
    """Moves this process into new `namespaces`; returns the network namespace, named "host", with `lo` up.

    In them, /run and the `hidden` directories are empty and private. Raises OSError without root.
    """
    libc.unshare(namespaces)
    output("mount", "--make-rprivate", "/")
    for directory in map(Path, ("/run", *hidden)):
        nearest = next(path for path in (directory, *directory.parents) if path.is_dir())  # creates nothing there
        output("mount", "-t", "tmpfs", "podwire", str(nearest))
    output("ip", "link", "set", "lo", "up")
    output("ip", "netns", "attach", "host", str(os.getpid()))
    host = Namespace("host")
    host.set_sysctl("net/ipv4/ip_forward", "0")  # a new namespace inherits the machine's value
    return host


def mount_disk(directory: Path, size_bytes: int, files: int = 0) -> None:
    """Mounts a new ext4 file system on `directory`; call it after `enter`. The image's name is deleted at once.

    It has inodes for `files` files of at most 1 KiB, by default for one per 4 KiB.

    A new file system for each run: ext4 creates files more slowly after many deletions, runs would affect each other.
    """
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="podwire-") as image:
        image.truncate(size_bytes)
        inodes = ["-N", str(files), "-b", "1024"] if files else ["-N", str(size_bytes // 4096)]
        output("mkfs.ext4", "-q", "-F", *inodes, "-E", "lazy_itable_init=0,lazy_journal_init=0", image.name)
        directory.mkdir(parents=True)
        output("mount", "-o", "loop", image.name, str(directory))
