"""The network of docs/multus.md, attached like Multus attaches a pod's second interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import libcni, netstate
from tests.support.invocation import Config, Outcome, run_plugin
from tests.support.markdown import DOCS, Document
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList

POD_ARGS = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"


def definition() -> dict[str, Any]:
    """Returns the configuration in the page's NetworkAttachmentDefinition."""
    manifests = (yaml.safe_load(block) for block in Document(DOCS / "multus.md").blocks("yaml"))
    (config,) = (item["spec"]["config"] for item in manifests if item.get("kind") == "NetworkAttachmentDefinition")
    parsed: dict[str, Any] = json.loads(config)
    return parsed


class Multus:
    """Runs the definition's plugins as Multus does, and stores the result in its cache."""

    def __init__(self, host: Namespace, directory: Path) -> None:
        config = definition()
        for plugin in config["plugins"]:
            if "ipam" in plugin:
                plugin["ipam"]["dataDir"] = str(directory / "leases")
        self.host, self.config = host, config
        self.cache = directory / "cache"  # /var/lib/cni/multus on a node
        (self.cache / "results").mkdir(parents=True)
        self.list = NetworkList(config["name"], config["cniVersion"], tuple(config["plugins"]))

    def add(self, pod: Namespace) -> dict[str, Any]:
        """Adds `net1` and writes the result to the cache."""
        result = self.list.add(self._run(pod))
        libcni.write_entry(
            self.cache,
            self.list.name,
            pod.name,
            netns=pod.path,
            ifname="net1",
            result=result,
            config=self.config,
        )
        return result

    def check(self, pod: Namespace, result: dict[str, Any]) -> None:
        """Checks `net1`."""
        self.list.check(self._run(pod), result)

    def delete(self, pod: Namespace) -> None:
        """Deletes `net1` with the cached result, then the cache entry."""
        (path,) = (self.cache / "results").iterdir()
        self.list.delete(self._run(pod), json.loads(path.read_text())["result"])
        path.unlink()

    def _run(self, pod: Namespace) -> Any:
        def run(plugin: str, command: str, config: Config) -> Outcome:
            how = {"netns": pod, "ifname": "net1", "container_id": pod.name, "args": POD_ARGS}
            return run_plugin(plugin, command, config, host=self.host, **how)

        return run


@pytest.fixture
def multus(bin_dir: Path, host: Namespace, tmp_path: Path) -> Multus:
    """Multus on a host, with the definition of the page."""
    return Multus(host, tmp_path)


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


def test_version_of_the_page_is_supported(bin_dir: Path):
    """The plugins of the definition's list support its cniVersion."""
    config = definition()
    for plugin in config["plugins"]:
        answer = run_plugin(plugin["type"], "VERSION", json.dumps({"cniVersion": config["cniVersion"]}).encode())
        assert config["cniVersion"] in answer.result()["supportedVersions"]
