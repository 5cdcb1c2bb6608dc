"""Pods of Multus: the network of docs/multus.md; net1 on an interface of the node, followed by sbr (conf/87).

One rule: the client sends real packets to the pod's second address, from behind a router that eth0's network does not
know.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import dhcp_node, libcni, publishing
from tests.support.attaching import BOOKKEEPING, address, reaches
from tests.support.binaries import ROOT
from tests.support.dhcp import ipam_keys
from tests.support.markdown import DOCS, Document
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList, Run, runner
from tests.support.netstate import links, state
from tests.support.sbr_network import captured, rules
from tests.support.sbr_network import state as routing
from tests.support.tcp import serving, source_address
from tests.support.uplink import UPLINK

IFNAME = "net1"


class Multus:
    """Runs a definition's plugins as Multus does, and stores the result in its cache."""

    def __init__(self, host: Namespace, definition: dict[str, Any], directory: Path) -> None:
        """Uses `directory` for reservations and cache."""
        self.host, self.config = host, copy.deepcopy(definition)
        for plugin in self.config["plugins"]:
            if "ipam" in plugin:
                plugin["ipam"]["dataDir"] = str(directory / "leases")
        self.cache = directory / "cache"  # /var/lib/cni/multus on a node
        (self.cache / "results").mkdir(parents=True)
        self.list = NetworkList(self.config["name"], self.config["cniVersion"], tuple(self.config["plugins"]))

    def add(self, pod: Namespace) -> dict[str, Any]:
        """Adds `net1` and writes the result to the cache."""
        result = self.list.add(run_as_multus(self.host, pod))
        how: dict[str, Any] = {"netns": pod.path, "ifname": IFNAME, "result": result, "config": self.config}
        libcni.write_entry(self.cache, self.list.name, pod.name, **how)
        return result

    def check(self, pod: Namespace, result: dict[str, Any]) -> None:
        """Checks `net1`."""
        self.list.check(run_as_multus(self.host, pod), result)

    def delete(self, pod: Namespace) -> None:
        """Deletes `net1` with the cached result, then the cache entry."""
        (path,) = (self.cache / "results").glob(f"*-{pod.name}-{IFNAME}")
        self.list.delete(run_as_multus(self.host, pod), json.loads(path.read_text())["result"])
        path.unlink()


def run_as_multus(host: Namespace, pod: Namespace, ifname: str = IFNAME) -> Run:
    """Returns a function that runs a plugin for an interface of a pod, with the variables that Multus passes."""
    args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"
    return runner(host, pod, netns=pod.path, ifname=ifname, args=args)


DEFINITION = json.loads((ROOT / "conf" / "87-macvlan-source-routing.conflist").read_text())
GATEWAYS = ("10.35.0.1/16", "fd00:10:35::1/64")
NODE = ("10.35.0.250/16", "fd00:10:35::250/64")
VLAN = 100
KINDS = [
    pytest.param({"type": "macvlan"}, id="macvlan"),
    pytest.param({"type": "macvlan", "hostAccess": True}, id="hostAccess"),
    pytest.param({"type": "ipvlan"}, id="ipvlan", marks=pytest.mark.needs("ipvlan")),
    pytest.param({"type": "vlan", "vlanId": VLAN}, id="vlan", marks=pytest.mark.needs("vlan_device")),
]


@pytest.fixture
def client(bin_dir, host, sandbox, new_sandbox, keys):
    """A machine behind the router to which the node's eth0 is connected, in vlan's case with a tag."""
    router, client = new_sandbox(), new_sandbox()
    for namespace in (host, sandbox, router, client):
        publishing.disable_dad(namespace)
        namespace.ip("link", "set", "lo", "up")
        for key in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            namespace.set_sysctl(key, "1")
    publishing.connect(router, client)
    client.ip("route", "add", "default", "via", publishing.NODE)
    client.ip("-6", "route", "add", "default", "via", publishing.NODE6)
    host.ip("link", "add", "eth0", "type", "veth", "peer", "name", "pods", "netns", router.name)
    router.ip("link", "set", "pods", "up")
    wire = "pods"
    if keys["type"] == "vlan":
        wire = "tagged"
        router.ip("link", "add", "link", "pods", "name", wire, "type", "vlan", "id", str(VLAN))
        router.ip("link", "set", wire, "up")
    for namespace, name, addresses in ((router, wire, GATEWAYS), (host, "eth0", NODE)):
        for ip in addresses:
            namespace.ip("address", "add", ip, "dev", name, "nodad")
    host.ip("link", "set", "eth0", "up")
    return client


