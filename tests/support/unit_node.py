"""A node of unit tests for doctor's checks: a directory with one network, and no runtimes."""

import json
from pathlib import Path
from typing import Any

from podwire.doctor.checks import CHECKS
from podwire.doctor.finding import Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.layers import Layer
from podwire.main import PLUGINS
from podwire.node.records import Directories


def network(kind: str = "bridge", version: str = "1.0.0", name: str = "net", **ipam: Any) -> str:
    """Returns a list of one plugin with an IPAM plugin, by default host-local with a subnet."""
    keys = {"type": "host-local", **(ipam or {"subnet": "10.9.0.0/24"})}
    return json.dumps({"cniVersion": version, "name": name, "plugins": [{"type": kind, "ipam": keys}]})


def new_node(directory: Path, kind: str = "bridge", **ipam: Any) -> CheckedNode:
    """Creates a node with one network, its store below a directory."""
    conf_dir = directory / "net.d"
    conf_dir.mkdir()
    keys = {"subnet": "10.9.0.0/24", "dataDir": f"{directory}/leases", **ipam}
    (conf_dir / "10.conflist").write_text(network(kind, **{key: value for key, value in keys.items() if value}))
    directories = Directories(str(conf_dir), (Layer(str(directory / "cni")),))
    node = CheckedNode(PLUGINS, {}, directories, (str(directory / "bin"),))
    node.runtimes = ()  # ignores the runtimes of the machine that runs the tests
    return node


def run_check(node: CheckedNode, name: str) -> list[Finding]:
    """Runs a check and returns its findings, without those of severity OK."""
    check = next(check for check in CHECKS if check.name == name)
    return [one for one in check.run(node) if one.severity is not Severity.OK]
