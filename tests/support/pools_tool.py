"""The operator's tool beside an agent's HTTP server, which has a double of the store behind it.

One rule: the tool is the built executable, and the server is the agent's own; only the store is a double.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent import http_server
from tests.support import binaries
from tests.support.admin_world import World
from tests.support.namespaces import Namespace
from tests.support.node import Done
from tests.support.processes import PATH

_TIMEOUT_S = 60
_WITH_PLACES = ("who", "verify")


@dataclass(frozen=True)
class PoolsTool:
    """`podwire ipam` on `host`, whose files are in `directory`; the agent listens on `socket`."""

    host: Namespace
    directory: Path
    world: World

    @property
    def socket(self) -> str:
        """The path of the agent's socket."""
        return str(self.directory / "agent.sock")

    def run(self, *words: str, stdin: str = "", before: tuple[str, ...] = ()) -> Done:
        """Runs `podwire ipam` with these words and stdin; a traceback fails the test."""
        options = [f"--socket={self.socket}"]
        if words[0] in _WITH_PLACES:
            options += [f"--conf-dir={self.directory}/net.d", f"--data-dir={self.directory}/leases"]
            options += [f"--cache-dir={self.directory}"]
        line = [*before, str(binaries.directory() / "podwire"), "ipam", words[0], *options, *words[1:]]
        with self.host.entered():
            done = subprocess.run(
                line, input=stdin, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env={"PATH": PATH}
            )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def text(self, *words: str, status: int = 0, **how: Any) -> str:
        """Returns stdout and stderr of a command that ends with a status."""
        done = self.run(*words, **how)
        assert done.status == status, done
        return done.stdout + done.stderr

    def json(self, *words: str, status: int = 0) -> Any:
        """Returns the document of a command with --json."""
        done = self.run(*words, "--json")
        assert (done.status, done.stderr) == (status, ""), done
        return done.json

    def run_printed(self, command: str, **how: Any) -> Done:
        """Runs a command that a message has printed."""
        program, name, *words = command.split()
        assert (program, name) == ("podwire", "ipam"), command
        return self.run(*words, **how)

    def write_pools(self, *pools: dict[str, object]) -> str:
        """Writes a file of pools; returns its path."""
        path = self.directory / "pools.json"
        path.write_text(json.dumps({"pools": list(pools)}))
        return str(path)


def printed(pattern: str | re.Pattern[str], text: str) -> str:
    """Returns the last command of a form that a text contains; one that is missing fails the test."""
    commands = re.findall(pattern, text)
    assert commands, text
    return str(commands[-1])


@contextmanager
def serving(host: Namespace, directory: Path, world: World) -> Iterator[PoolsTool]:
    """Serves a world on a socket in `directory` while it is a context."""
    (directory / "results").mkdir(parents=True)
    (directory / "net.d").mkdir()
    tool = PoolsTool(host, directory, world)
    server = http_server.start(tool.socket, world.admin.pages(), world.admin.actions())
    try:
        yield tool
    finally:
        server.shutdown()
        server.socket.close()
