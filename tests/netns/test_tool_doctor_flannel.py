"""A network of flannel, whose list has no range: the tool reads the node's subnets where flannel's plugin does."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import binaries, flannel
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, Tool

RANGE = "10.42.3.1-10.42.3.14"
_WRONG = ("problem", "warning")


@pytest.fixture(params=["1.0.0", "1.1.0"])
def node(request: pytest.FixtureRequest, tool: Tool) -> Tool:
    """A node of flannel with thirteen addresses; flannel's plugin is a stand-in."""
    flannel.install(tool.directory / "bin")
    env = tool.directory / "subnet.env"
    env.write_text(flannel.subnet_env("10.42.3.1/28"))
    listed = {
        "type": "flannel",
        "subnetFile": str(env),
        "dataDir": str(tool.directory / "kept"),
        "ipam": {"dataDir": str(tool.leases.parent)},
        "delegate": {"hairpinMode": True, "isDefaultGateway": True},
    }
    tool.configure(listed, PORTMAP, version=request.param)
    return replace(tool, bin_dir=Path(f"{tool.directory}/bin:{binaries.directory()}"))


def faults(node: Tool) -> dict[str, dict[str, str]]:
    """Returns doctor's problems and warnings by their names, without those of the machine's runtimes."""
    checks = node.run("doctor", "--json").json["checks"]
    return {one["name"]: one for one in checks if one["severity"] in _WRONG and one["group"] != "runtime"}


def test_full_range_of_flannel(node: Tool, new_sandbox: Callable[[], Namespace]):
    """All commands report a full range and its leaked addresses, and the one in ADD's error releases these.

    The running pods keep their addresses; afterwards ADD succeeds.
    """
    running, stopped = new_sandbox(), new_sandbox()
    for pod in (running, stopped):
        node.succeed("add", "net", pod.name, "--container-id", pod.name)
    assert faults(node) == {}, faults(node)
    assert "10.42.3.2" in node.succeed("ipam", "list", "net")
    node.delete_netns(stopped)
    (node.cache / f"net-{stopped.name}-eth0").unlink()
    for number in range(4, 15):
        (node.leases / f"10.42.3.{number}").write_text("kept for the printer")
    for file in node.leases.glob("10.*"):
        os.utime(file, (1, 1))
    late = new_sandbox()
    error = node.fail(1, "add", "net", late.name, "--container-id", late.name)
    assert f"no IP addresses available in range set: {RANGE}" in error
    assert "no IP addresses available" in node.fail(1, "status", "net")
    full = faults(node)["range-full"]
    assert (full["subject"], full["cure"].split()[:3]) == ("net", ["podwire", "gc", "net"])
    assert f"range {RANGE}: 13 of 13" in full["text"]
    metrics = node.succeed("metrics")
    assert re.search(rf'podwire_ipam_addresses_used{{.*range="{RANGE}".*}} 13\n', metrics), metrics
    assert re.search(rf'podwire_ipam_addresses_leaked{{.*range="{RANGE}".*}} 1\n', metrics), metrics
    assert "13 of 13 addresses" in node.fail(1, "ipam", "verify", "net")
    assert "would release 1 address" in node.succeed("gc", "net", "--dry-run")
    (command,) = re.findall(r"podwire (ipam free --gone \S+)", error)
    assert node.json(*command.split())["freed"][0]["address"] == "10.42.3.3"
    node.succeed("add", "net", late.name, "--container-id", late.name)
    assert sorted(file.name for file in node.leases.glob("10.*"))[-1] == "10.42.3.9"


@pytest.mark.parametrize("text", [None, "FLANNEL_SUBNET=10.42.3.1\nFLANNEL_MTU=x\n"])
def test_node_without_a_subnet_of_flannel(node: Tool, text: str | None):
    """A file of flannel's daemon that is missing, or has no subnet, is a problem, and metrics do not fail."""
    env = node.directory / "subnet.env"
    env.unlink()
    if text:
        env.write_text(text)
    finding = faults(node)["flannel-subnet-missing"]
    assert finding["subject"] == "net"
    assert finding["text"].startswith(f"{env} {'names no subnet' if text else 'does not exist'}")
    node.succeed("metrics")
