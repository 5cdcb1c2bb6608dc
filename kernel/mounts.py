"""A private mount namespace in which nothing on the host can be changed, for dry runs.

All mounts are read-only inside, except private copies. The kernel deletes the namespace with the process.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress

from _podwire import mount, unshare

from cni.errors import CniError, Code
from kernel.errors import reason

_CLONE_NEWNS = 0x00020000  # linux/sched.h
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 0x20, 0x1000, 0x4000, 1 << 18
_KEPT_FLAGS = {"nosuid": _NOSUID, "nodev": _NODEV, "noexec": _NOEXEC}
_ESCAPED = re.compile(r"\\([0-7]{3})")  # spaces and backslashes in mountinfo
_PROC, _SETTINGS = "/proc", "/proc/sys"
_PER_NAMESPACE = (
    "net"  # below _SETTINGS: belongs to the reading process's namespace, so that a bind mount cannot replace it
)
# Mounts above such a root directory cannot be made private or read-only from inside.
_CHROOT = "the root directory is no mount point, as in a chroot; before it: mount --bind DIRECTORY DIRECTORY"
_SWITCHES = ("/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")


def enter_readonly() -> None:
    """Moves this process into a new mount namespace, where everything is read-only; raises CniError(5)."""
    try:
        unshare(_CLONE_NEWNS)
        mount("none", "/", "", _REC | _PRIVATE)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            lines = [line.split() for line in table]
    except OSError as error:
        msg = f"cannot create a mount namespace: {reason(error.errno or 0)}"
        hint = _CHROOT if error.errno == errno.EINVAL else "this needs CAP_SYS_ADMIN"
        raise CniError(Code.IO_FAILURE, msg, hint) from error
    for _, _, _, _, path, options, *_ in lines:
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)
        if point != _PROC and not point.startswith(f"{_PROC}/"):
            flags = sum(flag for name, flag in _KEPT_FLAGS.items() if name in options.split(","))
            with suppress(OSError):  # hidden by another mount, or unmounted since
                mount("none", point, "", _REMOUNT | _BIND | _RDONLY | flags)
    shared_settings = [f"{_SETTINGS}/{name}" for name in os.listdir(_SETTINGS) if name != _PER_NAMESPACE]
    for path in (*shared_settings, *_SWITCHES):
        with suppress(OSError):  # this kernel does not have it
            mount(path, path, "", _BIND)
            mount("none", path, "", _REMOUNT | _BIND | _RDONLY)


def mount_private_copy(directory: str, *, most_bytes: int = 0) -> None:
    """Mounts a private, writable copy of `directory` over it, or makes its nearest existing parent writable.

    Copies directories, links and regular files on the same file system (with `most_bytes`, no larger ones), but no
    sockets, so that no daemon can be reached through them. Files of namespaces are bind-mounted.
    Raises CniError(5), OSError.
    """
    nearest = _nearest(directory)
    original = os.open(nearest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(original)
        mount("podwire", nearest, "tmpfs", 0)
        os.chmod(nearest, stat.S_IMODE(status.st_mode))
        source = f"/proc/self/fd/{original}"
        if nearest == os.path.realpath(directory):
            _copy(source, nearest, status.st_dev, most_bytes)
        else:
            _bind_entries(source, nearest)
    finally:
        os.close(original)


def mount_empty(directory: str) -> None:
    """Mounts an empty, writable directory over `directory`, or over its nearest existing parent, and creates it there.

    Raises CniError(5), OSError.
    """
    nearest = _nearest(directory)
    mount("podwire", nearest, "tmpfs", 0)
    os.chmod(nearest, 0o755)
    os.makedirs(directory, exist_ok=True)


def _nearest(directory: str) -> str:
    """Returns the directory, or its nearest existing parent; raises CniError(5) if that is the root directory."""
    nearest = os.path.realpath(directory)
    while not os.path.isdir(nearest):
        nearest = os.path.dirname(nearest)
    if nearest == "/":
        raise CniError(Code.IO_FAILURE, f"{directory} cannot be copied", "create its first directory, and try again")
    return nearest


def _copy(source: str, target: str, device: int, most_bytes: int) -> None:
    namespaces = os.stat("/proc/self/ns/net").st_dev
    for entry in os.scandir(source):
        with suppress(FileNotFoundError):  # deleted meanwhile by another process
            _copy_one(entry, os.path.join(target, entry.name), device, namespaces, most_bytes)


def _copy_one(entry: os.DirEntry[str], copy: str, device: int, namespaces: int, most_bytes: int) -> None:
    status = os.stat(entry.path, follow_symlinks=False)  # entry.stat() would not see a mount
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(entry.path), copy)
    elif stat.S_ISDIR(status.st_mode) and status.st_dev == device:
        os.mkdir(copy, stat.S_IMODE(status.st_mode))
        _copy(entry.path, copy, device, most_bytes)
    elif stat.S_ISREG(status.st_mode) and status.st_dev == device and status.st_size <= (most_bytes or status.st_size):
        with open(entry.path, "rb") as old, open(copy, "xb") as new:
            new.write(old.read())
        os.chmod(copy, stat.S_IMODE(status.st_mode))
    elif status.st_dev == namespaces:
        _bind(entry.path, copy)


def _bind_entries(source: str, target: str) -> None:
    """Bind-mounts the entries of the original directory into a new one."""
    for entry in os.scandir(source):
        copy = os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
            continue
        if entry.is_dir():
            os.mkdir(copy)
            mount(entry.path, copy, "", _BIND | _REC)
        else:
            _bind(entry.path, copy)


def _bind(file: str, target: str) -> None:
    with open(target, "xb"):
        pass
    mount(file, target, "", _BIND)
