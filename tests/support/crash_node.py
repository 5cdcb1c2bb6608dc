"""A node on which verbs die half way: its pods, what a runtime does afterwards, and the whole state before and after.

One rule: what is compared is everything that the plugins may have changed: links, addresses, routes, rules, nftables,
iptables, qdiscs, filters, settings of interfaces, the files of the store and the names beside it.
"""

from __future__ import annotations

import difflib
import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import bandwidth_network, netstate
from tests.support.attaching import BOOKKEEPING
from tests.support.invocation import Outcome, run_plugin
from tests.support.namespaces import Namespace, create, temporary_host
from tests.support.netlist import NetworkList
from tests.support.processes import output
from tests.support.publishing import hasty

State = dict[str, Any]

SHARED_BRIDGE = "cni0"  # stays, with its address
_DRAFT = "~"  # of an index: has one name, and the next index that is written replaces it
_SETTLED_S = 10.0  # the kernel takes a namespace apart in its own time
_SETTINGS = (
    "ipv4/ip_forward",
    "ipv4/conf/*/route_localnet",
    "ipv4/conf/*/forwarding",
    "ipv6/conf/*/forwarding",
    "ipv6/conf/*/accept_ra",
)
_TUNED = ("ipv4/conf/IFNAME/arp_filter", "ipv6/conf/IFNAME/accept_ra")  # which go with the interface
_MAPPINGS = [
    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
    {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
]


def network(store: Path, backend: str, *, interface: str = "bridge", spoof: bool = False) -> NetworkList:
    """Returns a network with everything: dual stack, masqueraded, host ports of both protocols, limits both ways.

    What is made by ptp has the firewall and both ends tuned behind it. A network that drops what comes with another
    MAC is not given another one.
    """
    ranges = [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]]
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {
        "type": "bridge",
        "bridge": SHARED_BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "ipMasqBackend": backend,
        "macspoofchk": spoof,
        "ipam": ipam,
    }
    firewall = {"type": "firewall", "backend": backend, "ingressPolicy": "same-bridge"}
    tuning = {
        "type": "tuning",
        "sysctl": {f"net.{setting.replace('/', '.')}": "1" for setting in _TUNED},
        "mtu": 1400,
        "txQLen": 500,
        "allmulti": True,
        "dataDir": str(backups(store)),
        "capabilities": {"mac": not spoof},
    }
    if interface == "ptp":
        ptp = {"type": "ptp", "ipMasq": True, "ipMasqBackend": backend, "ipam": ipam}
        firewall["ingressPolicy"], tuning["mtuBothEnds"] = "open", True
        return NetworkList("crash", "1.1.0", (ptp, firewall, tuning))
    portmap = {"type": "portmap", "backend": backend, "capabilities": {"portMappings": True}}
    bandwidth = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
    return NetworkList("crash", "1.1.0", (bridge, portmap, bandwidth, firewall, tuning))


def backups(store: Path) -> Path:
    """Returns where tuning keeps what interfaces were like, beside host-local's `store`."""
    return store.with_name(f"{store.name}-tuning")


