"""podman 4 with its CNI backend, on a private machine.

One rule: podman is configured as README says, in an operator's files, and uses only podwire's plugins.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients import images
from tests.support import netstate, sockets
from tests.support.machine import BIN_DIR, CONF_DIR, Machine
from tests.support.namespaces import Namespace
from tests.support.sockets import PORT, Service

IMAGE = "localhost/box:1"
PROGRAMS = ("podman", "conmon", "runc", "crun", "busybox")

_WITHOUT_CNI = "cni support is not enabled in this build"
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
    """A running container: its namespace, and podman's description of its networks, by their names."""

    name: str
    namespace: Namespace
    networks: dict[str, dict[str, Any]]

    def address(self, network: str = "podwire") -> str:
        """Returns its IPv4 address in a network."""
        return str(self.networks[network]["IPAddress"])

    def both(self, network: str) -> tuple[str, str]:
        """Returns its addresses of both families in a network, as podman reports them."""
        settings = self.networks[network]
        return settings["IPAddress"], settings["GlobalIPv6Address"]

    def addresses(self, ifname: str = "eth0") -> list[str]:
        """Returns the addresses of an interface, with their prefixes."""
        entries = netstate.links(self.namespace)[ifname]["addresses"]
        return [f"{entry['local']}/{entry['prefixlen']}" for entry in entries]


@dataclass(frozen=True)
class Podman:
    """podman on a machine; it has the image IMAGE unless only `configure` was called."""

    machine: Machine

    def __call__(self, *words: str) -> str:
        """Runs a command, which must succeed without a message on stderr, and returns its output.

        A plugin's failure when a container ends appears only on stderr; the exit status is 0.
        """
        done = self.machine.done("podman", *words)
        assert (done.returncode, done.stderr) == (0, ""), f"podman {' '.join(words)}: {done.stderr or done.returncode}"
        return done.stdout.strip()

    def fail(self, *words: str) -> str:
        """Runs a command, which must fail, and returns its message."""
        problem = self.machine.problem("podman", *words)
        assert problem, f"podman {' '.join(words)} succeeds"
        return problem

    def line(self, name: str, *options: str, network: str = "podwire", command: tuple[str, ...] = _SLEEP) -> list[str]:
        """Returns the command line that starts a container in the background."""
        words = ["run", "--detach", "--pull=never", f"--cgroup-parent=/{self.machine.cgroup}", f"--name={name}"]
        return [*words, *([f"--network={network}"] if network else []), *options, IMAGE, *command]

    def start(self, name: str, *options: str, **line_options: Any) -> Container:
        """Starts a container that sleeps by default; `line_options` as in `line`."""
        self(*self.line(name, *options, **line_options))
        return self.inspect(name)

    def inspect(self, name: str) -> Container:
        """Returns a container with its present state."""
        (description,) = json.loads(self("inspect", name))
        settings = description["NetworkSettings"]
        return Container(name, self.machine.namespace(settings["SandboxKey"]), settings.get("Networks", {}))

    def remove(self, *names: str) -> None:
        """Removes these containers, by default all, without waiting for their programs."""
        self("rm", "--force", "--time=0", *(names or ("--all",)))

    def plugins(self, network: str) -> list[dict[str, Any]]:
        """Returns the plugins in the file of a network that podman has created."""
        plugins: list[dict[str, Any]] = json.loads(self.machine.run("cat", str(CONF_DIR / f"{network}.conflist")))[
            "plugins"
        ]
        return plugins

    @contextmanager
    def network(self, name: str, *options: str) -> Iterator[str]:
        """Creates a podman network for the duration of the block; removing it must succeed."""
        self("network", "create", *options, name)
        try:
            yield name
        finally:
            self.remove()
            self("network", "rm", name)
            # the first ADD after a bridge was deleted removes portmap's guard of that bridge
            self.start("next", "--publish=8080:80")
            self.remove()


@contextmanager
def serving(*containers: Container, port: int = PORT) -> Iterator[list[Service]]:
    """Yields TCP and UDP services in containers, under the containers' names."""
    with ExitStack() as stack:
        opened = [
            sockets.service(each.namespace, protocol, ip, port, each.name)
            for each in containers
            for protocol in ("tcp", "udp")
            for ip in ("0.0.0.0", "::")
        ]
        yield [stack.enter_context(service) for service in opened]


def configure_with_image(machine: Machine) -> Podman:
    """Configures podman on a machine and loads the image."""
    podman = configure(machine)
    images.write_archive(machine.scratch / "image.tar", IMAGE)
    podman("load", "--quiet", "--input", str(machine.scratch / "image.tar"))
    return podman


def configure(machine: Machine) -> Podman:
    """Configures podman on a machine; skips the test with a podman 5 that was built without CNI."""
    machine.write(Path("/etc/containers/containers.conf"), _SETTINGS)
    machine.write(Path("/etc/containers/storage.conf"), _STORAGE.format(scratch=machine.scratch))
    if _WITHOUT_CNI in machine.problem("podman", "info"):
        pytest.skip(f"podman: {_WITHOUT_CNI}")
    return Podman(machine)
