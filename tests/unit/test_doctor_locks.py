"""Which process `podwire doctor` names as the holder of a lock."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from kernel.netfilter import iptables
from podwire.doctor import addresses
from podwire.doctor.checks import CHECKS
from podwire.doctor.finding import Finding
from podwire.doctor.node import Node
from podwire.main import PLUGINS

LIST = '{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local", %s}}]}'


@pytest.fixture
def node(monkeypatch, tmp_path) -> Node:
    """A node with one network, its store and the lock of iptables-legacy below the test's directory."""
    (tmp_path / "net.d").mkdir()
    keys = f'"subnet": "10.9.0.0/24", "dataDir": "{tmp_path}/leases"'
    (tmp_path / "net.d" / "10.conflist").write_text(LIST % keys)
    monkeypatch.setattr(iptables, "LOCK", f"{tmp_path}/xtables.lock")
    return Node(PLUGINS, {}, str(tmp_path / "net.d"), (str(tmp_path / "bin"),), str(tmp_path / "cni"))


TAKER = """
import fcntl, os, subprocess, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
print(subprocess.Popen(["sleep", "60"], pass_fds=[fd]).pid, flush=True)
os._exit(0)
"""


def look(node: Node) -> list[Finding]:
    """Returns what the check of locks finds."""
    return [one for check in CHECKS if check.name == "locks" for one in check.run(node)]


def test_who_holds_the_lock(node, monkeypatch, tmp_path):
    """A process that runs for long and holds a store's lock is reported; one that has just started is not."""
    store = tmp_path / "leases" / "net"
    store.mkdir(parents=True)
    with open(store / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        monkeypatch.setattr(addresses, "_LONG_S", 1e9)
        assert look(node) == []
        monkeypatch.setattr(addresses, "_LONG_S", -1.0)
        (found,) = look(node)
    assert (found.name, found.fix) == ("lock-held", f"kill {os.getpid()}")
    assert look(node) == []


def test_a_lock_whose_taker_has_ended(node, monkeypatch, tmp_path):
    """Of iptables-legacy's lock, too, the process that holds it is named, not the zombie that took it."""
    path = tmp_path / "xtables.lock"
    monkeypatch.setattr(addresses, "_LONG_S", -1.0)
    with subprocess.Popen([sys.executable, "-c", TAKER, path], stdout=subprocess.PIPE, text=True) as taker:
        assert taker.stdout
        holder = int(taker.stdout.readline())
        try:
            os.waitid(os.P_PID, taker.pid, os.WEXITED | os.WNOWAIT)  # a zombie from now on
            (found,) = look(node)
        finally:
            os.kill(holder, signal.SIGKILL)
    assert (found.subject, found.fix) == ("iptables", f"kill {holder}")
    assert f"process {holder} (sleep 60) holds {path}" in found.text