@pytest.mark.parametrize("keys", KINDS)
def test_replies_leave_by_the_interface_of_the_request(client, host, sandbox, tmp_path, keys):
    """By both families replies to the client leave by net1, the pod's own packets by eth0; DELs restore the state."""
    plugins = [{**DEFINITION["plugins"][0], **keys}, DEFINITION["plugins"][1]]
    multus = Multus(host, {**DEFINITION, "plugins": plugins}, tmp_path)
    default, run = (
        NetworkList.load(ROOT / "conf" / "20-dual-stack.conflist"),
        run_as_multus(host, sandbox, ifname="eth0"),
    )
    default.plugins[0]["ipam"]["dataDir"] = str(tmp_path / "leases")
    default.delete(run, default.add(run))  # leaves the bridge
    empty = state(host, netfilter=True)
    eth0 = default.add(run)
    before = state(host, netfilter=True), state(sandbox), routing(sandbox)
    result = multus.add(sandbox)
    for number, caller in enumerate((publishing.CLIENT, publishing.CLIENT6)):
        ip = address(result, number)
        with captured(sandbox, "eth0", "net1", source=ip, destination=caller) as interfaces:
            assert reaches(client, ip)
        assert interfaces == {"net1"}
        with serving(sandbox, ip):
            assert source_address(client, ip) == caller
        with captured(sandbox, "eth0", "net1", source=address(eth0, number), destination=caller) as interfaces:
            reaches(sandbox, caller, within_s=1)
        assert interfaces == {"eth0"}
        assert "hostAccess" not in keys or reaches(host, ip)
    multus.check(sandbox, result)
    default.check(run, eth0)
    multus.delete(sandbox)
    assert (state(host, netfilter=True), state(sandbox), routing(sandbox)) == before
    default.delete(run, eth0)
    assert (state(host, netfilter=True), rules(sandbox)) == (empty, [])
    assert {path.name for path in tmp_path.glob("leases/*/*")} <= set(BOOKKEEPING)


@pytest.fixture
def multus(bin_dir, host, tmp_path):
    """Multus on a host, with the NetworkAttachmentDefinition of the page."""
    manifests = (yaml.safe_load(block) for block in Document(DOCS / "multus.md").blocks("yaml"))
    (config,) = (item["spec"]["config"] for item in manifests if item.get("kind") == "NetworkAttachmentDefinition")
    return Multus(host, json.loads(config), tmp_path)


def test_list_with_sbr(bin_dir, host, sandbox, tmp_path, network):
    """The page's list with sbr gives net1 a rule and a table; DEL restores the pod."""
    lists = [json.loads(block) for block in Document(DOCS / "multus.md").blocks("json")]
    (body,) = [item for item in lists if any(plugin["type"] == "sbr" for plugin in item.get("plugins", ()))]
    multus = Multus(host, body, tmp_path)
    network.add(sandbox)
    before = state(sandbox), routing(sandbox)
    result = multus.add(sandbox)
    assert rules(sandbox) == [f"32765: from {address(result)} lookup 100"]
    multus.check(sandbox, result)
    multus.delete(sandbox)
    assert (state(sandbox), routing(sandbox)) == before


