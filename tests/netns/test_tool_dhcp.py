"""The operator's tool with dhcp: `ipam list` prints leases, and `doctor` checks the daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import dhcp_node
from tests.support.attaching import address
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import Node
from tests.support.doctor_node import DoctorNode


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server and daemon run."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server()
        node.start_daemon()
        yield node


@pytest.fixture
def tool(node, host, tmp_path) -> DoctorNode:
    """The tool, with the node's network in net.d."""
    tool = DoctorNode(host, tmp_path / "tool")
    (tmp_path / "tool").mkdir()
    config = node.network().config
    plugin = {key: config[key] for key in ("type", "master", "ipam")}
    tool.configure("10-net.conflist", {"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]})
    return tool


def list_leases(tool: DoctorNode) -> list[dict[str, Any]]:
    """Returns the document of `podwire ipam list`."""
    done = tool.podwire("ipam", "list", "--json")
    assert done.returncode == 0, done
    leases: list[dict[str, Any]] = json.loads(done.stdout)
    return leases


def test_list_prints_leases(node, tool, sandbox):
    """The leases of dhcp are printed with server and end, and are in the document."""
    leased = address(node.network().add(sandbox))
    (document,) = list_leases(tool)
    assert (document["address"], document["server"], document["state"]) == (leased, SERVER, "leased")
    assert (document["containerID"], document["ifname"]) == (sandbox.name, "eth0")
    assert 3500 < document["expiresInS"] <= 3600
    lines = tool.podwire("ipam", "list", "net").stdout.splitlines()
    assert " ".join(lines[0].split()) == "DHCP LEASE NETWORK CONTAINER INTERFACE POD SERVER EXPIRES STATE"
    assert lines[1].split()[:4] == [leased, "net", sandbox.name, "eth0"]
    assert re.search(r"in 5\d min", lines[1])


def test_released_by_the_next_daemon(node, tool, sandbox):
    """The lease of a pod whose DEL ran without a daemon is to be released."""
    net = node.network()
    result = net.add(sandbox)
    node.daemon.stop()
    net.run("DEL", sandbox, prev_result=result).assert_silent()
    assert [item["state"] for item in list_leases(tool)] == ["to be released"]


def test_doctor_reports_a_daemon_that_is_not_running(node, tool):
    """Without a daemon doctor reports the networks that need it, once."""
    assert [one for one in tool.list_findings() if "dhcp" in one["name"]] == []
    node.daemon.stop()
    (unreachable,) = [one for one in tool.list_findings() if "dhcp.sock" in one["text"]]
    assert (unreachable["name"], unreachable["subject"]) == ("dhcp-daemon-unreachable", "net")
    assert f"/opt/cni/bin/dhcp daemon -socketpath {node.socket}" in unreachable["cure"]
