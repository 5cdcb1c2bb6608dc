"""The network of docs/multus.md, attached like Multus attaches a pod's second interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import netstate
from tests.support.markdown import DOCS, Document
from tests.support.multus import Multus
from tests.support.namespaces import Namespace


def definition() -> dict[str, Any]:
    """Returns the configuration in the page's NetworkAttachmentDefinition."""
    manifests = (yaml.safe_load(block) for block in Document(DOCS / "multus.md").blocks("yaml"))
    (config,) = (item["spec"]["config"] for item in manifests if item.get("kind") == "NetworkAttachmentDefinition")
    parsed: dict[str, Any] = json.loads(config)
    return parsed


@pytest.fixture
def multus(bin_dir: Path, host: Namespace, tmp_path: Path) -> Multus:
    """Multus on a host, with the definition of the page."""
    return Multus(host, definition(), tmp_path)


def test_the_definition_attaches_a_second_network(multus: Multus, host: Namespace, sandbox: Namespace, network: Any):
    """The pod gets net1 with the definition's address and no second default route; DEL deletes it."""
    network.add(sandbox)
    host.ip("link", "add", "br-storage", "type", "bridge")
    host.ip("link", "set", "br-storage", "up")
    before = netstate.state(host), netstate.state(sandbox)
    result = multus.add(sandbox)
    multus.check(sandbox, result)
    assert [ip["address"] for ip in result["ips"]] == ["10.56.0.20/24"]
    assert {"eth0", "net1"} <= netstate.links(sandbox).keys()
    assert netstate.links(host)[result["interfaces"][1]["name"]]["master"] == "br-storage"
    assert sandbox.ip("route", "show", "default").count("default") == 1
    assert "10.57.0.0/16 via 10.56.0.1 dev net1" in sandbox.ip("route")
    multus.delete(sandbox)
    assert (netstate.state(host), netstate.state(sandbox)) == before


def test_the_tool_reads_multus_cache(
    multus: Multus, host: Namespace, sandbox: Namespace, bin_dir: Path, tmp_path: Path
):
    """`podwire show` with Multus' cache lists the second interface with network, name and address."""
    multus.add(sandbox)
    directories = {"cache-dir": multus.cache, "conf-dir": tmp_path, "data-dir": tmp_path / "leases"}
    options = [f"--{name}={path}" for name, path in directories.items()]
    (pod,) = json.loads(host.run(str(bin_dir / "podwire"), "show", "--json", *options))["attachments"]
    assert (pod["network"], pod["ifname"], pod["addresses"]) == ("storage", "net1", ["10.56.0.20/24"])
    multus.delete(sandbox)
