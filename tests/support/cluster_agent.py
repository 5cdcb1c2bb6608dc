"""podwire-agent on the nodes of a test cluster."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
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
        self.process = node.start(*_command(node), *options, log=self.log_path)  # nsenter executes the program

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]

    def get(self, page: str) -> tuple[int, str]:
        """Returns the status and the text of a page; raises OSError while nothing listens."""
        connection = http.client.HTTPConnection("agent", timeout=60)
        # A path relative to the node's root: a socket's path has at most 107 bytes.
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(f"/proc/{self.node.pid}/root/{_SOCKET}")
        with contextlib.closing(connection):
            connection.request("GET", page)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def readiness(self) -> tuple[int, str]:
        """Returns the status and the text of /readyz, (0, "") while nothing listens."""
        try:
            return self.get("/readyz")
        except OSError:
            return 0, ""

    def is_ready(self) -> bool:
        """Returns whether /readyz is 200."""
        return self.readiness()[0] == 200

    def wait_for(self, *texts: str) -> None:
        """Waits until /readyz has all texts."""
        is_reported = eventually(lambda: all(text in self.readiness()[1] for text in texts), within_s=60)
        assert is_reported, f"{texts}: {self.readiness()[1]}\n{self.log_path.read_text()[-2000:]}"

    def wait_ready(self, within_s: float = 100) -> None:
        """Waits until the agent is ready; fails the test with the reason and the log."""
        if not eventually(self.is_ready, within_s=within_s):
            log = self.log_path.read_text()[-3000:]
            raise AssertionError(f"{self.node.name} is not ready:\n{self.readiness()[1]}\n{log}")

    def metric(self, name: str) -> float:
        """Returns the value of a metric, named with its labels."""
        for line in self.get("/metrics")[1].splitlines():
            key, _, value = line.rpartition(" ")
            if key == name:
                return float(value)
        raise AssertionError(f"no metric {name}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, if the agent still runs, and returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)


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
            agent.stop(signal.SIGKILL)


def run_once(node: ClusterNode, *options: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs the agent until it ends, for --once, --dry-run and --remove; returns its outcome."""
    return node.done(*_command(node), *options, timeout_s=timeout_s)


def _command(node: ClusterNode) -> list[str]:
    options = (f"--node-name={node.name}", f"--podwire={node.tool}", f"--conf={CONF}", "--gc-interval=0")
    return [str(_PROGRAM), *options]
