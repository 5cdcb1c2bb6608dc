"""The operator's tool on a throwaway host: networks in a net.d of its own, a cache and leases beside it.

One rule: nothing of the machine's configuration is read: each directory is given by an option.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import binaries, namespaces, netstate
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace
from tests.support.processes import PATH

PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
_TIMEOUT_S = 60.0
_OUR_NOTES = "last_reserved_ip"  # where host-local's next search begins


@dataclass(frozen=True)
class Tool:
    """`podwire` as it is run in the namespace `host`, with all it knows in `directory`; plugins are of `bin_dir`."""

    host: Namespace
    directory: Path
    bin_dir: Path = field(default_factory=binaries.directory)

    @property
    def cache(self) -> Path:
        """Where libcni's entries are."""
        return self.directory / "cache" / "results"

    @property
    def leases(self) -> Path:
        """Where host-local's reservations of the network "net" are."""
        return self.directory / "leases" / "net"

    def configure(self, *plugins: dict[str, Any], name: str = "net", version: str = "1.1.0", **keys: Any) -> None:
        """Puts a list into net.d."""
        config = {"cniVersion": version, "name": name, **keys, "plugins": list(plugins)}
        (self.directory / "net.d").mkdir(exist_ok=True)
        (self.directory / "net.d" / f"{name}.conflist").write_text(json.dumps(config))

    def bridge(self, **keys: Any) -> dict[str, Any]:
        """Returns bridge's part of a list, with addresses of 10.22.0.0/24."""
        ipam = {"type": "host-local", "dataDir": str(self.leases.parent), "ranges": [[{"subnet": "10.22.0.0/24"}]]}
        return {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam, **keys}

    def start(self, *words: str, env: dict[str, str] | None = None, **how: Any) -> subprocess.Popen[bytes]:
        """Starts a command with the options that name the directories; `how` as subprocess takes it."""
        options = [f"--conf-dir={self.directory}/net.d", f"--bin-dir={self.bin_dir}"]
        options += [f"--cache-dir={self.directory}/cache"]
        line = [str(binaries.directory() / "podwire"), *words, *options]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.host.entered():
            return subprocess.Popen(line, env={"PATH": PATH, **(env or {})}, **pipes, **how)

    def run(self, *words: str, env: dict[str, str] | None = None, **how: Any) -> Outcome:
        """Runs a command to its end; a traceback fails the test."""
        process = self.start(*words, env=env, **how)
        try:
            stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        assert b"Traceback" not in stderr, stderr.decode()
        return Outcome(process.returncode, stdout, stderr.decode(errors="replace"))

    def succeed(self, *words: str, **how: Any) -> str:
        """Runs a command, which must succeed, and returns what it printed."""
        done = self.run(*words, **how)
        assert done.status == 0, f"{done.stdout.decode()}{done.stderr}"
        return done.stdout.decode()

    def fail(self, status: int, *words: str, **how: Any) -> str:
        """Runs a command, which must end with `status`, and returns all that it printed."""
        done = self.run(*words, **how)
        assert done.status == status, f"{done.status}: {done.stdout.decode()}{done.stderr}"
        return done.stdout.decode() + done.stderr

    def json(self, *words: str, status: int = 0, **how: Any) -> Any:
        """Runs a command with --json and returns its document."""
        done = self.run(*words, "--json", **how)
        assert done.status == status, f"{done.status}: {done.stdout.decode()}{done.stderr}"
        return done.json

    def delete_netns(self, pod: Namespace) -> None:
        """Removes the namespace of a pod, and waits until the kernel has taken away what was in it."""
        namespaces.delete_and_wait(pod, self.host)

    def files(self) -> dict[str, bytes]:
        """Returns every file below the directory with its content, but host-local's notes on where to go on."""
        paths = sorted(path for path in self.directory.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in paths if not path.name.startswith(_OUR_NOTES)}

    def everything(self, *pods: Namespace) -> dict[str, Any]:
        """Returns all there is on the host, in the pods and in the directory."""
        inside = {pod.name: netstate.state(pod) for pod in pods if pod.exists()}
        return {"host": netstate.state(self.host, netfilter=True), "pods": inside, "files": self.files()}
