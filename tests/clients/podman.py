"""podman 4 with the CNI backend on a machine of its own.

One rule: it is configured as README says, in the files where an operator would, and with our plugins alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients import images
from tests.support import sockets
from tests.support.machine import BIN_DIR, Machine
from tests.support.namespaces import Namespace
from tests.support.sockets import PORT, Service

IMAGE = "localhost/box:1"
PROGRAMS = ("podman", "conmon", "runc", "crun", "busybox")

_SLEEP = ("sleep", "1000")
_SETTINGS = f"""
[containers]
log_driver = "k8s-file"
[network]
network_backend = "cni"
cni_plugin_dirs = ["{BIN_DIR}"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
_STORAGE = """
[storage]
driver = "overlay"
graphroot = "{scratch}/storage"
runroot = "/run/containers/storage"
"""


@dataclass(frozen=True)
class Container:
    """A container that runs: its namespace, and what podman tells of its networks, by their names."""

    name: str
    namespace: Namespace
    networks: dict[str, dict[str, Any]]

    def address(self, network: str = "podwire") -> str:
        """Returns its IPv4 address in a network."""
        return str(self.networks[network]["IPAddress"])


@dataclass(frozen=True)
class Podman:
    """podman on a machine, which has the image IMAGE unless it is `configured` only."""

    machine: Machine

    def __call__(self, *words: str) -> str:
        """Runs a command, which must succeed without a complaint, and returns what it printed.

        What a plugin says when a container ends is a complaint on stderr at most, the exit status is 0.
        """
        done = self.machine.done("podman", *words)
        assert (done.returncode, done.stderr) == (0, ""), f"podman {' '.join(words)}: {done.stderr or done.returncode}"
        return done.stdout.strip()

    def refused(self, *words: str) -> str:
        """Runs a command, which must fail, and returns what it says."""
        problem = self.machine.problem("podman", *words)
        assert problem, f"podman {' '.join(words)} succeeds"
        return problem

    def line(self, name: str, *options: str, network: str = "podwire", command: tuple[str, ...] = _SLEEP) -> list[str]:
        """Returns the command line that starts a container in the background."""
        words = ["run", "--detach", "--pull=never", f"--cgroup-parent=/{self.machine.cgroup}", f"--name={name}"]
        return [*words, *([f"--network={network}"] if network else []), *options, IMAGE, *command]

    def start(self, name: str, *options: str, **how: Any) -> Container:
        """Starts a container that sleeps, unless told otherwise; `how` as `line` takes it."""
        self(*self.line(name, *options, **how))
        return self.inspect(name)

    def inspect(self, name: str) -> Container:
        """Returns a container as it is now."""
        (found,) = json.loads(self("inspect", name))
        settings = found["NetworkSettings"]
        return Container(name, self.machine.namespace(settings["SandboxKey"]), settings.get("Networks", {}))

    def remove(self, *names: str) -> None:
        """Removes containers, all unless named, at once."""
        self("rm", "--force", "--time=0", *(names or ("--all",)))

    @contextmanager
    def network(self, name: str, *options: str) -> Iterator[str]:
        """Has podman define a network for the duration of the block; removing it must succeed."""
        self("network", "create", *options, name)
        try:
            yield name
        finally:
            self.remove()
            self("network", "rm", name)
            # portmap's guard of a bridge goes with the first ADD after the bridge
            self.start("next", "--publish=8080:80")
            self.remove()


@contextmanager
def serving(*containers: Container, port: int = PORT) -> Iterator[list[Service]]:
    """Yields services of TCP and UDP in containers, under their names."""
    with ExitStack() as stack:
        opened = [
            sockets.service(each.namespace, protocol, ip, port, each.name)
            for each in containers
            for protocol in ("tcp", "udp")
            for ip in ("0.0.0.0", "::")
        ]
        yield [stack.enter_context(service) for service in opened]


def installed(machine: Machine) -> Podman:
    """Configures podman on a machine and loads the image."""
    podman = configured(machine)
    images.write_archive(machine.scratch / "image.tar", IMAGE)
    podman("load", "--quiet", "--input", str(machine.scratch / "image.tar"))
    return podman


def configured(machine: Machine) -> Podman:
    """Configures podman on a machine."""
    machine.write(Path("/etc/containers/containers.conf"), _SETTINGS)
    machine.write(Path("/etc/containers/storage.conf"), _STORAGE.format(scratch=machine.scratch))
    return Podman(machine)
