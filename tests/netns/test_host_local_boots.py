"""The built host-local in containers that read another boot ID, another uptime or no /proc/sys, on the host's store.

The range is full of reservations of this boot, so no container may reclaim one of them.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import libcni
from tests.support.invocation import run_plugin

pytestmark = pytest.mark.usefixtures("root")

FULL = {"10.1.2.2": "a", "10.1.2.3": "b", "10.1.2.4": "c"}
# systemd-nspawn and LXC mount a random ID over the kernel's; the uptime's offset must be smaller than the uptime.
FAKED_ID = "mount --bind {0}/boot_id /proc/sys/kernel/random/boot_id; exec {1}"
SHIFTED = "another boot ID and uptime"
VIEWS = {
    "another boot ID": ("--mount", FAKED_ID),
    "no /proc/sys": ("--mount", "mount -t tmpfs podwire /proc/sys; exec {1}"),
    SHIFTED: ("--mount --time --fork --boottime -{2}", FAKED_ID),
}
PLAIN_VIEWS = [name for name in VIEWS if name != SHIFTED]


class Node:
    """A network with three addresses; `view` runs host-local with a container's view of the machine."""

    def __init__(self, tmp_path: Path, bin_dir: Path) -> None:
        self._store = tmp_path / "leases"
        self._host = libcni.install_with_cache(tmp_path / "host", "host-local", bin_dir=bin_dir)
        self._directory = tmp_path

    def view(self, name: str) -> Path:
        """Returns a directory with a host-local that runs in that view."""
        flags, script = VIEWS[name]
        directory = self._directory / "view"
        directory.mkdir()
        (directory / "boot_id").write_text("0f0e0d0c-0b0a-4908-8706-050403020100\n")
        uptime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME)) - 1
        values = (directory, self._host / "host-local", uptime_s)
        program = f"#!/bin/sh\nexec unshare {flags.format(*values)} sh -ec '{script.format(*values)}'\n"
        (directory / "host-local").write_text(program)
        (directory / "host-local").chmod(0o755)
        return directory

    def run(self, command: str, container_id: str, bin_dir: Path | None = None) -> Any:
        ranges = [[{"subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.4"}]]
        ipam = {"type": "host-local", "dataDir": str(self._store), "ranges": ranges}
        config = {"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": ipam}
        plugins = bin_dir or self._host
        return run_plugin("host-local", command, config, netns="/dev/null", container_id=container_id, bin_dir=plugins)

    def write_entry(self, container_id: str, netns: str) -> None:
        libcni.write_entry(self._host, "net", container_id, netns=netns)

    def leases(self) -> dict[str, str]:
        files = (self._store / "net").iterdir()
        return {file.name: file.read_text().split()[0] for file in files if file.name[0] == "1"}


@pytest.fixture
def node(tmp_path: Path, bin_dir: Path) -> Node:
    """A node with a full range."""
    node = Node(tmp_path, bin_dir)
    for name in FULL.values():
        node.run("ADD", name).result()
    return node


@pytest.mark.parametrize("cached", ["nothing", "a namespace that is missing here"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.needs("time_namespace")) if "uptime" in name else name for name in VIEWS],
)
def test_reservations_of_this_boot_are_never_reclaimed(node, name, cached):
    """On a full range a container's ADD, and then the host's, fail, and all reservations keep their owners."""
    view = node.view(name)
    if cached != "nothing":
        for owner in FULL.values():
            node.write_entry(owner, libcni.MISSING_NETNS)
    for number in range(2):
        assert "no IP addresses available" in node.run("ADD", f"new{number}", view).error()["msg"]
    assert node.run("STATUS", "", view).error()["code"] == 50
    assert "no IP addresses available" in node.run("ADD", "new").error()["msg"]
    assert node.leases() == FULL
