"""SELinux labels of processes, by the files of /proc (proc(5), `attr/current`)."""

from __future__ import annotations

import os

_CURRENT = "/proc/thread-self/attr/current"
_FILE_SYSTEMS = "/proc/filesystems"


def is_enabled() -> bool:
    """Returns whether the kernel has SELinux enabled; its file system need not be mounted here.

    Writing a label is no test: other security modules have the same file, and Smack accepts any text.
    """
    with open(_FILE_SYSTEMS, encoding="ascii") as file:
        return any(line.split()[-1:] == ["selinuxfs"] for line in file)


def set_current_label(label: str) -> None:
    """Gives this process another label, for good; raises OSError.

    The policy must allow `dyntransition`, as that of container-selinux does for container runtimes.
    """
    descriptor = os.open(_CURRENT, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, os.fsencode(label))
    finally:
        os.close(descriptor)
