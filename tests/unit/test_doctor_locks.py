"""The process that `podwire doctor` reports as the holder of a lock."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from kernel.netfilter import iptables_program
from podwire.doctor import addresses
from podwire.doctor.node import CheckedNode
from tests.support.unit_node import new_node, run_check


@pytest.fixture
def node(monkeypatch, tmp_path) -> CheckedNode:
    """A node with one network, its store and the lock of iptables-legacy below the test's directory."""
    monkeypatch.setattr(iptables_program, "LOCK", f"{tmp_path}/xtables.lock")
    return new_node(tmp_path)


FORKING_HOLDER = """
import fcntl, os, subprocess, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
print(subprocess.Popen(["sleep", "60"], pass_fds=[fd]).pid, flush=True)
os._exit(0)
"""


def test_holder_of_a_lock_is_reported(node, monkeypatch, tmp_path):
    """A process that has been running for long and holds a store's lock is reported, and a new one is not."""
    store = tmp_path / "leases" / "net"
    store.mkdir(parents=True)
    with open(store / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        monkeypatch.setattr(addresses, "_LONG_S", 1e9)
        assert run_check(node, "locks") == []
        monkeypatch.setattr(addresses, "_LONG_S", -1.0)
        (finding,) = run_check(node, "locks")
    assert (finding.name, finding.fix) == ("lock-held", f"kill {os.getpid()}")
    assert run_check(node, "locks") == []


def test_holder_is_not_the_process_that_took_the_lock(node, monkeypatch, tmp_path):
    """The process that holds the lock of iptables-legacy is reported, not the zombie that took it."""
    path = tmp_path / "xtables.lock"
    monkeypatch.setattr(addresses, "_LONG_S", -1.0)
    with subprocess.Popen([sys.executable, "-c", FORKING_HOLDER, path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        holder = int(parent.stdout.readline())
        try:
            os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)  # a zombie from now on
            (finding,) = run_check(node, "locks")
        finally:
            os.kill(holder, signal.SIGKILL)
    assert (finding.subject, finding.fix) == ("iptables", f"kill {holder}")
    assert f"process {holder} (sleep 60) holds {path}" in finding.text