@dataclass
class Node:
    """A host with one network; `neighbour` is a living pod that nothing may disturb, with its result."""

    host: Namespace
    store: Path
    chain: NetworkList
    stack: ExitStack
    neighbour: tuple[Namespace, dict[str, Any]] | None = None
    _pods: int = field(default=0)

    @classmethod
    def create(cls, directory: Path, backend: str, *, interface: str = "bridge", spoof: bool, neighbour: bool) -> Node:
        """Makes a host, its store in a fresh `directory`."""
        stack = ExitStack()
        host = stack.enter_context(temporary_host())
        hasty(host)
        store = directory / "leases"
        node = cls(host, store, network(store, backend, interface=interface, spoof=spoof), stack)
        if neighbour:
            pod = node.pod()
            node.neighbour = pod, node.asking(0).add(node.runner(pod))
        return node

    def close(self) -> None:
        """Removes the host and its pods."""
        self.stack.close()

    def pod(self) -> Namespace:
        """Makes one more pod's namespace."""
        pod = create()
        self.stack.callback(pod.delete)
        return pod

    def asking(self, offset: int = 1000) -> NetworkList:
        """Returns the network for a pod with host ports, limits and an address of its own."""
        mappings = [{**mapping, "hostPort": int(str(mapping["hostPort"])) + offset} for mapping in _MAPPINGS]
        mac = f"02:00:00:00:00:{offset // 1000:02x}"
        return self.chain.asking(portMappings=mappings, bandwidth=bandwidth_network.BOTH, mac=mac)

    def variables(self, pod: Namespace | None) -> dict[str, str]:
        """Returns the environment of a verb for a pod; GC and STATUS have none."""
        if pod is None:
            return {}
        return {"CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}

    def runner(self, pod: Namespace | None) -> Any:
        """Returns how to run a plugin's verb for a pod, as NetworkList wants it."""

        def run(plugin: str, command: str, config: dict[str, Any]) -> Outcome:
            own = {"netns": pod, "container_id": pod.name} if pod else {"container_id": None, "ifname": None}
            return run_plugin(plugin, command, config, host=self.host, **own)

        return run

    def valid(self) -> Sequence[Mapping[str, str]]:
        """Returns the attachments that a runtime lists with GC: the neighbour's."""
        return [{"containerID": self.neighbour[0].name, "ifname": "eth0"}] if self.neighbour else []

    def check_neighbour(self) -> None:
        """Runs CHECK of the living pod."""
        if self.neighbour:
            pod, result = self.neighbour
            self.asking(0).check(self.runner(pod), result)

    def state(self, pod: Namespace | None = None) -> State:
        """Returns the whole state of the host, of the neighbour, and of a pod."""
        whole = bandwidth_network.state(self.host)
        whole["nft"] = netstate.nft_rules(self.host)
        if _is_legacy():  # otherwise its rules are among nft's
            whole["iptables"] = {tool: netstate.iptables_rules(self.host, tool) for tool in ("iptables", "ip6tables")}
        whole["settings"] = self._settings()
        directory = self.store / self.chain.name
        files = sorted(directory.iterdir()) if directory.is_dir() else []
        whole["store"] = {file.name: file.read_text() for file in files if file.name not in BOOKKEEPING}
        whole["beside"] = [name for name in _names(self.store, ".podwire") if not name.startswith(_DRAFT)]
        saved = backups(self.store)
        whole["backups"] = {name: (saved / name).read_text() for name in _names(saved)}
        whole["notes"] = _names(saved, ".podwire")
        if self.neighbour:
            whole["neighbour"] = netstate.state(self.neighbour[0])
        if pod and pod.exists():
            whole["pod"] = netstate.state(pod) | {"tuned": _tuned(pod)}
        return whole

    def _links(self) -> list[str]:
        with self.host.entered():
            return [name for _, name in socket.if_nameindex()]

    def _settings(self) -> dict[str, str]:
        with self.host.entered():
            root = Path("/proc/sys/net")
            return {str(file.relative_to(root)): _text(file) for each in _SETTINGS for file in root.glob(each)}

    def await_state(self, before: State, shared: State | None, pod: Namespace | None) -> None:
        """Waits until the state is as `before`; AssertionError with the difference.

        Of a host that never had a pod, `shared` is the state after its first one: what of it is there may stay.
        """
        deadline = time.monotonic() + _SETTLED_S
        there = bool(pod and pod.exists())
        wanted = before if there else {key: value for key, value in before.items() if key != "pod"}
        known = {*before["links"], *(shared or before)["links"]}
        while not there and not known.issuperset(self._links()) and time.monotonic() < deadline:
            time.sleep(0.005)
        while left := difference(self.state(pod), wanted, shared):
            if there or time.monotonic() > deadline:
                raise AssertionError(left)
            time.sleep(0.02)


@cache
def _is_legacy() -> bool:
    return "legacy" in output("iptables", "--version")


def difference(found: State, before: State, shared: State | None = None) -> str:
    """Returns the lines that `found` has more or less than `before`; with `shared`, what neither explains."""
    if found == before:
        return ""
    now, then = _lines(found), _lines(before)
    if shared is None:
        return "\n".join(difflib.unified_diff(then, now, "before", "now", n=0, lineterm=""))
    later = _lines(shared)
    extra = [line for line in now if line not in then and line not in later and not _is_of_the_bridge(line)]
    lost = [line for line in then if line in later and line not in now]
    return "\n".join([f"+ {line}" for line in extra] + [f"- {line}" for line in lost])


def _is_of_the_bridge(line: str) -> bool:
    """Tells what a kill may leave of the bridge half made: the next ADD completes it."""
    return line.startswith((f"links {SHARED_BRIDGE}:", "settings ")) and SHARED_BRIDGE in line.partition(":")[0]


def _lines(state: State) -> list[str]:
    """Returns a state as lines, each with its place; settings in one line each."""
    found = []
    for key, value in state.items():
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            place = key if isinstance(name, int) else f"{key} {name}"
            items = part if isinstance(part, list) else [part]
            found += [f"{place}: {json.dumps(item, sort_keys=True)}" for item in items]
    return found


def _names(directory: Path, suffix: str = "") -> list[str]:
    directory = directory.with_name(directory.name + suffix)
    return sorted(file.name for file in directory.iterdir()) if directory.is_dir() else []


def _tuned(pod: Namespace) -> dict[str, str]:
    """Returns what tuning changes of a pod's settings."""
    with pod.entered():
        return {name: _text(Path("/proc/sys/net", name.replace("IFNAME", "eth0"))) for name in _TUNED}


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # its interface went
        return ""
