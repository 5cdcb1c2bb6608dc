"""A node of unit tests for doctor's checks: a directory with one network, and no runtimes."""

from __future__ import annotations

from pathlib import Path

from podwire.doctor.checks import CHECKS
from podwire.doctor.finding import Finding, Severity
from podwire.doctor.node import Node
from podwire.main import PLUGINS

LIST = '{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local", %s}}]}'


def new_node(directory: Path) -> Node:
    """Creates a node with one network, its store below a directory."""
    conf_dir = directory / "net.d"
    conf_dir.mkdir()
    (conf_dir / "10.conflist").write_text(LIST % f'"subnet": "10.9.0.0/24", "dataDir": "{directory}/leases"')
    node = Node(PLUGINS, {}, str(conf_dir), (str(directory / "bin"),), str(directory / "cni"))
    node.runtimes = ()  # ignores the runtimes of the machine that runs the tests
    return node


def run_check(node: Node, name: str) -> list[Finding]:
    """Runs a check and returns its findings, without those of severity OK."""
    check = next(check for check in CHECKS if check.name == name)
    return [one for one in check.run(node) if one.severity is not Severity.OK]
