"""Private network and mount namespaces in which this process acts as a node, and the way back out of them.

Nothing in them has a name on the machine: the kernel deletes them with this process, however it ends.
"""

from __future__ import annotations

import os

from _podwire import setns

from kernel import mounts, sysctl, unnamed_netns

_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000  # linux/sched.h
# Values that a new namespace copies from the machine, and those of a node that forwards nothing yet.
_SETTINGS = {"ipv4/ip_forward": "0", "ipv6/conf/all/forwarding": "0"}


class OriginalNamespaces:
    """The namespaces and the root directory in which this process is when it is created."""

    def __init__(self) -> None:
        """Opens them; raises CniError(8)."""
        try:
            self._descriptors = {
                _CLONE_NEWNET: os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC),
                _CLONE_NEWNS: os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC),
            }
            self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise unnamed_netns.refusal_error("open the namespaces of this process", error) from error

    def enter(self) -> None:
        """Returns to them; raises CniError(8)."""
        try:
            for kind, descriptor in self._descriptors.items():
                setns(descriptor, kind)
            os.fchdir(self._root)
            os.chroot(".")  # entering a mount namespace sets the root directory to that of the namespace
        except OSError as error:
            raise unnamed_netns.refusal_error("return to the namespaces of this process", error) from error


def enter(*empty_directories: str) -> None:
    """Moves this process into a node of its own: no network but `lo`, every file read-only, `empty_directories` empty.

    Those are writable; if one does not exist, its nearest existing parent is empty instead. Raises CniError.
    """
    unnamed_netns.enter_new()
    mounts.enter_readonly()
    for directory in empty_directories:
        mounts.mount_empty(directory)
    for name, value in _SETTINGS.items():
        sysctl.try_write(name, value)
    unnamed_netns.set_loopback_up()
