"""An API server that gives no answer: the node is not ready after a minute, and not before."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from tests.support.agent_nodes import SERVER
from tests.support.binaries import ROOT
from tests.support.cluster_world import World, world
from tests.support.machine import eventually

pytestmark = pytest.mark.timeout(1000)
PORT = 6443
LIMIT_S = 600.0  # a minute, and room for a slow machine
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


@pytest.mark.long
def test_a_server_without_answers(tmp_path: Path):
    """Dropped packets, a stopped server and answers 403 end readiness after a minute; a quiet server does not."""
    with world(tmp_path, count=4, pods=False) as created, proxied(created) as proxy:
        created.server.bookmark_s = 3600.0
        (tmp_path / "refused").write_text("refused\n")
        created.server.tokens["refused"] = None
        created.restart(2, f"--server=https://{SERVER}:{PORT}")
        created.restart(3, f"--token-file={tmp_path / 'refused'}")
        quiet, *others = created.agents
        for agent in created.agents:
            agent.wait_ready()
        with created.fabric.entered():
            subprocess.run(["nft", "-f", "-"], input=HOLE % created.nodes[1].addresses[0], text=True, check=True)
        os.kill(proxy.pid, signal.SIGSTOP)
        created.server.tokens["refused"] = frozenset({"get pods"})
        created.server.cut_watches()
        assert not eventually(lambda: not all(agent.is_ready() for agent in others), within_s=20)
        for agent in others:
            assert eventually(lambda: not agent.is_ready(), within_s=LIMIT_S)  # noqa: B023
        assert quiet.is_ready(), quiet.readiness()
        others[-1].wait_for("403")
        with created.fabric.entered():
            subprocess.run(["nft", "delete", "table", "inet", "hole"], check=True)
        os.kill(proxy.pid, signal.SIGCONT)
        created.server.tokens["refused"] = None
        assert all(eventually(agent.is_ready, within_s=300) for agent in created.agents)
