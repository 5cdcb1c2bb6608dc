"""containerd on a machine of its own, with `ctr` as its client.

One rule: containerd's CRI is disabled; `ctr run --cni` runs the plugins, with /etc/cni/net.d and /opt/cni/bin.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.clients import images
from tests.support.machine import Machine, eventually
from tests.support.namespaces import Namespace

IMAGE = "localhost/box:1"
PROGRAMS = ("containerd", "ctr", "runc", "busybox")

_SETTINGS = """
version = 2
root = "{scratch}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
"""


@dataclass(frozen=True)
class Ctr:
    """`ctr` on a machine whose containerd is running and has the image IMAGE."""

    machine: Machine
    version: tuple[int, ...]

    def __call__(self, *words: str) -> str:
        """Runs a command, which must succeed, and returns what it printed."""
        return self.machine.run("ctr", *words).strip()

    def line(self, name: str, *options: str, command: tuple[str, ...] = ("true",)) -> list[str]:
        """Returns the command line that runs a container."""
        return ["run", f"--cgroup=/{self.machine.cgroup}/{name}", *options, IMAGE, name, *command]

    def start(self, name: str) -> Namespace:
        """Starts a container on the network, in the background, and returns its namespace."""
        self(*self.line(name, "--detach", "--cni", command=("sleep", "1000")))
        (pid,) = [line.split()[1] for line in self("tasks", "list").splitlines() if line.split()[0] == name]
        return self.machine.namespace(f"/proc/{pid}/ns/net")

    def remove(self, name: str) -> None:
        """Kills a container and removes it; ctr runs DEL since 1.7."""
        self("tasks", "kill", "--signal=KILL", name)
        assert eventually(lambda: self.machine.succeeds("ctr", "tasks", "delete", name)), name
        self("containers", "delete", name)


@contextmanager
def running(machine: Machine) -> Iterator[Ctr]:
    """Runs containerd on a machine for the duration of the block, with the image."""
    settings = machine.scratch / "containerd.toml"
    settings.write_text(_SETTINGS.format(scratch=machine.scratch))
    images.write_archive(machine.scratch / "image.tar", IMAGE)
    with machine.running("containerd", f"--config={settings}"):
        log = Path(machine.scratch, "containerd.log")
        assert eventually(lambda: machine.succeeds("ctr", "version")), log.read_text()
        machine.run("ctr", "images", "import", str(machine.scratch / "image.tar"))
        yield Ctr(machine, version(machine))


def version(machine: Machine) -> tuple[int, ...]:
    """Returns the version of the machine's containerd."""
    output = machine.run("containerd", "--version")  # "containerd github.com/containerd/containerd/v2 2.1.9+unknown"
    return tuple(map(int, re.findall(r" (\d+)\.(\d+)\.(\d+)", output)[0]))
