"""Temporary network namespaces: one represents the host, others represent pods.

One rule: every namespace created here has a recognisable name and is deleted after the test, whatever happened in it;
the namespaces of a killed test are deleted before the next tests begin.
"""

import contextlib
import fcntl
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _podwire import setns

from attachment import presence
from kernel.netns import Netns, entered
from tests.support import libc
from tests.support.processes import identity, output, pid_of

_PREFIX = "pwt-"
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h
_CLEANUP_TIMEOUT_S = 60.0
_numbers = itertools.count()


@dataclass(frozen=True)
class Namespace:
    name: str

    @property
    def path(self) -> str:
        """The path, as in CNI_NETNS."""
        return f"/run/netns/{self.name}"

    def run(self, *argv: str, check: bool = True) -> str:
        """Runs a program in the namespace and returns its stdout; a failure fails the test if `check`."""
        with self.entered():
            return output(*argv, check=check)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Runs the block and the programs that it starts in the namespace; unlike nsenter, without another process."""
        with Netns(self.path) as netns, entered(netns):
            yield

    def ip(self, *argv: str) -> str:
        return output("ip", "-n", self.name, *argv)

    def sysctl(self, key: str) -> str:
        """Returns a sysctl of this namespace ("net/ipv4/ip_forward")."""
        with self.entered():
            return Path("/proc/sys", key).read_text().strip()

    def set_sysctl(self, key: str, value: str) -> None:
        with self.entered():
            Path("/proc/sys", key).write_text(value)

    def exists(self) -> bool:
        return os.path.exists(self.path)

    def delete(self) -> None:
        """Deletes the namespace; the kernel deletes its interfaces in the background."""
        with contextlib.suppress(OSError):  # a test may have unmounted it, or removed it
            libc.unmount(self.path)
        Path(self.path).unlink(missing_ok=True)


def create(purpose: str = "pod") -> Namespace:
    """Creates a namespace with a unique name, without a process as of `ip netns add`; the caller deletes it."""
    namespace = Namespace(f"{_PREFIX}{purpose}-{identity(os.getpid())}-{next(_numbers)}")
    path = Path(namespace.path)
    path.parent.mkdir(exist_ok=True)
    path.touch()
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        libc.unshare(libc.NEW_NETWORK)
        try:
            libc.bind("/proc/thread-self/ns/net", namespace.path)
        finally:
            setns(home, libc.NEW_NETWORK)
    finally:
        os.close(home)
    return namespace


def delete_stale() -> None:
    """Deletes the namespaces of killed tests; each name contains the process that created it.

    Tests in another PID namespace may share /run/netns. This process cannot see whether they run: theirs stay.
    """
    for path in Path("/run/netns").glob(f"{_PREFIX}*-*-*-*"):
        pid = pid_of("-".join(path.name.split("-")[-3:-1]))
        if pid and not Path(f"/proc/{pid}").exists():
            Namespace(path.name).delete()


def delete_and_wait(pod: Namespace, host: Namespace) -> None:
    """Deletes a pod's namespace, and waits until the kernel has deleted the host veths of the pod."""
    before = _links(host)
    pod.delete()
    deadline = time.monotonic() + _CLEANUP_TIMEOUT_S
    while _links(host) >= before and time.monotonic() < deadline:
        time.sleep(0.02)


def _links(host: Namespace) -> int:
    return len(host.ip("-o", "link").splitlines())


def expose_init() -> None:
    """Lets this process represent process 1 where root may not inspect process 1, as in a sandboxed machine.

    Without it no namespace is proven to be missing (attachment.presence). Only this process and its children see the
    mount.
    """
    try:
        os.stat(f"{presence.INIT}/root")
    except PermissionError:
        libc.unshare(libc.NEW_MOUNTS)
        libc.receive_mounts_only()
        libc.bind(f"/proc/{os.getpid()}", presence.INIT)


@contextlib.contextmanager
def temporary(purpose: str = "pod") -> Iterator[Namespace]:
    namespace = create(purpose)
    try:
        yield namespace
    finally:
        namespace.delete()


@contextlib.contextmanager
def temporary_host() -> Iterator[Namespace]:
    """Yields a new namespace that represents the host: lo is up, and forwarding, which it inherits, is off."""
    with temporary("host") as namespace:
        namespace.set_sysctl("net/ipv4/ip_forward", "0")
        with namespace.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
        yield namespace
