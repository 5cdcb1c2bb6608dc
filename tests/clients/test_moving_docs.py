"""docs/moving.md: what it has an operator type works as it stands, and its table is what the reference 1.1.1 does.

One rule: commands and keys are taken from the page.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.clients import podman as podman_room
from tests.clients.test_moving import NETWORK, Node
from tests.support import binaries, namespaces, netstate
from tests.support.hostports import ports
from tests.support.invocation import run_plugin
from tests.support.machine import CONF_DIR
from tests.support.markdown import DOCS, Document
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.processes import output

PAGE = Document(DOCS / "moving.md")
BEFORE, STEP, AFTER, BACK, CLEANING = PAGE.blocks("sh")
KEYS = next(table for table in PAGE.tables() if "DEL of podwire's pods" in table[0])


def test_the_commands_as_they_are_typed(empty_machine, needs_programs, bin_dir, reference):
    """From the archive to the plugins in place, and back to the reference's, a pod of before lives and is removed."""
    needs_programs(*podman_room.PROGRAMS)
    empty_machine.install(binaries.REFERENCE)
    empty_machine.write(CONF_DIR / "10-net.conflist", json.dumps(NETWORK))
    node = Node(podman_room.installed(empty_machine), bin_dir)
    typed = empty_machine.scratch / "typed"
    typed.mkdir()
    output("tar", "-C", str(bin_dir), "-czf", str(typed / "podwire-0.1.0-linux-amd64.tgz"), ".")
    path = "PATH=/opt/cni/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    def type_in(*blocks: str) -> str:
        return empty_machine.run("env", "-C", str(typed), path, "sh", "-ec", "\n".join(blocks))

    before = empty_machine.run("sh", "-c", "cd /opt/cni/bin; sha256sum *")
    node.start("old", 8001)
    told = type_in(BEFORE, STEP)
    assert "0 problems, 0 warnings" in told
    assert "dry run: replace /opt/cni/bin/bridge" in told
    assert node.serves() == "ours"
    assert {"macvlan", "podwire", ".podwire-replaced"} <= set(empty_machine.run("ls", "-A", "/opt/cni/bin").split())
    told = type_in(AFTER)
    assert re.search(r"^net +\w+ +old .* ok$", told, re.MULTILINE)
    assert "0 problems, 0 warnings" in told
    node.start("new", 8002)
    type_in(BACK)
    assert empty_machine.run("sh", "-c", "cd /opt/cni/bin; sha256sum *") == before
    node.podman.remove()
    type_in(CLEANING)
    assert empty_machine.leftovers(links=["cni0"]) == []


def asked(row: dict[str, str], store: Path) -> NetworkList:
    """Returns a network with the key of a row; its pod has a host port."""
    plugin, _, fragment = row["key"].partition(" `") if row["key"][0] != "`" else ("list", "", row["key"][1:])
    keys: dict[str, Any] = json.loads("{" + fragment.strip("`") + "}") if ":" in fragment else {}
    if "logFile" in keys:
        keys = {"logFile": str(store / "log")}
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": [[{"subnet": "10.22.0.0/24"}]]}
    plugins: list[dict[str, Any]] = [
        {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000},
        {"type": "firewall"},
        {"type": "tuning", "mtu": 1400, "dataDir": f"{store}/tuning"},
    ]
    if plugin == "ptp without":
        plugins = [{"type": "ptp"}]
    for each in plugins:
        each.update(keys if plugin in (each["type"], "any") else {})
    version = keys["cniVersion"] if plugin == "list" else "1.0.0"
    return NetworkList("net", version, tuple(plugins)).asking(portMappings=ports("8080:80"))


@pytest.mark.needs("nft_nat", "ifb", "tbf")
@pytest.mark.parametrize("row", KEYS, ids=lambda row: row["key"])
def test_what_the_reference_makes_of_a_key(host, bin_dir, reference, tmp_path, row):
    """A network with the key of a row: the reference's DEL of a pod that we made, what it leaves, and its ADD."""
    network = asked(row, tmp_path)
    with namespaces.temporary() as ours, namespaces.temporary() as theirs:
        how = {"host": host, "netns": ours, "container_id": ours.name}
        result = network.add(lambda *what: run_plugin(*what, bin_dir=bin_dir, **how))
        with pytest.raises(AssertionError) if row["DEL of podwire's pods"] == "fails" else contextlib.nullcontext():
            network.delete(lambda *what: run_plugin(*what, bin_dir=reference, **how), result)
        assert left(host, ours.name, tmp_path) == row["what remains"].partition(":")[0]
        network.delete(lambda *what: run_plugin(*what, bin_dir=bin_dir, **how), result)
        assert left(host, ours.name, tmp_path) == "nothing"
        how = {"host": host, "netns": theirs, "container_id": theirs.name}
        with pytest.raises(AssertionError) if row["new pods"] == "fail" else contextlib.nullcontext():
            network.add(lambda *what: run_plugin(*what, bin_dir=reference, **how))
            rules = netstate.iptables_rules(host)
            assert any(theirs.name in rule and "-A POSTROUTING" in rule for rule in rules)
            assert any(theirs.name in rule and "-A CNI-HOSTPORT-DNAT" in rule for rule in rules)
            assert any(rule.startswith("-A CNI-FORWARD -s 10.22.0.") for rule in rules)


def left(host: Namespace, container_id: str, store: Path) -> str:
    """Returns what there is of a container, but for firewall's record, in the page's words."""
    has_address = any(container_id in path.read_text() for path in (store / "net").glob("1*"))
    rules = [line for line in netstate.nft_rules(host) if container_id in line]
    rules += [
        line for line in netstate.iptables_rules(host) if container_id in line and "CNI-FORWARD-OWNERS" not in line
    ]
    return ", ".join(["address"] * has_address + ["rules"] * bool(rules)) or "nothing"
