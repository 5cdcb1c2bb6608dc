"""Doctor's check of the plugins' STATUS for networks whose addresses come from pools."""

from __future__ import annotations

import json
import os

import pytest

from podwire.doctor.finding import Finding, Severity
from podwire.doctor.node import Node
from podwire.main import PLUGINS
from tests.support.unit_node import run_check


@pytest.fixture
def find(tmp_path, monkeypatch):
    """A function that returns the findings of STATUS for a network with a configuration of host-local."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def run(**keys: object) -> list[Finding]:
        ipam = {"type": "host-local", "dataDir": str(tmp_path / "leases"), **keys}
        network = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "dummy", "ipam": ipam}]}
        (tmp_path / "10.conflist").write_text(json.dumps(network))
        node = Node(PLUGINS, {}, str(tmp_path), (str(tmp_path / "bin"),), str(tmp_path / "cni"))
        node.runtimes = ()
        return run_check(node, "status")

    return run


def test_a_network_without_granted_blocks_is_not_ready(find):
    """With "pool" STATUS of host-local runs: without granted blocks each ADD fails."""
    (finding,) = find(pool="default")
    assert (finding.name, finding.severity) == ("not-ready", Severity.PROBLEM)
    assert "network net has no addresses yet: no " in finding.text  # also where the kernel lacks dummy interfaces


def test_status_of_host_local_does_not_run_without_a_pool(find, tmp_path):
    """With "subnet" the store is not used, even if ADD could not use it: another check reports that."""
    (tmp_path / "leases").write_text("not a directory")
    findings = find(subnet="10.9.0.0/24")
    assert not any(str(tmp_path) in one.text for one in findings)  # a kernel without dummy interfaces is a finding