@pytest.mark.parametrize(
    ("keys", "interface", "version"),
    [
        ({}, "eth0", 4),
        ({"priority": 0}, "net1", 4),
        ({"request": [{"skipDefault": True}, {"option": "subnet-mask"}]}, "eth0", 6),
    ],
    ids=["priority", "none", "no router"],
)
def test_list_with_dhcp(bin_dir, host, sandbox, new_sandbox, tmp_path, keys, interface, version):
    """With the page's priority, the default routes of eth0 come before those of the lease, of both IP versions.

    Without it, the lease's comes first for IPv4; the kernel uses both of IPv6. Without a request for a router dnsmasq
    names none for IPv4.
    """
    lists = [json.loads(block) for block in Document(DOCS / "multus.md").blocks("json")]
    (body,) = [item for item in lists if item["plugins"][0]["ipam"]["type"] == "dhcp"]
    body["plugins"][0]["master"] = UPLINK
    body["plugins"][0]["ipam"] |= {"ipv6": "dhcp", **ipam_keys(tmp_path), **keys}
    default = NetworkList.load(ROOT / "conf" / "20-dual-stack.conflist")
    default.plugins[0]["ipam"]["dataDir"] = str(tmp_path / "reservations")
    publishing.disable_dad(sandbox)
    default.add(run_as_multus(host, sandbox, ifname="eth0"))
    before = state(sandbox)
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server(*dhcp_node.MANAGED)
        node.start_daemon()
        multus = Multus(host, body, tmp_path)
        result = multus.add(sandbox)
        defaults = {route["dst"] for route in result["routes"]} & {"0.0.0.0/0", "::/0"}
        assert defaults == ({"0.0.0.0/0", "::/0"} if version == 4 else {"::/0"})
        destinations = [f"2001:db8::{number}" for number in range(9)] if interface == "eth0" else []
        for destination in ("203.0.113.1", *destinations):
            assert f"dev {interface}" in sandbox.ip("route", "get", destination)
        multus.check(sandbox, result)
        multus.delete(sandbox)
    assert state(sandbox) == before


@pytest.mark.parametrize("keys", [{}, {"addSourceHints": True}], ids=["sbr", "addSourceHints"])
def test_default_route_of_multus_beside_sbr(bin_dir, host, sandbox, tmp_path, network, keys):
    """The default route that Multus sets after sbr needs addSourceHints: else the gateway is not reachable."""
    lists = [json.loads(block) for block in Document(DOCS / "multus.md").blocks("json")]
    (body,) = [item for item in lists if any(plugin["type"] == "sbr" for plugin in item.get("plugins", ()))]
    body["plugins"][-1] |= keys
    multus = Multus(host, body, tmp_path)
    network.add(sandbox)
    multus.add(sandbox)
    sandbox.ip("route", "delete", "default")
    set_route = ("route", "add", "default", "via", "10.56.0.1", "dev", "net1")
    if keys:
        sandbox.ip(*set_route)
    else:
        with pytest.raises(AssertionError, match="invalid gateway"):
            sandbox.ip(*set_route)
    multus.delete(sandbox)


def test_the_definition_attaches_a_second_network(multus, host, sandbox, network):
    """The pod gets net1 with the definition's address and no second default route; DEL deletes it."""
    network.add(sandbox)
    host.ip("link", "add", "br-storage", "type", "bridge")
    host.ip("link", "set", "br-storage", "up")
    before = state(host), state(sandbox)
    result = multus.add(sandbox)
    multus.check(sandbox, result)
    assert [ip["address"] for ip in result["ips"]] == ["10.56.0.20/24"]
    assert {"eth0", "net1"} <= links(sandbox).keys()
    assert links(host)[result["interfaces"][1]["name"]]["master"] == "br-storage"
    assert sandbox.ip("route", "show", "default").count("default") == 1
    assert "10.57.0.0/16 via 10.56.0.1 dev net1" in sandbox.ip("route")
    multus.delete(sandbox)
    assert (state(host), state(sandbox)) == before


def test_the_tool_reads_multus_cache(multus, host, sandbox, bin_dir, tmp_path):
    """`podwire show` with Multus' cache lists the second interface with network, name and address."""
    multus.add(sandbox)
    directories = {"cache-dir": multus.cache, "conf-dir": tmp_path, "data-dir": tmp_path / "leases"}
    options = [f"--{name}={path}" for name, path in directories.items()]
    (pod,) = json.loads(host.run(str(bin_dir / "podwire"), "show", "--json", *options))["attachments"]
    assert (pod["network"], pod["ifname"], pod["addresses"]) == ("storage", "net1", ["10.56.0.20/24"])
    multus.delete(sandbox)
