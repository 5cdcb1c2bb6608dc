"""The operator's tool on a temporary host, with temporary directories for networks, cache and leases.

One rule: the tool reads nothing of the machine's configuration: each directory is an option.
"""

import json
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.support import binaries, namespaces, netstate, programs
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace
from tests.support.processes import PATH

PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
PORTS = ("--capability-args", '{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}')
_TIMEOUT_S = 60.0
_SEARCH_START = "last_reserved_ip"  # the start of host-local's next search


@dataclass(frozen=True)
class Tool:
    """`podwire` in the namespace `host`, with its files in `directory` and the plugins of `bin_dir`."""

    host: Namespace
    directory: Path
    bin_dir: Path = field(default_factory=binaries.directory)

    @property
    def cache(self) -> Path:
        """The directory of libcni's cache files."""
        return self.directory / "cache" / "results"

    @property
    def leases(self) -> Path:
        """The directory of host-local's reservations for the network "net"."""
        return self.directory / "leases" / "net"

    def configure(self, *plugins: dict[str, Any], name: str = "net", version: str = "1.1.0", **keys: Any) -> None:
        """Writes a network's list into net.d."""
        config = {"cniVersion": version, "name": name, **keys, "plugins": list(plugins)}
        (self.directory / "net.d").mkdir(exist_ok=True)
        (self.directory / "net.d" / f"{name}.conflist").write_text(json.dumps(config))

    def bridge(self, **keys: Any) -> dict[str, Any]:
        """Returns bridge's configuration in a list, with addresses of 10.22.0.0/24."""
        ipam = {"type": "host-local", "dataDir": str(self.leases.parent), "ranges": [[{"subnet": "10.22.0.0/24"}]]}
        return {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam, **keys}

    def with_scripts(self, **scripts: str) -> Self:
        """Returns the tool with plugins that are shell scripts, besides podwire's."""
        directory = programs.install(self.directory / "bin", **scripts)
        return replace(self, bin_dir=Path(f"{directory}:{binaries.directory()}"))

    def command_line(self, *words: str) -> list[str]:
        """Returns the command line with the options for the directories."""
        directories = [f"--conf-dir={self.directory}/net.d", f"--cache-dir={self.directory}/cache"]
        directories += [f"--bin-dir={self.bin_dir}"] if words[0] not in ("top", "ipam") else []  # they run no plugin
        return [str(binaries.directory() / "podwire"), *words, *directories]

    def start(self, *words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command with the options for the directories; `options` are those of subprocess.Popen."""
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.host.entered():
            process: subprocess.Popen[bytes] = subprocess.Popen(
                self.command_line(*words), env={"PATH": PATH, **(env or {})}, **{**pipes, **options}
            )
            return process

    def run(self, *words: str, env: dict[str, str] | None = None, **options: Any) -> Outcome:
        """Runs a command to its end; a traceback fails the test."""
        process = self.start(*words, env=env, **options)
        try:
            stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        assert b"Traceback" not in stderr, stderr.decode()
        return Outcome(process.returncode, stdout, stderr.decode(errors="replace"))

    def succeed(self, *words: str, **options: Any) -> str:
        """Runs a command, which must succeed, and returns its stdout."""
        done = self.run(*words, **options)
        assert done.status == 0, f"{done.stdout.decode()}{done.stderr}"
        return done.stdout.decode()

    def fail(self, status: int, *words: str, **options: Any) -> str:
        """Runs a command, which must exit with `status`, and returns its stdout and stderr."""
        done = self.run(*words, **options)
        assert done.status == status, f"{done.status}: {done.stdout.decode()}{done.stderr}"
        return done.stdout.decode() + done.stderr

    def json(self, *words: str, status: int = 0, **options: Any) -> Any:
        """Runs a command with --json and returns the document that it prints."""
        done = self.run(*words, "--json", **options)
        assert done.status == status, f"{done.status}: {done.stdout.decode()}{done.stderr}"
        return done.json

    def delete_netns(self, pod: Namespace) -> None:
        """Deletes the namespace of a pod, and waits until the kernel has deleted the pod's host veths."""
        namespaces.delete_and_wait(pod, self.host)

    def files(self) -> dict[str, bytes]:
        """Returns the content of every file in the directory, without host-local's caches.

        They are the start of the next search and the index of the reservations, which each verb may write again.
        """
        index = self.directory / "leases.podwire"
        paths = sorted(path for path in self.directory.rglob("*") if path.is_file() and path.parent != index)
        return {str(path): path.read_bytes() for path in paths if not path.name.startswith(_SEARCH_START)}

    def everything(self, *pods: Namespace) -> dict[str, Any]:
        """Returns the state of the host, the pods and the directory."""
        pod_states = {pod.name: netstate.state(pod) for pod in pods if pod.exists()}
        return {"host": netstate.state(self.host, netfilter=True), "pods": pod_states, "files": self.files()}
