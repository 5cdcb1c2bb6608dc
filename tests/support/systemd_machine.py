"""A machine whose process 1 is systemd: new namespaces, and a writable copy in memory of the test root.

One rule: what a process of the machine changes outside the copy is in the machine's namespaces. Its control group is
deleted with it; global sysctls are read-only.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support import binaries
from tests.support.binaries import ROOT
from tests.support.machine import Host, eventually, unnamed_namespace
from tests.support.processes import PATH

_TEST_ROOT = ROOT / "build" / "root"
_BOOT_S = 300.0
# Daemons of the test root's packages, and services that change the whole machine.
_MASKED = "containerd kea-dhcp4-server kea-dhcp6-server udhcpd systemd-sysctl systemd-modules-load"
_UNSHARED = "--net --mount --pid --ipc --uts --cgroup --propagation private --fork --kill-child"
# Two processes: the first one deletes the control group when the machine has ended.
_ON_HOST = f"""\
set -e
mount -t tmpfs podwire "$1" && cd "$1" && mkdir cgroup up work root
mount -t cgroup2 podwire cgroup
group=cgroup/podwire-test-$$
mkdir "$group"
(
    echo 0 >"$group/cgroup.procs" # this process
    exec setpriv --pdeathsig=KILL unshare {_UNSHARED} sh -c "$3" sh "$1" "$2" "$4"
) || true
find "$group" -depth -type d -exec rmdir {{}} +
"""
_IN_MACHINE = """\
set -e
mount -t overlay -o "lowerdir=$2,upperdir=$1/up,workdir=$1/work" podwire "$1/root" && cd "$1/root"
mkdir -p proc sys run tmp dev .old
mount -t proc proc proc && mount -t sysfs sysfs sys && mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --bind proc/sys proc/sys && mount --bind proc/sys/net proc/sys/net && mount -o remount,bind,ro proc/sys
mount -t tmpfs run run && mount -t tmpfs tmp tmp && mount -t tmpfs dev dev
for name in null zero full random urandom; do touch dev/$name && mount --bind /dev/$name dev/$name; done
mkdir dev/pts dev/shm && ln -s /proc/self/fd dev/fd
for name in $3; do ln -sf /dev/null etc/systemd/system/$name.service; done
hostname podwire-machine
pivot_root . .old && umount -l /.old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
"""


class Machine(Host):
    """A machine; `pid` is its process 1, as seen from here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.network = unnamed_namespace(f"/proc/{pid}/ns/net")
        self.root = Path(f"/proc/{pid}/root")

    def nsenter(self, *argv: str) -> list[str]:
        """Returns the command line that runs a program on the machine."""
        return ["nsenter", f"--target={self.pid}", "--all", "--", *argv]

    def is_running(self) -> bool:
        """Returns whether systemd has started all units."""
        return self.done("systemctl", "is-system-running").stdout == "running\n"


@contextlib.contextmanager
def booted(directory: Path) -> Iterator[Machine]:
    """Boots a machine in an empty directory; all its processes end with the block."""
    if not (_TEST_ROOT / "lib/systemd/systemd").exists():
        binaries.skip_or_fail("no test root file system with systemd: make test-root")
    arguments = ["sh", "-c", _ON_HOST, "sh", str(directory), str(_TEST_ROOT), _IN_MACHINE, _MASKED]
    line = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--propagation", "private", *arguments]
    log = directory.with_suffix(".log")
    with (
        log.open("wb") as file,
        subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={"PATH": PATH}) as holder,
    ):
        machine = None
        try:
            assert eventually(lambda: holder.poll() is not None or bool(_children(*_children(holder.pid))))
            assert holder.poll() is None, f"systemd was not started: {log.read_text()}"
            (pid,) = _children(*_children(holder.pid))
            machine = Machine(pid)
            assert eventually(machine.is_running, within_s=_BOOT_S), log.read_text()
            yield machine
        finally:
            if machine:
                os.kill(machine.pid, signal.SIGKILL)
                holder.wait(60)
            holder.kill()


def _children(*parents: int) -> list[int]:
    """Returns the children of processes."""
    paths = (Path(f"/proc/{parent}/task/{parent}/children") for parent in parents)
    return [int(word) for path in paths for word in path.read_text().split()]
