"""Detects whether the network namespace of an attachment still exists, for plugins and tool.

GONE needs proof. A path may be missing only in this process's view of the file system: in a container, or after
`unshare --mount`, /run/netns is another directory while the pods run. So the path is also looked up in the root
directory of process 1, and an existing interface of the attachment proves that it is running. An instance of apptainer
keeps its namespace where only the instance sees it: there a missing path proves nothing.

Cost: two stat(2) for a namespace at its path, otherwise some ten more system calls.
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
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO (linux/proc_ns.h): the inode of the host's PID namespace
_SIOCGIFHWADDR, _SIOCGIFINDEX = 0x8927, 0x8933  # linux/sockios.h
_MAX_NAME_BYTES = 15  # linux/if.h (IFNAMSIZ)
# The end of the namespace path of each apptainer or Singularity instance, which only the instance itself sees.
_APPTAINER_END = "/mnt/session/netns"
_MAX_STEPS = 100  # components of a path and of the symbolic links in it; the kernel follows 40 links


class Presence(Enum):
    """The state of an attachment's network namespace: whether and where it exists."""

    HERE = "here"  # at its path
    ELSEWHERE = "elsewhere"  # missing at its path here, but process 1 sees it, or its veth exists
    UNKNOWN = "unknown"  # missing here without proof that it was deleted, or without a path
    GONE = "gone"


@dataclass(frozen=True)
class HostInterfaces:
    """The host's interfaces in a result: the attachment's, and the bridge listed before it; "" for none."""

    interface: str = ""
    bridge: str = ""
    bridge_mac: str = ""

    @property
    def is_gone(self) -> bool:
        """Whether the bridge exists with its MAC address; the caller has checked that the interface does not exist.

        Both prove that the namespace was deleted: this is the attachment's host, and a veth is deleted with its peer.
        """
        return bool(self.bridge and self.interface) and _has_mac(self.bridge, self.bridge_mac)


def get_presence(
    netns: str,
    on_host: HostInterfaces = HostInterfaces(),  # noqa: B008 - a frozen value
    others: Callable[[], Iterable[str]] = tuple,
) -> Presence:
    """Returns whether the namespace at `netns` exists; `on_host` has the host's interfaces in the attachment's result.

    `others` returns the paths of the namespaces of all attachments in the same cache; it is rarely called. A plain
    file at the path is not a namespace: an unmount leaves one, and another mount namespace sees one.
    """
    if not netns:
        return Presence.UNKNOWN
    here = _look(netns)
    if here is not Presence.GONE:
        return here
    if on_host.interface and _exists(on_host.interface):
        return Presence.ELSEWHERE
    if netns.endswith(_APPTAINER_END):
        return Presence.GONE if on_host.is_gone else Presence.UNKNOWN
    for_init = _look_as_init(netns, on_host, others)
    return Presence.ELSEWHERE if for_init is Presence.HERE else for_init


def get_obstacle() -> str:
    """Returns why this process cannot prove that a missing namespace was deleted, "" if it can."""
    try:
        os.stat(f"{INIT}/root")
    except OSError as error:
        return f"{INIT}/root cannot be read: {error.strerror}"
    return "" if _is_host_init() else "this is a container without the host's processes"


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
    """Returns whether this network namespace has the interface; True also when the lookup fails."""
    name = interface.encode("utf-8", "replace")
    if len(name) > _MAX_NAME_BYTES:
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
            request = struct.pack("16s24x", interface.encode("utf-8", "replace")[:_MAX_NAME_BYTES])
            answer = fcntl.ioctl(any_socket, _SIOCGIFHWADDR, request)
    except OSError:
        return False
    return answer[18:24].hex(":") == mac.lower()  # after the name and the address family


def _look_as_init(netns: str, on_host: HostInterfaces, others: Callable[[], Iterable[str]]) -> Presence:
    """Returns what process 1 of this /proc sees at the path, UNKNOWN without access to its root directory.

    In a container without the host's processes, process 1 is the container's, whose view proves less: there GONE also
    requires the attachment's bridge, or the namespace of another attachment of the cache in the same directory.
    """
    root = f"{INIT}/root"
    try:
        os.stat(root)
    except OSError:
        return Presence.UNKNOWN
    try:
        seen = _look(_resolve(root, netns))
    except (FileNotFoundError, NotADirectoryError):
        seen = Presence.GONE
    except (OSError, ValueError):
        seen = Presence.UNKNOWN
    if seen is not Presence.GONE or _is_host_init() or on_host.is_gone:
        return seen
    return Presence.GONE if _is_missing_beside(root, netns, others()) else Presence.UNKNOWN


def _resolve(root: str, path: str) -> str:
    """Resolves the links of `path` for a process with root directory `root`; returns a path below it. Raises OSError.

    The kernel would follow an absolute symbolic link (/var/run to /run) from this process's own root directory.
    """
    resolved, remaining = root, path.split("/")[::-1]
    for _ in range(_MAX_STEPS):
        if not remaining:
            return resolved
        name = remaining.pop()
        if name in ("", "."):
            continue
        if name == "..":
            resolved = os.path.dirname(resolved) if resolved != root else root
            continue
        step = f"{resolved}/{name}"
        if not remaining and _look(step) is Presence.HERE:
            return step  # also a link in /proc, whose target is not a path
        try:
            target = os.readlink(step)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            resolved = step
            continue
        if target.startswith("/"):
            resolved = root
        remaining += target.split("/")[::-1]
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _is_host_init() -> bool:
    """Returns whether process 1 of this /proc is the host's; a container without the host's PIDs has its own."""
    try:
        return os.stat(f"{INIT}/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _is_missing_beside(root: str, netns: str, others: Iterable[str]) -> bool:
    """Returns whether the file is missing in a directory with another attachment's namespace: the runtime's directory.

    A plain file proves nothing: its mount may not have propagated to this mount namespace.
    """
    directory, _, name = netns.rpartition("/")
    try:
        if os.path.lexists(f"{_resolve(root, directory)}/{name}"):
            return False
    except (OSError, ValueError):
        return False
    siblings = (other for other in others if other != netns and other.rpartition("/")[0] == directory)
    return any(_is_visible(root, other) for other in siblings)


def _is_visible(root: str, netns: str) -> bool:
    """Returns whether a process with that root directory has a namespace at the path."""
    try:
        return _look(_resolve(root, netns)) is Presence.HERE
    except (OSError, ValueError):
        return False
