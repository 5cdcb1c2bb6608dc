"""The commands of docs/moving.md work as printed, and its table states what the reference 1.1.1 does.

One rule: commands and keys are read from the page.
"""

import contextlib
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from process.version import __version__
from tests.clients import podman as podman_client
from tests.clients.attaching import bridge, host_local
from tests.clients.test_moving import BRIDGE, Node
from tests.support import namespaces, netstate
from tests.support.hostports import ports
from tests.support.invocation import run_plugin
from tests.support.markdown import DOCS, Document
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList, Run
from tests.support.processes import output
from tests.support.samples import create_interfaces

HOST_ACCESS_PROTOCOL = "112"  # of the host's routes to pods, with `hostAccess`
PAGE = Document(DOCS / "moving.md")
BEFORE, STEP, AFTER, BACK, CLEANING = PAGE.blocks("sh")
KEYS = next(table for table in PAGE.tables() if "DEL of podwire's pods" in table[0])
IGNORED = next(table for table in PAGE.tables() if "key without effect" in table[0])
KEYS += [
    dict(zip(KEYS[0], (row["key without effect"], "go without", "succeeds", "nothing"), strict=True)) for row in IGNORED
]


def test_commands_of_the_page_work(empty_machine, needs_programs, bin_dir, reference):
    """From the archive to the installed plugins, and back to the reference, an older pod keeps running and can end."""
    needs_programs(*podman_client.PROGRAMS)
    node = Node(empty_machine, bin_dir, BRIDGE)
    directory = empty_machine.scratch / "archive"
    directory.mkdir()
    output("tar", "-C", str(bin_dir), "-czf", str(directory / f"podwire-{__version__}-linux-amd64.tgz"), ".")
    path = "PATH=/opt/cni/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    def run_blocks(*blocks: str) -> str:
        text: str = empty_machine.run("env", "-C", str(directory), path, "sh", "-ec", "\n".join(blocks))
        return text

    before = empty_machine.run("sh", "-c", "cd /opt/cni/bin; sha256sum *")
    node.start("old", 8001)
    printed = run_blocks(BEFORE, STEP)
    assert "0 problems, 0 warnings" in printed
    assert "dry run: replace /opt/cni/bin/bridge" in printed
    assert node.installed_plugins() == "podwire"
    assert {"dhcp", "podwire", ".podwire-replaced"} <= set(empty_machine.run("ls", "-A", "/opt/cni/bin").split())
    printed = run_blocks(AFTER)
    assert re.search(r"^net +\w+ +old .* ok$", printed, re.MULTILINE)
    assert "0 problems, 0 warnings" in printed
    node.start("new", 8002)
    run_blocks(BACK)
    assert empty_machine.run("sh", "-c", "cd /opt/cni/bin; sha256sum *") == before
    node.podman.remove()
    run_blocks(CLEANING)
    assert empty_machine.leftovers(links=["cni0"]) == []


def build_network(row: dict[str, str], store: Path) -> NetworkList:
    """Returns a network with the key of a row; its pod has a host port."""
    plugin, _, fragment = row["key"].partition(" `") if row["key"][0] != "`" else ("list", "", row["key"][1:])
    keys: dict[str, Any] = json.loads("{" + fragment.strip("`") + "}") if ":" in fragment else {}
    if "logFile" in keys:
        keys = {"logFile": str(store / "log")}
    ipam = {**host_local("10.22.0.0/24"), "dataDir": str(store)}
    plugins: list[dict[str, Any]] = [
        bridge(ipam=ipam),
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000},
        {"type": "firewall"},
        {"type": "tuning", "mtu": 1400, "dataDir": f"{store}/tuning"},
    ]
    if plugin == "ptp without":
        plugins = [{"type": "ptp"}]
    if plugin == "macvlan":
        plugins = [{"type": "macvlan", "master": "up0", "ipam": ipam}]
    for each in plugins:
        each.update(keys if plugin in (each["type"], "any") else {})
    version = keys["cniVersion"] if plugin == "list" else "1.0.0"
    return NetworkList("net", version, tuple(plugins)).with_capabilities(portMappings=ports("8080:80"))


@pytest.fixture
def reference_1_1(reference):
    """The directory of the reference 1.1.1; with a newer one, which knows CNI 1.1.0, a test is skipped."""
    if "1.1.0" in run_plugin("bridge", "VERSION", {}, bin_dir=reference).json["supportedVersions"]:
        pytest.skip("the page describes the reference 1.1.1")
    return reference


@pytest.mark.needs("nft_nat", "ifb", "tbf")
@pytest.mark.parametrize("row", KEYS, ids=lambda row: row["key"])
def test_rows_state_what_the_reference_does_with_a_key(host, bin_dir, reference_1_1, tmp_path, row):
    """On a network with the row's key the reference plugins' DEL of podwire's pod, what it leaves, and ADD match."""
    network = build_network(row, tmp_path)
    if create_interfaces(host, network):
        host.ip("address", "add", "10.22.0.250/24", "dev", "up0")
    with namespaces.temporary() as old_pod, namespaces.temporary() as new_pod:
        podwire, other = (runner(host, old_pod, directory) for directory in (bin_dir, reference_1_1))
        result = network.add(podwire)
        with pytest.raises(AssertionError) if row["DEL of podwire's pods"] == "fails" else contextlib.nullcontext():
            network.delete(other, result)
        assert describe_remains(host, old_pod.name, tmp_path) == row["what remains"].partition(":")[0]
        network.delete(podwire, result)
        assert describe_remains(host, old_pod.name, tmp_path) == "nothing"
        with pytest.raises(AssertionError) if row["new pods"] == "fail" else contextlib.nullcontext():
            network.add(runner(host, new_pod, reference_1_1))
            if network.plugins[0]["type"] == "macvlan":
                assert describe_remains(host, new_pod.name, tmp_path) == "address"
                return
            rules = netstate.iptables_rules(host)
            assert any(new_pod.name in rule and "-A POSTROUTING" in rule for rule in rules)
            assert any(new_pod.name in rule and "-A CNI-HOSTPORT-DNAT" in rule for rule in rules)
            assert any(rule.startswith("-A CNI-FORWARD -s 10.22.0.") for rule in rules)


def runner(host: Namespace, pod: Namespace, bin_dir: Path) -> Run:
    """Returns a function that runs a plugin of a directory for a pod."""
    return functools.partial(run_plugin, host=host, netns=pod, container_id=pod.name, bin_dir=bin_dir)


def describe_remains(host: Namespace, container_id: str, store: Path) -> str:
    """Returns what remains of a container, except for firewall's record, in the page's words."""
    has_address = any(container_id in path.read_text() for path in (store / "net").glob("1*"))
    rules = [line for line in netstate.nft_rules(host) if container_id in line]
    rules += [
        line for line in netstate.iptables_rules(host) if container_id in line and "CNI-FORWARD-OWNERS" not in line
    ]
    routes = host.ip("route", "show", "proto", HOST_ACCESS_PROTOCOL)
    return ", ".join(["address"] * has_address + ["rules"] * bool(rules) + ["routes"] * bool(routes)) or "nothing"
