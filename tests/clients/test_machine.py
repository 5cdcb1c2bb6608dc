"""The tests' private machines: their effect on this machine, and what a killed test leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import namespaces
from tests.support.binaries import ROOT
from tests.support.machine import eventually, machine

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.machine import machine

with machine(Path(sys.argv[1])) as made:
    group = next(Path("/sys/fs/cgroup").glob("pids"), Path("/sys/fs/cgroup")) / made.cgroup
    group.mkdir()
    print(made.pid, made.peer.name, group, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_next_tests_remove_what_a_killed_test_left(root, tmp_path):
    """A killed test's machine ends with it; the next tests delete its peer and its control groups."""
    (tmp_path / "next").mkdir()
    line = [sys.executable, "-c", KILLED, tmp_path]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, peer, group = done.stdout.split()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert (Path("/run/netns", peer).exists(), Path(group).exists()) == (True, True)
    namespaces.delete_stale()
    with machine(tmp_path / "next"):
        assert (Path("/run/netns", peer).exists(), Path(group).exists()) == (False, False)


def test_namespaces_of_tests_in_another_pid_namespace_stay(sandbox):
    """Tests in another PID namespace, to which this process is not visible, do not delete its namespaces."""
    code = "from tests.support import namespaces; namespaces.delete_stale()"
    line = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", code]
    subprocess.run(line, cwd=ROOT, check=True, timeout=60)
    assert "lo" in sandbox.ip("link")


@pytest.mark.parametrize("place", ["/dev/shm", "/etc", "/opt", "/run", "/run/netns", "/var/lib", "/var/lib/cni"])
def test_files_of_a_private_machine_are_not_on_this_machine(empty_machine, place):
    """A file in a directory for state of runtimes (podman's locks in /dev/shm) exists only on the private machine."""
    path = Path(place, f"pwt-{empty_machine.pid}")
    empty_machine.run("touch", str(path))
    exists = path.exists()
    empty_machine.run("rm", str(path))
    assert not exists
