"""A cluster on this kernel: nodes that are network and mount namespaces, and the network between them.

Each node has separate /etc/cni, /opt/cni, /var/lib/cni, /var/lib/podwire and /run. Nodes share a segment (a bridge), or
each has a segment of its own behind a router; both are in the namespace `fabric`, where an API server can listen at
SERVER. All processes of a node end with its first process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import binaries, namespaces
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.processes import PATH

SERVER, SERVER6 = "192.0.2.1", "2001:db8::1"
_ENV = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C"}
_UNSHARED = ("--net", "--mount", "--propagation", "private", "--fork", "--kill-child")
_TIMEOUT_S = 60
_SETUP = """
set -e
for directory in etc opt var/lib; do
    mkdir -p "$DISK/over/$directory/upper" "$DISK/over/$directory/work"
    over="lowerdir=/$directory,upperdir=$DISK/over/$directory/upper,workdir=$DISK/over/$directory/work"
    mount -t overlay -o "$over" podwire "/$directory"
done
mount -t tmpfs podwire /run
mkdir -p /run/netns /run/lock /var/lib/cni "$DISK/cni"
mount --bind "$DISK/cni" /var/lib/cni
mount -t sysfs podwire /sys
rm -rf /etc/cni /opt/cni
mkdir -p /etc/cni/net.d /opt/cni/bin
ip link set lo up
"""


@dataclass
class ClusterNode:
    """A node: its name and number, the process that keeps its namespaces, and the directory of its disk."""

    name: str
    number: int
    pid: int
    disk: Path
    network: Namespace
    addresses: tuple[str, ...]

    def run(self, *argv: str, check: bool = True, stdin: str | None = None, timeout_s: float = _TIMEOUT_S) -> str:
        """Runs a program on the node and returns its stdout; a failure fails the test unless `check` is False."""
        done = self.done(*argv, stdin=stdin, timeout_s=timeout_s)
        output = done.stderr.strip() or done.stdout.strip() or done.returncode
        assert not check or done.returncode == 0, f"{self.name}: {' '.join(argv)}: {output}"
        return done.stdout

    def done(
        self, *argv: str, stdin: str | None = None, timeout_s: float = _TIMEOUT_S, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on the node and returns its outcome."""
        line = self.nsenter(*argv)
        return subprocess.run(
            line,
            env={**_ENV, **(env or {})},
            timeout=timeout_s,
            check=False,
            input=stdin or "",
            capture_output=True,
            text=True,
        )

    def start(self, *argv: str, log: Path) -> subprocess.Popen[bytes]:
        """Starts a program on the node; it ends with the node. Its output is appended to `log`."""
        with log.open("ab") as file:
            return subprocess.Popen(self.nsenter(*argv), env=_ENV, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def nsenter(self, *argv: str) -> list[str]:
        """Returns the command line that runs a program on the node."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--", *argv]

    def routes(self, *options: str) -> list[dict[str, Any]]:
        """Returns `ip -json route show` with options."""
        text = self.run("ip", "-json", *options[:1], "route", "show", *options[1:]) or "[]"
        parsed: list[dict[str, Any]] = json.loads(text)
        return parsed


@contextlib.contextmanager
def cluster(directory: Path, count: int, *, routed: bool = False) -> Iterator[tuple[Namespace, list[ClusterNode]]]:
    """Yields the namespace of the network and `count` nodes; the nodes and their processes end with the block."""
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(namespaces.temporary("fabric"))
        fabric.ip("link", "set", "lo", "up")
        if routed:
            for key in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
                fabric.set_sysctl(key, "1")
            fabric.ip("address", "add", f"{SERVER}/32", "dev", "lo")
            fabric.ip("address", "add", f"{SERVER6}/128", "dev", "lo")
        else:
            fabric.ip("link", "add", "lan", "type", "bridge")
            fabric.ip("address", "add", f"{SERVER}/24", "dev", "lan")
            fabric.ip("address", "add", f"{SERVER6}/64", "dev", "lan", "nodad")
            fabric.ip("link", "set", "lan", "up")
        yield fabric, [stack.enter_context(_node(directory, number, fabric, routed)) for number in range(1, count + 1)]


@contextlib.contextmanager
def _node(directory: Path, number: int, fabric: Namespace, routed: bool) -> Iterator[ClusterNode]:
    disk = directory / f"node-{number}"
    disk.mkdir()
    line = ["setpriv", "--pdeathsig=KILL", "unshare", *_UNSHARED, "env", "--ignore-signal=CHLD", "sleep", "infinity"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(line, stdin=quiet, stderr=quiet, start_new_session=True) as unshare:
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
        try:
            assert eventually(lambda: bool(children.read_text())), "no first process"
            pid = int(children.read_text())
            assert eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n"), "no first process"
            network = Namespace(os.path.relpath(f"/proc/{pid}/ns/net", "/run/netns"))
            addresses = _wire(pid, network, fabric, number, routed)
            node = ClusterNode(f"node-{number}", number, pid, disk, network, addresses)
            setup = node.done("sh", "-c", _SETUP, env={"DISK": str(disk)})
            assert setup.returncode == 0, setup.stderr
            (disk / "podwire").mkdir()
            shutil.copy2(binaries.directory() / "podwire", disk / "podwire" / "podwire")
            yield node
        finally:
            unshare.kill()


def _wire(pid: int, network: Namespace, fabric: Namespace, number: int, routed: bool) -> tuple[str, ...]:
    """Connects a node's eth0; returns its addresses."""
    port = f"n{number}"
    fabric.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    network.ip("link", "set", "lo", "up")
    if routed:
        ends = ((fabric, port, 1), (network, "eth0", 10))
        for namespace, link, host in ends:
            namespace.ip("address", "add", f"198.51.100.{16 * number + host}/28", "dev", link)
            namespace.ip("address", "add", f"2001:db8:{number}::{host}/64", "dev", link, "nodad")
            namespace.ip("link", "set", link, "up")
        network.ip("route", "add", "default", "via", f"198.51.100.{16 * number + 1}")
        network.ip("route", "add", "default", "via", f"2001:db8:{number}::1")
        return f"198.51.100.{16 * number + 10}", f"2001:db8:{number}::10"
    fabric.ip("link", "set", port, "master", "lan", "up")
    network.ip("address", "add", f"192.0.2.{10 + number}/24", "dev", "eth0")
    network.ip("address", "add", f"2001:db8::{10 + number}/64", "dev", "eth0", "nodad")
    network.ip("link", "set", "eth0", "up")
    network.ip("route", "add", "default", "via", SERVER)
    network.ip("route", "add", "default", "via", SERVER6)
    return f"192.0.2.{10 + number}", f"2001:db8::{10 + number}"
