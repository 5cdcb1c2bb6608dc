"""SELinux labels of processes, by the files of /proc (proc(5), `attr/current`)."""

from __future__ import annotations

import os

_CURRENT = "/proc/thread-self/attr/current"
_FILE_SYSTEM = "/sys/fs/selinux"


def is_enabled() -> bool:
    """Returns whether the kernel has SELinux enabled."""
    return os.path.exists(f"{_FILE_SYSTEM}/enforce")


def set_current_label(label: str) -> None:
    """Gives this process another label, for good; raises OSError.

    The policy must allow `dyntransition`, as that of container-selinux does for container runtimes. A kernel without
    SELinux answers EINVAL or ENOENT.
    """
    descriptor = os.open(_CURRENT, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, os.fsencode(label))
    finally:
        os.close(descriptor)
