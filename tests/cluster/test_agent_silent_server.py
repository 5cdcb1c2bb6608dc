"""An API server that gives no answer: the node is not ready after a minute, and neither before nor much later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from tests.support.agent_nodes import SERVER
from tests.support.binaries import ROOT
from tests.support.cluster_agent import Agent
from tests.support.cluster_world import World, world
from tests.support.machine import eventually

pytestmark = pytest.mark.timeout(400)
PORT = 6443
LIMIT_S = 75.0  # a minute, the seconds between two checks, and room for a slow machine
HOLE = "table inet hole { chain input { type filter hook input priority 0; ip saddr %s drop; }; }"


@contextmanager
def proxied(created: World) -> Iterator[Popen[bytes]]:
    """Starts a proxy of the API server, a process of its own that can be stopped."""
    line = [sys.executable, "-m", "tests.support.cutting_proxy", created.server.url, SERVER, str(PORT)]
    with created.fabric.entered():
        proxy = Popen(line, cwd=ROOT)
    try:
        yield proxy
    finally:
        proxy.kill()
        proxy.wait()


def start_again(created: World, number: int, *options: str) -> Agent:
    """Starts the agent of a node again with other options."""
    created.agents[number].stop()
    replaced = tuple(option.partition("=")[0] for option in options)
    kept = [option for option in created.options if not option.startswith(replaced)]
    created.agents[number] = Agent(created.nodes[number], *kept, *options)
    return created.agents[number]


def drop_packets(created: World, address: str) -> None:
    with created.fabric.entered():
        subprocess.run(["nft", "-f", "-"], input=HOLE % address, text=True, check=True)


def test_a_server_without_answers(tmp_path: Path):
    """Dropped packets, a stopped server and answers 403 end readiness after a minute; a quiet server does not."""
    with world(tmp_path, count=4, pods=False) as created, proxied(created) as proxy:
        created.server.bookmark_s = 3600.0
        (tmp_path / "refused").write_text("refused\n")
        created.server.tokens["refused"] = None
        quiet, dropped = created.agents[:2]
        stopped = start_again(created, 2, f"--server=https://{SERVER}:{PORT}")
        refused = start_again(created, 3, f"--token-file={tmp_path / 'refused'}")
        for agent in created.agents:
            agent.wait_ready()
        began = time.monotonic()
        drop_packets(created, created.nodes[1].addresses[0])
        os.kill(proxy.pid, signal.SIGSTOP)
        created.server.tokens["refused"] = frozenset({"get pods"})
        created.server.cut_watches()
        ready = {"dropped": dropped, "stopped": stopped, "refused": refused}
        after_s = {}
        while ready and time.monotonic() - began < LIMIT_S + 60:
            for name, agent in tuple(ready.items()):
                if not agent.is_ready():
                    after_s[name] = time.monotonic() - began
                    del ready[name]
            assert quiet.is_ready(), quiet.ready_text()
            time.sleep(0.5)
        print({name: f"{seconds:.1f} s" for name, seconds in after_s.items()})
        assert not ready
        assert all(20 < seconds < LIMIT_S for seconds in after_s.values()), after_s
        assert "403" in refused.ready_text()
        with created.fabric.entered():
            subprocess.run(["nft", "delete", "table", "inet", "hole"], check=True)
        os.kill(proxy.pid, signal.SIGCONT)
        created.server.tokens["refused"] = None
        assert all(eventually(agent.is_ready, within_s=100) for agent in created.agents)
