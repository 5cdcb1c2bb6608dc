"""A stand-in for kubectl: it records its calls, and runs the pods that it creates as processes of this machine.

`install` writes the program. `record` has a line for each call; the manifest of each pod is a file beside it. Its pods
end with the second look at them. The environment of the calls decides how it fails: STAND_IN_FAILS names a verb, and
STAND_IN_WAITS the reason for which a pod never starts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import programs

_SCRIPT = """\
import json, os, subprocess, sys
from pathlib import Path

state, words, env = Path({state!r}), sys.argv[1:], os.environ
with (state / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
verb, *names = [word for word in words if not word.startswith("--")]
if env.get("STAND_IN_FAILS") == verb:
    sys.exit("Error from server (Forbidden): pods is forbidden")
if verb == "create":
    (state / "pod.json").write_text(sys.stdin.read())
elif verb == "get" and names[0] == "nodes":
    print("node/worker-1\\nnode/worker-2")
elif verb == "get":
    looks = state / "looks"
    looks.touch()
    looks.write_text(looks.read_text() + ".")
    container = {{"state": {{"waiting": {{"reason": env.get("STAND_IN_WAITS", "ContainerCreating")}}}}}}
    status = {{"phase": "Pending", "containerStatuses": [container]}}
    if len(looks.read_text()) > 1 and not env.get("STAND_IN_WAITS"):
        (spec,) = json.loads((state / "pod.json").read_text())["spec"]["containers"]
        done = subprocess.run(spec["command"], stdout=(state / "log").open("wb"), stderr=subprocess.STDOUT, check=False)
        container["state"] = {{"terminated": {{"exitCode": done.returncode}}}}
        status["phase"] = "Failed" if done.returncode else "Succeeded"
    print(json.dumps({{"status": status}}))
elif verb == "logs":
    sys.stdout.write((state / "log").read_text())
"""


@dataclass(frozen=True)
class Kubectl:
    """The stand-in: `path` is a directory for PATH."""

    path: Path

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call."""
        return [json.loads(line) for line in (self.path / "calls").read_text().splitlines()]

    @property
    def pod(self) -> Any:
        """The manifest of the last pod."""
        return json.loads((self.path / "pod.json").read_text())


def install(directory: Path) -> Kubectl:
    """Writes the stand-in into a directory."""
    directory.mkdir()
    (directory / "kubectl.py").write_text(_SCRIPT.format(state=str(directory)))
    programs.install(directory, kubectl=f'PATH=/usr/bin:/bin exec {sys.executable} {directory}/kubectl.py "$@"')
    return Kubectl(directory)
