"""A mount namespace of our own, in which nothing on the host can be changed: for who tries what he does not mean.

One rule: all that is mounted is read-only inside, except for private copies; the kernel takes it away with the process.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress

from _podwire import mount, unshare

from cni.errors import CniError, Code
from kernel.errors import reason

_CLONE_NEWNS = 0x00020000  # linux/sched.h
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 0x20, 0x1000, 0x4000, 1 << 18
_KEPT = {"nosuid": _NOSUID, "nodev": _NODEV, "noexec": _NOEXEC}
_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks and backslashes in mountinfo
_PROC, _SETTINGS = "/proc", "/proc/sys"
_OF_THE_NAMESPACE = "net"  # below _SETTINGS: of whoever looks, so that it cannot be shown by a mount
_SWITCHES = ("/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")


def enter_readonly() -> None:
    """Moves this process into a read-only mount namespace of its own; raises CniError(5)."""
    try:
        unshare(_CLONE_NEWNS)
        mount("none", "/", "", _REC | _PRIVATE)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            lines = [line.split() for line in table]
    except OSError as error:
        doing = "cannot make a mount namespace"
        raise CniError(Code.IO_FAILURE, f"{doing}: {reason(error.errno or 0)}", "this needs CAP_SYS_ADMIN") from error
    for _, _, _, _, path, options, *_ in lines:
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)
        if point != _PROC and not point.startswith(f"{_PROC}/"):
            flags = sum(flag for name, flag in _KEPT.items() if name in options.split(","))
            with suppress(OSError):  # one hidden by another, or gone since
                mount("none", point, "", _REMOUNT | _BIND | _RDONLY | flags)
    of_all = [f"{_SETTINGS}/{name}" for name in os.listdir(_SETTINGS) if name != _OF_THE_NAMESPACE]
    for path in (*of_all, *_SWITCHES):
        with suppress(OSError):  # not of this kernel
            mount(path, path, "", _BIND)
            mount("none", path, "", _REMOUNT | _BIND | _RDONLY)


def mount_private_copy(directory: str, *, most_bytes: int = 0) -> None:
    """Puts a private, writable copy of `directory` over it; where it is not there yet, the way to it is made writable.

    Of the copy are directories, links and regular files on the same file system (with `most_bytes` no larger ones);
    sockets are not, so that nobody outside can be talked to through them. Files of namespaces are shown as they are.
    Raises CniError(5), OSError.
    """
    nearest = os.path.realpath(directory)
    while not os.path.isdir(nearest):
        nearest = os.path.dirname(nearest)
    if nearest == "/":
        raise CniError(Code.IO_FAILURE, f"{directory} cannot be copied", "make its first directory, and try again")
    original = os.open(nearest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(original)
        mount("podwire", nearest, "tmpfs", 0)
        os.chmod(nearest, stat.S_IMODE(found.st_mode))
        source = f"/proc/self/fd/{original}"
        if nearest == os.path.realpath(directory):
            _copy(source, nearest, found.st_dev, most_bytes)
        else:
            _show(source, nearest)
    finally:
        os.close(original)


def _copy(source: str, target: str, device: int, most_bytes: int) -> None:
    namespaces = os.stat("/proc/self/ns/net").st_dev
    for entry in os.scandir(source):
        with suppress(FileNotFoundError):  # gone since: others go on working
            _copy_one(entry, os.path.join(target, entry.name), device, namespaces, most_bytes)


def _copy_one(entry: os.DirEntry[str], copy: str, device: int, namespaces: int, most_bytes: int) -> None:
    found = os.stat(entry.path, follow_symlinks=False)  # not the entry's own, which does not see a mount
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(entry.path), copy)
    elif stat.S_ISDIR(found.st_mode) and found.st_dev == device:
        os.mkdir(copy, stat.S_IMODE(found.st_mode))
        _copy(entry.path, copy, device, most_bytes)
    elif stat.S_ISREG(found.st_mode) and found.st_dev == device and found.st_size <= (most_bytes or found.st_size):
        with open(entry.path, "rb") as old, open(copy, "xb") as new:
            new.write(old.read())
        os.chmod(copy, stat.S_IMODE(found.st_mode))
    elif found.st_dev == namespaces:
        _bind(entry.path, copy)


def _show(source: str, target: str) -> None:
    """Shows in a new directory what is in the original one, as it is."""
    for entry in os.scandir(source):
        there = os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), there)
            continue
        if entry.is_dir():
            os.mkdir(there)
            mount(entry.path, there, "", _BIND | _REC)
        else:
            _bind(entry.path, there)


def _bind(file: str, target: str) -> None:
    with open(target, "xb"):
        pass
    mount(file, target, "", _BIND)
