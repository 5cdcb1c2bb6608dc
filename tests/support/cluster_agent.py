"""podwire-agent on the nodes of a test cluster."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.agent_nodes import ClusterNode
from tests.support.binaries import ROOT
from tests.support.machine import eventually

CONF = ROOT / "deploy" / "install" / "10-podwire.conflist"
_PROGRAM = Path(sys.executable).with_name("podwire-agent")
_SOCKET = "run/podwire/agent.sock"


class Agent:
    """A running agent: its process and its log. `stop` ends it; the end of the node kills it."""

    def __init__(self, node: ClusterNode, *options: str) -> None:
        self.node = node
        self.log_path = node.disk / "agent.log"
        executable = str(node.disk / "podwire" / "podwire")
        line = [str(_PROGRAM), f"--node-name={node.name}", f"--podwire={executable}", f"--conf={CONF}"]
        self.process = node.start(*line, "--gc-interval=0", *options, log=self.log_path)

    @property
    def pid(self) -> int:
        """The process ID; nsenter replaces itself with the program."""
        return self.process.pid

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]

    def get(self, page: str) -> tuple[int, str]:
        """Returns the status and the text of a page; raises OSError while nothing listens."""
        connection = http.client.HTTPConnection("agent", timeout=10)
        # A path relative to the node's root: a socket's path has at most 107 bytes.
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(f"/proc/{self.node.pid}/root/{_SOCKET}")
        with contextlib.closing(connection):
            connection.request("GET", page)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def ready_text(self) -> str:
        """Returns the text of /readyz, "" while nothing listens."""
        try:
            return self.get("/readyz")[1]
        except OSError:
            return ""

    def is_ready(self) -> bool:
        """Returns whether /readyz is 200."""
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def wait_ready(self, within_s: float = 30) -> None:
        """Waits until the agent is ready; fails the test with the reason and the log."""
        if not eventually(self.is_ready, within_s=within_s):
            log = self.log_path.read_text()[-3000:]
            raise AssertionError(f"{self.node.name} is not ready:\n{self.ready_text()}\n{log}")

    def metric(self, name: str) -> float:
        """Returns the value of a metric, named with its labels."""
        for line in self.get("/metrics")[1].splitlines():
            key, _, value = line.rpartition(" ")
            if key == name:
                return float(value)
        raise AssertionError(f"no metric {name}")

    def stop(self, number: int = signal.SIGTERM, within_s: float = 10) -> int:
        """Sends a signal and returns the exit status."""
        os.kill(self.pid, number)
        return self.process.wait(within_s)


@contextlib.contextmanager
def agents(nodes: list[ClusterNode], *options: str) -> Iterator[list[Agent]]:
    """Starts an agent on each node and waits until all are ready; ends them after the block."""
    started = [Agent(node, *options) for node in nodes]
    try:
        for agent in started:
            agent.wait_ready()
        yield started
    finally:
        for agent in started:
            with contextlib.suppress(ProcessLookupError):
                agent.process.kill()
            agent.process.wait()


def run_once(node: ClusterNode, *options: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs the agent until it ends, for --once, --dry-run and --remove; returns its outcome."""
    executable = str(node.disk / "podwire" / "podwire")
    line = [str(_PROGRAM), f"--node-name={node.name}", f"--podwire={executable}", f"--conf={CONF}"]
    return node.done(*line, "--gc-interval=0", *options, timeout_s=timeout_s)


def since(start_s: float) -> float:
    """Returns the seconds since a time of time.monotonic()."""
    return time.monotonic() - start_s
