"""Lists with any mixture of podwire's plugins and the reference plugins have the same outcome.

One rule: result, host, pod and files are compared with those of a list of reference plugins only. The permitted
differences are named here, and docs/ lists them.
"""

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
VERSIONS = {"0.3.1": 4, "0.4.0": 3, "1.0.0": 1}  # every n-th mixture is tested
HOST_PORT = 8000
SETTING = "net/ipv4/conf/eth0/arp_filter"

# Texts that differ between two attachments of the same plugins; tc shows a filter's parent if it has only one action.
WORDS = (
    (re.compile(r"veth[0-9a-f]{8}"), "PORT"),
    (re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}"), "MAC"),
    (re.compile(r"filter parent ffff: "), "filter "),
)
# The documented differences: only podwire sets ifaliases; reference 1.1.1 creates veths without a queue; its filters
# redirect to the ifb twice; only podwire records the owners of firewall rules.
LINK_NOISE = ("ifalias", "txqlen")
SECOND = "action order 2: mirred"
OWNERS = "CNI-FORWARD-OWNERS"


def mixtures() -> list[frozenset[str]]:
    """Returns podwire's plugins of each list: 16 lists, in which any three of the six occur in all mixtures."""
    lists = []
    for bridge, portmap, bandwidth, tuning in itertools.product((False, True), repeat=4):
        kinds = (bridge, portmap, bandwidth, tuning, bridge ^ portmap ^ bandwidth, portmap ^ bandwidth ^ tuning)
        lists.append(frozenset(name for name, is_podwire in zip(PLUGINS, kinds, strict=True) if is_podwire))
    return lists


NONE, *MIXTURES = mixtures()
CASES = [(version, mixture) for version, step in VERSIONS.items() for mixture in MIXTURES[::-step]]


def whole_list(version: str, store: Path) -> NetworkList:
    """Returns a list of all plugins that have this CNI version; its pod has a host port and limits."""
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
        plugins = [plugin for plugin in plugins if plugin["type"] != "firewall"]  # firewall needs 0.4.0
    mappings = ports(f"{HOST_PORT}:{PORT}")
    return NetworkList("net", version, tuple(plugins)).with_capabilities(
        portMappings=mappings, bandwidth=bandwidth_network.BOTH
    )


class Node:
    """A host with one pod, another machine, and a directory of plugins, podwire's those in `podwire`."""

    def __init__(
        self, podwire: frozenset[str], directory: Path, host: Namespace, pod: Namespace, peer: Namespace
    ) -> None:
        """Creates the directory of plugins and connects the host with the other machine."""
        self.host, self.pod, self.peer = host, pod, peer
        self.store, self.bin_dir = directory / "store", directory / "bin"
        for each in (self.store, self.bin_dir):
            each.mkdir()
        for name in PLUGINS:
            (self.bin_dir / name).symlink_to((binaries.directory() if name in podwire else binaries.REFERENCE) / name)
        connect(self.host, self.peer)

    def run(self, bin_dir: Path | None = None) -> Run:
        """Returns a function that runs a plugin of `bin_dir`, by default the node's, for the attachment."""
        options = {"host": self.host, "netns": self.pod, "container_id": "same", "bin_dir": bin_dir or self.bin_dir}
        return lambda plugin, command, config: run_plugin(plugin, command, config, **options)

    def state(self) -> dict[str, Any]:
        """Returns everything that the list can change, except for podwire's additions."""
        rules = [line for tool in ("iptables", "ip6tables") for line in netstate.iptables_rules(self.host, tool)]
        files = [path for path in sorted(self.store.rglob("*")) if path.is_file() and ".podwire/" not in str(path)]
        whole: dict[str, Any] = {
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
        state: dict[str, Any] = plain(whole)
        return state

    def run_pod(self, version: str) -> dict[str, Any]:
        """Runs ADD, a call to the host port, CHECK and DEL for the pod; returns the state at each point."""
        network = whole_list(version, self.store)
        before = self.state()
        result = network.add(self.run())
        with serving(self.pod, result["ips"][0]["address"].partition("/")[0]):
            source = source_address(self.peer, NODE, HOST_PORT)
        attached = self.state()
        if version != "0.3.1":  # CHECK needs 0.4.0
            network.check(self.run_check(), result)
            network.check(self.run(binaries.directory()), result)
        network.delete(self.run(), result)
        shown = {key: value for key, value in golden.result(result).items() if value}  # 1.1.1 prints an empty "dns"
        return {"before": before, "result": shown, "source": source, "attached": attached, "after": self.state()}

    def run_check(self) -> Run:
        """Returns a function that runs CHECK; podwire's for portmap, since 1.1.1's always requires rules for IPv6."""
        default, podwire = self.run(), self.run(binaries.directory())
        return lambda plugin, *args: (podwire if plugin == "portmap" else default)(plugin, *args)


def plain(value: Any) -> Any:
    """Returns a value with the texts of WORDS replaced."""
    text = json.dumps(value)
    for pattern, word in WORDS:
        text = pattern.sub(word, text)
    return json.loads(text)


def run_on_new_host(version: str, podwire: frozenset[str]) -> dict[str, Any]:
    """Returns the states of a pod's life on a new host."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        host = stack.enter_context(namespaces.temporary_host())
        pod, peer = (stack.enter_context(namespaces.temporary()) for _ in range(2))
        return Node(podwire, directory, host, pod, peer).run_pod(version)


@cache
def run_reference(version: str) -> dict[str, Any]:
    """Returns the states with only reference plugins; checks that they are correct."""
    states = run_on_new_host(version, NONE)
    assert states["source"] == CLIENT
    assert states["after"] == expected_remains(states)
    return states


def expected_remains(states: dict[str, Any]) -> dict[str, Any]:
    """Returns the state before the pod with what stays by design: bridge, shared chains, host-local's other files."""
    before, after = states["before"], states["after"]
    shared = [rule for rule in after["rules"] if "10.22." not in rule and "CNI-DN-" not in rule and "same" not in rule]
    files = {name: text for name, text in after["files"].items() if name in ("lock", "last_reserved_ip.0")}
    links = {**before["host"]["links"], "cni0": after["host"]["links"].get("cni0")}
    routes = {**before["host"]["routes"], "ipv4": after["host"]["routes"]["ipv4"]}
    host = {**before["host"], "links": links, "routes": routes}
    return {**before, "host": host, "rules": shared, "files": files}


@pytest.mark.parametrize(
    ("version", "podwire"), CASES, ids=lambda value: value if isinstance(value, str) else "+".join(sorted(value))
)
def test_mixture_behaves_like_the_reference(root, bin_dir, reference, version, podwire):
    """With any mixture of plugins the result, host, pod, files, and a call from another machine are the same."""
    assert differences(run_reference(version), run_on_new_host(version, podwire)) == []
