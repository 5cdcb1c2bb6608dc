"""Tap devices: Ethernet interfaces whose other end is a program that reads and writes frames through /dev/net/tun.

A device is created by an ioctl on that file (linux/if_tun.h), in the namespace that is current when it is opened. It is
deleted with its last descriptor unless it is persistent: a process that is killed before that leaves no device.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress

from kernel import modules, selinux, system
from kernel.codec_links import TunMessage
from kernel.errors import KernelError
from kernel.link import RTM_GETLINK, Link, by_index_request
from kernel.rtnl import Request, Socket
from process import record
from process.values import dataclass

KIND = "tun"  # IFLA_INFO_KIND, of tun devices and tap devices
MTU_MIN, MTU_MAX = 68, 65521  # 65535 less the Ethernet header (drivers/net/tun.c)
# linux/if_tun.h. With EXCL, TUNSETIFF fails for an existing device (EBUSY) instead of attaching to it.
_IFF_TAP, _IFF_MULTI_QUEUE, _IFF_NO_PI, _IFF_TUN_EXCL = 0x2, 0x100, 0x1000, 0x8000
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER, _TUNSETGROUP = 0x400454CA, 0x400454CB, 0x400454CC, 0x400454CE
_IFREQ = struct.Struct("16sH22x")  # struct ifreq: name and flags
_FAILURE = struct.Struct("=BI")  # whether setting the label failed, and the errno
_NO_DEVICE = (errno.ENOENT, errno.ENODEV, errno.ENXIO)
_NO_FILE = "the device file is missing: mkdir -p /dev/net && mknod /dev/net/tun c 10 200"
_OPEN_HINTS = {
    errno.EPERM: "the device cgroup of this process must allow character device 10:200",
    errno.EACCES: "this needs root on the host",
}


@dataclass(frozen=True)
class TapOptions:
    """The properties that creation sets: `owner` and `group` are IDs that may open the device, None for no restriction.

    `selinux_label` is the label of the device's socket, "" for that of this process.
    """

    multi_queue: bool = False
    owner: int | None = None
    group: int | None = None
    selinux_label: str = ""


@dataclass(frozen=True)
class TapState:
    """The state of an existing tun or tap device."""

    is_tap: bool
    multi_queue: bool
    is_persistent: bool
    owner: int | None
    group: int | None


class LabelError(KernelError):
    """The kernel refused the SELinux label; nothing was created."""


def probe_device() -> None:
    """Raises KernelError if /dev/net/tun cannot be opened."""
    os.close(_open_device())


def create(name: str, options: TapOptions) -> None:
    """Creates a persistent tap device, down, in the current namespace; raises KernelError, LabelError.

    Its frames have neither packet information nor a virtio header, until a program that opens it chooses otherwise.
    EBUSY: the name is used by another tun or tap device; EINVAL: by another kind of interface.
    """
    description = f'create tap "{name}"'
    descriptor = _open_device()
    try:
        if options.selinux_label:
            _create_labelled(descriptor, name, options)
        else:
            _create(descriptor, name, options)
    except OSError as error:
        raise KernelError(description, error.errno or 0) from error
    finally:
        os.close(descriptor)
    record.note_change(description)


def get_state(socket: Socket, tap: Link) -> TapState | None:
    """Returns the state of a tun or tap device, None if it is missing or before Linux 4.20; raises KernelError."""
    request = by_index_request(tap.index)
    (message,) = socket.get(Request(request.description, TunMessage, RTM_GETLINK, 0, *request[4:7]))
    info = message and message.get_attr("IFLA_LINKINFO")
    data = info and info.get_attr("IFLA_INFO_DATA")
    if not data:
        return None
    return TapState(
        is_tap=data.get_attr("IFLA_TUN_TYPE") == _IFF_TAP,
        multi_queue=bool(data.get_attr("IFLA_TUN_MULTI_QUEUE")),
        is_persistent=bool(data.get_attr("IFLA_TUN_PERSIST")),
        owner=data.get_attr("IFLA_TUN_OWNER"),
        group=data.get_attr("IFLA_TUN_GROUP"),
    )


def _open_device() -> int:
    """Opens /dev/net/tun for the current namespace and returns its descriptor; raises KernelError."""
    try:
        return os.open(system.current.path("/dev/net/tun"), os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        number = error.errno or 0
        missing = _NO_FILE if modules.has_device("tun") else modules.explain_missing("tun")
        hint = missing if number in _NO_DEVICE else _OPEN_HINTS.get(number, "")
        raise KernelError("open /dev/net/tun", number, hint) from error


def _create(descriptor: int, name: str, options: TapOptions) -> None:
    """Runs the ioctls; raises OSError, and then the device is deleted when the descriptor is closed."""
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_TUN_EXCL | (_IFF_MULTI_QUEUE if options.multi_queue else 0)
    system.current.ioctl(descriptor, _TUNSETIFF, _IFREQ.pack(os.fsencode(name), flags))
    if options.owner is not None:
        system.current.ioctl(descriptor, _TUNSETOWNER, _signed(options.owner))
    if options.group is not None:
        system.current.ioctl(descriptor, _TUNSETGROUP, _signed(options.group))
    system.current.ioctl(descriptor, _TUNSETPERSIST, 1)


def _signed(number: int) -> int:
    """Returns the C int with the bits of a 32-bit ID, since fcntl.ioctl() takes no other."""
    return number - (1 << 32) if number >> 31 else number


def _create_labelled(descriptor: int, name: str, options: TapOptions) -> None:
    """Creates the device in a child process that has the label; raises OSError, LabelError.

    SELinux gives the device's socket the label of the process that creates it, and not the label for new sockets
    (attr/sockcreate): see selinux_tun_dev_alloc_security in security/selinux/hooks.c. The child does not run another
    program, and this process keeps its label, as it may have no way back.
    """
    readable, writable = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            child = os.fork()
            if child == 0:
                _run_child(descriptor, writable, name, options)
        finally:
            os.close(writable)
        answer = os.read(readable, _FAILURE.size)
    finally:
        os.close(readable)
    with suppress(ChildProcessError):  # the parent process set SIGCHLD to SIG_IGN
        os.waitpid(child, 0)
    if len(answer) != _FAILURE.size:
        raise OSError(errno.ECHILD, "the child process was killed")
    is_label, number = _FAILURE.unpack(answer)
    if is_label:
        raise LabelError("set the SELinux label", number)
    if number:
        raise OSError(number, os.strerror(number))


def _run_child(descriptor: int, writable: int, name: str, options: TapOptions) -> None:
    """Creates the device, writes the failure or zeros to `writable`, and ends this process."""
    is_label, number = True, errno.EPROTO
    try:
        selinux.set_current_label(options.selinux_label)
        is_label = False
        _create(descriptor, name, options)
        number = 0
    except OSError as error:
        number = error.errno or errno.EPROTO
    finally:
        os.write(writable, _FAILURE.pack(is_label, number))
        os._exit(0)
