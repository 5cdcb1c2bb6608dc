"""Lists whose plugins are ours, the reference's, or of both: one outcome, whoever is which.

One rule: what is compared is everything (result, host, pod, files) with what the list makes that is all the
reference's; what may differ is named here, and stands in the pages as a difference.
"""

from __future__ import annotations

import itertools
import json
import re
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support import bandwidth_network, binaries, golden, namespaces, netstate
from tests.support.chained import differences
from tests.support.hostports import ports
from tests.support.invocation import run_plugin
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList, Run
from tests.support.publishing import CLIENT, NODE, connect
from tests.support.tcp import PORT, serving, source_address

pytestmark = pytest.mark.needs("iptables_nft_nat", "ifb", "tbf")

PLUGINS = ("bridge", "portmap", "bandwidth", "tuning", "host-local", "firewall")
VERSIONS = {"0.3.1": 4, "0.4.0": 3, "1.0.0": 1}  # of how many mixtures one is tried
HOST_PORT = 8000
SETTING = "net/ipv4/conf/eth0/arp_filter"

# What differs between two attachments, whoever makes them; where a filter hangs is shown if there is one action only.
WORDS = (
    (re.compile(r"veth[0-9a-f]{8}"), "PORT"),
    (re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}"), "MAC"),
    (re.compile(r"filter parent ffff: "), "filter "),
)
# What differs by the pages: whose an interface is, which ours alone tell; reference 1.1.1 makes veths without a queue;
# its filters lead to the ifb twice; whose a firewall's rule is.
LINK_NOISE = ("ifalias", "txqlen")
SECOND = "action order 2: mirred"
OWNERS = "CNI-FORWARD-OWNERS"


def mixtures() -> list[frozenset[str]]:
    """Returns which plugins are ours in each list: of 16 lists, in which any three of the six are in all mixtures."""
    found = []
    for bridge, portmap, bandwidth, tuning in itertools.product((False, True), repeat=4):
        kinds = (bridge, portmap, bandwidth, tuning, bridge ^ portmap ^ bandwidth, portmap ^ bandwidth ^ tuning)
        found.append(frozenset(name for name, ours in zip(PLUGINS, kinds, strict=True) if ours))
    return found


NONE, *SOME = mixtures()
TRIED = [(version, ours) for version, step in VERSIONS.items() for ours in SOME[::-step]]


def test_any_three_plugins_are_mixed_in_all_ways():
    """Of the lists that are tried any three plugins are there in every mixture of ours and the reference's."""
    for three in itertools.combinations(PLUGINS, 3):
        assert len({frozenset(three) & ours for ours in mixtures()}) == 8
    assert all((version, frozenset(PLUGINS)) in TRIED for version in VERSIONS)


