"""Which system calls a verb makes, and which failures fit each.

One rule: a point is found in a dry run, as strace counts (the Nth call of a name in one process), so that the next run
can make exactly that one fail.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

_CALL = re.compile(r"(\w+)\((.*)")

# Failures that the kernel can answer with where podwire calls it so. What cannot fail, or not without a defect of the
# program (getpid, sigprocmask), is left out, and so is what the C library does at the very start.
ERRNOS: dict[str, tuple[str, ...]] = {
    "access": ("EACCES",),
    "bind": ("ENOMEM", "ENOBUFS"),
    "clone": ("EAGAIN", "ENOMEM"),
    "dup2": ("EMFILE", "EBUSY"),
    "execve": ("ENOENT", "EACCES", "ENOMEM", "ETXTBSY"),
    "prctl": ("EPERM",),
    "close": ("EIO",),
    "flock": ("EINTR", "ENOLCK", "EIO"),
    "ftruncate": ("ENOSPC", "EIO", "EINTR"),
    "getdents64": ("EIO",),
    "getrandom": ("EINTR",),
    "linkat": ("ENOSPC", "EACCES", "EIO", "EROFS"),
    "memfd_create": ("EMFILE", "ENOMEM"),
    "mkdir": ("ENOSPC", "EACCES", "EROFS"),
    "newfstatat": ("EACCES", "EIO"),
    "openat": ("EMFILE", "ENOMEM", "EINTR", "EIO"),
    "pipe2": ("EMFILE", "ENFILE"),
    "poll": ("EINTR", "ENOMEM"),
    "pread64": ("EIO", "EINTR"),
    "pwrite64": ("ENOSPC", "EIO", "EINTR"),
    "read": ("EIO", "EINTR"),
    "recvfrom": ("ENOBUFS", "ENOMEM", "EINTR"),
    "rename": ("ENOSPC", "EACCES"),
    "sendto": ("ENOBUFS", "ENOMEM", "EPERM", "EINTR"),
    "setns": ("EPERM", "ENOMEM"),
    "setsockopt": ("ENOBUFS", "EPERM"),
    "socket": ("EMFILE", "ENOBUFS", "EPERM"),
    "statfs": ("EACCES", "EIO", "EINTR"),
    "unlink": ("EACCES", "EIO", "EROFS"),
    "utimensat": ("EPERM", "EIO"),
    "vfork": ("EAGAIN", "ENOMEM"),
    "wait4": ("EINTR",),
    "waitid": ("EINTR",),
    "write": ("ENOSPC", "EIO", "EINTR"),
}


class Fault(NamedTuple):
    """The `occurrence`th `call` of a process fails with `errno`; `shown` is what it was when it did not."""

    call: str
    occurrence: int
    errno: str
    shown: str

    @property
    def injection(self) -> str:
        """The words for it that strace knows."""
        return f"inject={self.call}:error={self.errno}:when={self.occurrence}"

    def __str__(self) -> str:
        return f"{self.call}#{self.occurrence} {self.errno} [{self.shown}]"


def list_faults(run: Callable[..., object], *, children: bool = False) -> list[Fault]:
    """Returns the faults for a verb; `run` does it once, started by the words that it is given.

    Those of the process itself, or those of its `children`, which strace's `-f` makes all processes meet.
    """
    with tempfile.NamedTemporaryFile("r", prefix="podwire-trace-") as log:
        run("strace", "-f", "-y", "-s", "40", "-o", log.name)
        lines = log.read().splitlines()
    first = lines[0].split()[0]
    counted: Counter[tuple[str, str]] = Counter()
    found: list[Fault] = []
    replaced = set()  # those that have become other programs
    started = False
    for line in lines:
        pid, _, rest = line.partition(" ")
        if pid in replaced or not (match := _CALL.match(rest.strip())):
            continue  # somebody else's, a signal, the second half of a call, or the end
        call, shown = match[1], match[2][-240:]
        counted[pid, call] += 1
        started |= call == "rt_sigaction" and match[2].startswith("SIGTERM")
        if started and (pid != first) == children:
            errnos = (errno for errno in ERRNOS.get(call, ()) if _fits(call, errno, shown))
            found += [Fault(call, counted[pid, call], errno, shown) for errno in errnos]
        if call == "execve" and started:
            replaced.add(pid)
    return list({fault[:3]: fault for fault in found}.values())


def _fits(call: str, errno: str, shown: str) -> bool:
    """Leaves out what no file can answer: closing fails on disks only, and a wait for a directory is none."""
    if call == "close":
        return "/leases" in shown
    if errno == "EACCES" and "AT_EMPTY_PATH" in shown:
        return False  # what is open already
    return not (errno == "EINTR" and ("O_DIRECTORY" in shown or shown.endswith("/net>")))
