"""The system calls of a verb, and the errors that each of them can return.

One rule: a run without faults counts the calls as strace does (the Nth call of a name in one process), so that the next
run can let exactly one of them fail.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

_CALL = re.compile(r"(\w+)\((.*)")

# Errors that the kernel can return for podwire's arguments. Calls that cannot fail, or only after a programming error
# (getpid, sigprocmask), are excluded, and so are the C library's calls at the start of the process.
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
    """The `occurrence`th `call` of a process fails with `errno`; `shown` is strace's text of the successful call."""

    call: str
    occurrence: int
    errno: str
    shown: str

    @property
    def injection(self) -> str:
        """The fault as an argument of strace."""
        return f"inject={self.call}:error={self.errno}:when={self.occurrence}"

    def __str__(self) -> str:
        return f"{self.call}#{self.occurrence} {self.errno} [{self.shown}]"


def list_faults(run: Callable[..., object], *, children: bool = False) -> list[Fault]:
    """Returns the faults for a verb; `run` runs it once, started by the command line that it gets.

    They concern the process itself, or with `children` its children; with strace's `-f` they apply to every process.
    """
    with tempfile.NamedTemporaryFile("r", prefix="podwire-trace-") as log:
        run("strace", "-f", "-y", "-s", "40", "-o", log.name)
        lines = log.read().splitlines()
    first = lines[0].split()[0]
    counted: Counter[tuple[str, str]] = Counter()
    faults: list[Fault] = []
    exec_pids = set()  # processes that run other programs by now
    started = False
    for line in lines:
        pid, _, rest = line.partition(" ")
        if pid in exec_pids or not (match := _CALL.match(rest.strip())):
            continue  # another program, a signal, the second half of a call, or the end
        call, shown = match[1], match[2][-240:]
        counted[pid, call] += 1
        started |= call == "rt_sigaction" and match[2].startswith("SIGTERM")
        if started and (pid != first) == children:
            errnos = (errno for errno in ERRNOS.get(call, ()) if _fits(call, errno, shown))
            faults += [Fault(call, counted[pid, call], errno, shown) for errno in errnos]
        if call == "execve" and started:
            exec_pids.add(pid)
    return list({fault[:3]: fault for fault in faults}.values())


def _fits(call: str, errno: str, shown: str) -> bool:
    """Returns whether the file of a call can return `errno`: only disks fail at close, directories never block."""
    if call == "close":
        return "/leases" in shown
    if errno == "EACCES" and "AT_EMPTY_PATH" in shown:
        return False  # the file is open already
    return not (errno == "EINTR" and ("O_DIRECTORY" in shown or shown.endswith("/net>")))
