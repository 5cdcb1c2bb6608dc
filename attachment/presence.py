"""Whether the network namespace of an attachment still exists: the one judgement that plugins and tool rely on.

One rule: GONE needs proof. A path that is missing here may be missing only in this process's view of the file system:
in a container, or after `unshare --mount`, /run/netns is another directory while the pods run. So the path is also
looked up as process 1 sees it, and an interface of the attachment that still exists proves that it is running.

Costs two stat(2) for a namespace that is at its path, and some ten system calls more for one that is not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterable
from enum import Enum

from process.values import dataclass

INIT = "/proc/1"
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO (linux/proc_ns.h): the inode of the machine's own
_SIOCGIFHWADDR, _SIOCGIFINDEX = 0x8927, 0x8933  # linux/sockios.h
_MOST_NAME_BYTES = 15  # linux/if.h (IFNAMSIZ)
_MOST_STEPS = 100  # components of a path and of the symbolic links in it; the kernel follows 40 links


class Presence(Enum):
    """Whether an attachment's network namespace exists."""

    HERE = "here"  # at its path
    ELSEWHERE = "elsewhere"  # missing at its path here, but it exists: init sees it, or its veth is there
    UNKNOWN = "unknown"  # missing here, and nothing proves that it is gone; or it has no path
    GONE = "gone"


@dataclass(frozen=True)
class HostInterfaces:
    """What a result lists on the host: the attachment's interface, and the bridge before it ("" if it lists none)."""

    interface: str = ""
    bridge: str = ""
    bridge_mac: str = ""

    @property
    def is_gone(self) -> bool:
        """Whether the kernel has the bridge, with its MAC address, but not the interface.

        That proves that the namespace is gone: a veth goes with its peer, and this is the host of the attachment.
        """
        return bool(self.bridge and self.interface) and _has_mac(self.bridge, self.bridge_mac)


def get_presence(
    netns: str,
    host_end: HostInterfaces = HostInterfaces(),  # noqa: B008 - a frozen value
    others: Callable[[], Iterable[str]] = tuple,
) -> Presence:
    """Returns whether the namespace at `netns` exists; `host_end` is what the attachment's result lists on the host.

    `others` returns the paths of the namespaces of all attachments in the same cache; it is rarely called.

    A plain file at the path is no namespace: an unmount leaves one, and another mount namespace sees one.
    """
    if not netns:
        return Presence.UNKNOWN
    here = _look(netns)
    if here is not Presence.GONE:
        return here
    if host_end.interface and _exists(host_end.interface):
        return Presence.ELSEWHERE
    there = _look_as_init(netns, host_end, others)
    return Presence.ELSEWHERE if there is Presence.HERE else there


def get_obstacle() -> str:
    """Returns why this process cannot prove that a missing namespace is gone, "" if it can."""
    try:
        os.stat(f"{INIT}/root")
    except OSError as error:
        return f"{INIT}/root cannot be read: {error.strerror}"
    return "" if _is_machines_init() else "this is a container without the host's processes"


def _look(path: str) -> Presence:
    try:
        return Presence.HERE if _is_namespace(path) else Presence.GONE
    except (FileNotFoundError, NotADirectoryError):
        return Presence.GONE
    except (OSError, ValueError):
        return Presence.UNKNOWN


def _is_namespace(path: str) -> bool:
    return os.stat(path).st_dev == os.stat("/proc/self/ns/net").st_dev


def _exists(interface: str) -> bool:
    """Tells whether this network namespace has the interface, or may have: the kernel could not be asked."""
    name = interface.encode("utf-8", "replace")
    if len(name) > _MOST_NAME_BYTES:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCGIFINDEX, struct.pack("16s24x", name))
        return True
    except OSError as error:
        return error.errno != errno.ENODEV


def _has_mac(interface: str, mac: str) -> bool:
    """Returns whether this network namespace has an interface of that name with that MAC address."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("16s24x", interface.encode("utf-8", "replace")[:_MOST_NAME_BYTES])
            answer = fcntl.ioctl(any_socket, _SIOCGIFHWADDR, request)
    except OSError:
        return False
    return answer[18:24].hex(":") == mac.lower()  # behind the name and the family of the address


def _look_as_init(netns: str, host_end: HostInterfaces, others: Callable[[], Iterable[str]]) -> Presence:
    """Returns what process 1 of this /proc has at the path, UNKNOWN where we may not look.

    A container without the host's processes has a process 1 of its own, whose view proves less: there the attachment's
    bridge must be in sight, or the namespace of another attachment of the same cache, in the same directory.
    """
    root = f"{INIT}/root"
    try:
        os.stat(root)
    except OSError:
        return Presence.UNKNOWN
    try:
        found = _look(_resolved(root, netns))
    except (FileNotFoundError, NotADirectoryError):
        found = Presence.GONE
    except (OSError, ValueError):
        found = Presence.UNKNOWN
    if found is not Presence.GONE or _is_machines_init() or host_end.is_gone:
        return found
    return Presence.GONE if _is_missing_beside(root, netns, others()) else Presence.UNKNOWN


def _resolved(root: str, path: str) -> str:
    """Returns the path, below `root`, of what `path` is for a process with that root directory; raises OSError.

    The kernel would follow an absolute symbolic link (/var/run to /run) from our own root directory.
    """
    at, rest = root, path.split("/")[::-1]
    for _ in range(_MOST_STEPS):
        if not rest:
            return at
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at) if at != root else root
            continue
        step = f"{at}/{name}"
        if not rest and _look(step) is Presence.HERE:
            return step  # a link of /proc, too, whose target is not a path
        try:
            target = os.readlink(step)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            at = step
            continue
        if target.startswith("/"):
            at = root
        rest += target.split("/")[::-1]
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _is_machines_init() -> bool:
    """Tells whether process 1 of this /proc is the machine's; a container without the host's pids has its own."""
    try:
        return os.stat(f"{INIT}/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _is_missing_beside(root: str, netns: str, others: Iterable[str]) -> bool:
    """Returns whether the file is missing from a directory in which another attachment's namespace is: the runtime's.

    A plain file proves nothing: its mount may not have come into this mount namespace.
    """
    directory, _, name = netns.rpartition("/")
    try:
        if os.path.lexists(f"{_resolved(root, directory)}/{name}"):
            return False
    except (OSError, ValueError):
        return False
    beside = (other for other in others if other != netns and other.rpartition("/")[0] == directory)
    return any(_is_visible(root, other) for other in beside)


def _is_visible(root: str, netns: str) -> bool:
    """Returns whether a process with that root directory has a namespace at the path."""
    try:
        return _look(_resolved(root, netns)) is Presence.HERE
    except (OSError, ValueError):
        return False
