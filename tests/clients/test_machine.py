"""The tests' own machines: what is left of them when the tests are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.clients.machine import eventually, machine
from tests.support import namespaces
from tests.support.binaries import ROOT

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.clients.machine import machine

with machine(Path(sys.argv[1])) as made:
    group = next(Path("/sys/fs/cgroup").glob("pids"), Path("/sys/fs/cgroup")) / made.cgroup
    group.mkdir()
    print(made.pid, made.peer.name, group, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_test_leaves_nothing_for_long(root, tmp_path):
    """A killed test's machine ends with it; its peer and its control groups go when the next tests begin."""
    (tmp_path / "next").mkdir()
    line = [sys.executable, "-c", KILLED, tmp_path]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, peer, group = done.stdout.split()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert (Path("/run/netns", peer).exists(), Path(group).exists()) == (True, True)
    namespaces.sweep()
    with machine(tmp_path / "next"):
        assert (Path("/run/netns", peer).exists(), Path(group).exists()) == (False, False)