def whole_list(version: str, store: Path) -> NetworkList:
    """Returns a list of all these plugins, as far as they speak a version; its pod has a host port and limits."""
    ipam = {"type": "host-local", "dataDir": str(store / "leases"), "ranges": [[{"subnet": "10.22.0.0/16"}]]}
    bridge = {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "ipMasq": True, "hairpinMode": True}
    plugins: list[dict[str, Any]] = [
        {**bridge, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        {"type": "firewall", "backend": "iptables"},
        {"type": "tuning", "mtu": 1400, "sysctl": {SETTING.replace("/", "."): "1"}, "dataDir": str(store / "tuning")},
    ]
    if version == "0.3.1":
        plugins = [plugin for plugin in plugins if plugin["type"] != "firewall"]  # it came with 0.4.0
    mappings = ports(f"{HOST_PORT}:{PORT}")
    return NetworkList("net", version, tuple(plugins)).asking(portMappings=mappings, bandwidth=bandwidth_network.BOTH)


class Node:
    """A host with one pod, a machine outside, and a directory of plugins, those in `ours` ours."""

    def __init__(self, ours: frozenset[str], directory: Path, *ends: Namespace) -> None:
        """Makes the directory of plugins and joins the host with the machine outside."""
        self.host, self.pod, self.outside = ends
        self.store, self.bin_dir = directory / "store", directory / "bin"
        for each in (self.store, self.bin_dir):
            each.mkdir()
        for name in PLUGINS:
            (self.bin_dir / name).symlink_to((binaries.directory() if name in ours else binaries.REFERENCE) / name)
        connect(self.host, self.outside)

    def run(self, bin_dir: Path | None = None) -> Run:
        """Returns what runs a plugin for the one attachment, of the node's directory unless another is named."""
        how = {"host": self.host, "netns": self.pod, "container_id": "same", "bin_dir": bin_dir or self.bin_dir}
        return lambda plugin, command, config: run_plugin(plugin, command, config, **how)

    def everything(self) -> dict[str, Any]:
        """Returns all that the list can change, but for what is ours alone."""
        rules = [line for tool in ("iptables", "ip6tables") for line in netstate.iptables_rules(self.host, tool)]
        files = [path for path in sorted(self.store.rglob("*")) if path.is_file() and ".podwire/" not in str(path)]
        whole = {
            "host": bandwidth_network.state(self.host),
            "pod": netstate.state(self.pod),
            "rules": sorted(line for line in rules if line.startswith(("-A", ":CNI")) and OWNERS not in line),
            "setting": self.pod.sysctl(SETTING) if "eth0" in netstate.links(self.pod) else "",
            "files": {path.name: path.read_text() for path in files},
        }
        for link in (link for end in ("host", "pod") for link in whole[end]["links"].values()):
            for key in LINK_NOISE:
                link.pop(key, None)
        filters = whole["host"]["filters"]
        whole["host"]["filters"] = {
            name: [line for line in lines if SECOND not in line] for name, lines in filters.items()
        }
        return plain(whole)

    def life(self, version: str) -> dict[str, Any]:
        """Takes the pod through ADD, a call to its host port, CHECK and DEL, and returns what was at each point."""
        network = whole_list(version, self.store)
        before = self.everything()
        result = network.add(self.run())
        with serving(self.pod, result["ips"][0]["address"].partition("/")[0]):
            seen = source_address(self.outside, NODE, HOST_PORT)
        alive = self.everything()
        if version != "0.3.1":  # CHECK came with 0.4.0
            network.check(self.checked(), result)
            network.check(self.run(binaries.directory()), result)
        network.delete(self.run(), result)
        shown = {key: value for key, value in golden.result(result).items() if value}  # 1.1.1 prints an empty "dns"
        return {"before": before, "result": shown, "seen": seen, "alive": alive, "after": self.everything()}

    def checked(self) -> Run:
        """Returns what runs CHECK of each plugin where it is right: 1.1.1's portmap demands rules for IPv6 always."""
        own, ours = self.run(), self.run(binaries.directory())
        return lambda plugin, *how: (ours if plugin == "portmap" else own)(plugin, *how)


def plain(value: Any) -> Any:
    """Returns a value without what differs between two attachments."""
    text = json.dumps(value)
    for pattern, word in WORDS:
        text = pattern.sub(word, text)
    return json.loads(text)


def lived(version: str, ours: frozenset[str]) -> dict[str, Any]:
    """Returns the life of a pod on a fresh host."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        host = stack.enter_context(namespaces.temporary_host())
        pod, outside = (stack.enter_context(namespaces.temporary()) for _ in range(2))
        return Node(ours, directory, host, pod, outside).life(version)


@cache
def references(version: str) -> dict[str, Any]:
    """Returns the life of a pod where all plugins are the reference's, which is right in itself."""
    found = lived(version, NONE)
    assert found["seen"] == CLIENT
    assert found["after"] == lasting(found)
    return found


def lasting(life: dict[str, Any]) -> dict[str, Any]:
    """Returns what was before the pod with what stays of it by design: bridge, shared chains, host-local's notes."""
    before, after = life["before"], life["after"]
    shared = [rule for rule in after["rules"] if "10.22." not in rule and "CNI-DN-" not in rule and "same" not in rule]
    notes = {name: text for name, text in after["files"].items() if name in ("lock", "last_reserved_ip.0")}
    links = {**before["host"]["links"], "cni0": after["host"]["links"].get("cni0")}
    routes = {**before["host"]["routes"], "ipv4": after["host"]["routes"]["ipv4"]}
    host = {**before["host"], "links": links, "routes": routes}
    return {**before, "host": host, "rules": shared, "files": notes}


@pytest.mark.parametrize(
    ("version", "ours"), TRIED, ids=lambda value: value if isinstance(value, str) else "+".join(sorted(value))
)
def test_a_mixture_does_what_the_reference_does(root, bin_dir, reference, version, ours):
    """Whichever plugins of a list are ours: result, host, pod, files, and a call from outside are the same.

    Each CHECK accepts what the others made, and DEL leaves what the reference's leaves.
    """
    assert differences(references(version), lived(version, ours)) == []
