"""A node on which verbs are killed: its pods, the verbs of a runtime, and the whole state for comparison.

One rule: the state contains everything that plugins can change: links, addresses, routes, rules, nftables, iptables,
qdiscs, filters, sysctls, the files of the store and the names of its auxiliary files.
"""

import difflib
import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from tests.support import bandwidth_network, netlist, netstate, pod_interfaces, repair_node
from tests.support.attaching import BOOKKEEPING
from tests.support.namespaces import Namespace, create, temporary_host
from tests.support.netlist import NetworkList, Run
from tests.support.processes import output
from tests.support.publishing import disable_dad

State = dict[str, Any]

# Chains of an interface plugin that needs no bridge, with plugins that follow it. Other interface plugins need the
# second kernel, on which verbs cannot be traced: user-mode Linux lacks PTRACE_GET_SYSCALL_INFO.
INTERFACES = {"macvlan": ("macvlan", "sbr"), "host-device": ("host-device",), "tap": ("tap",)}

SHARED_BRIDGE = "cni0"  # no verb deletes it or its address
_DRAFT = "~"  # prefix of an unfinished index; the next index that is written replaces it
_CLEANUP_TIMEOUT_S = 60.0  # the kernel removes a namespace in the background
_SETTINGS = ["ipv4/ip_forward", "ipv4/conf/*/route_localnet", "ipv4/conf/*/forwarding", "ipv6/conf/*/forwarding"]
_SETTINGS += ["ipv6/conf/*/accept_ra"]
_INTERFACE_SETTINGS = ("ipv4/conf/IFNAME/arp_filter", "ipv6/conf/IFNAME/accept_ra")  # they end with the interface
_MAPPINGS = [
    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
    {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
]


def network(store: Path, backend: str, *, interface: str = "bridge", spoof: bool = False) -> NetworkList:
    """Returns a network with all plugins: dual stack, masquerading, TCP and UDP host ports, limits in both directions.

    With ptp, only firewall and tuning follow, and tuning sets both ends. With the MAC spoof check (`spoof`), tuning
    does not change the MAC address. An interface of INTERFACES has the plugins listed there.
    """
    ranges = [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]]
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    if interface in INTERFACES:
        first, *chained = INTERFACES[interface]
        keys = {**pod_interfaces.options(first, 1, store), "ipam": ipam}
        return NetworkList("crash", "1.1.0", ({"type": first, **keys}, *({"type": name} for name in chained)))
    masquerade = {"ipMasq": True, "ipMasqBackend": backend, "ipam": ipam}
    bridge = {"type": "bridge", "bridge": SHARED_BRIDGE, "isGateway": True, "macspoofchk": spoof, **masquerade}
    firewall = {"type": "firewall", "backend": backend, "ingressPolicy": "same-bridge"}
    sysctl = {f"net.{setting.replace('/', '.')}": "1" for setting in _INTERFACE_SETTINGS}
    tuning = {"type": "tuning", "sysctl": sysctl, "mtu": 1400, "txQLen": 500, "allmulti": True}
    tuning |= {"dataDir": str(backups(store)), "capabilities": {"mac": not spoof}}
    if interface == "ptp":
        ptp = {"type": "ptp", **masquerade}
        firewall["ingressPolicy"], tuning["mtuBothEnds"] = "open", True
        return NetworkList("crash", "1.1.0", (ptp, firewall, tuning))
    portmap = {"type": "portmap", "backend": backend, "capabilities": {"portMappings": True}}
    bandwidth = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
    return NetworkList("crash", "1.1.0", (bridge, portmap, bandwidth, firewall, tuning))


def backups(store: Path) -> Path:
    """Returns tuning's directory of original settings, beside host-local's `store`."""
    return store.with_name(f"{store.name}-tuning")


@dataclass
class Node:
    """A host with one network; `neighbour` is a running pod, with its result, that no verb may affect."""

    host: Namespace
    store: Path
    chain: NetworkList
    stack: ExitStack
    neighbour: tuple[Namespace, dict[str, Any]] | None = None
    _pods: int = field(default=0)

    @classmethod
    def create(cls, directory: Path, backend: str, *, interface: str = "bridge", spoof: bool, neighbour: bool) -> Self:
        """Creates a host with its store in an empty `directory`."""
        stack = ExitStack()
        host = stack.enter_context(temporary_host())
        disable_dad(host)
        if interface in INTERFACES:
            pod_interfaces.create_objects(host, 2)
        store = directory / "leases"
        node = cls(host, store, network(store, backend, interface=interface, spoof=spoof), stack)
        if neighbour:
            pod = node.pod()
            node.neighbour = pod, node.with_capabilities(0).add(node.runner(pod))
        return node

    def close(self) -> None:
        """Removes the host and its pods."""
        self.stack.close()

    def pod(self) -> Namespace:
        """Creates the namespace of another pod."""
        pod = create()
        self.stack.callback(pod.delete)
        return pod

    def with_capabilities(self, offset: int = 1000) -> NetworkList:
        """Returns the network for a pod with host ports, limits and a MAC address, which differ by `offset`."""
        mappings = [{**mapping, "hostPort": int(str(mapping["hostPort"])) + offset} for mapping in _MAPPINGS]
        mac = f"02:00:00:00:00:{offset // 1000:02x}"
        number = offset // 1000
        plugins = ({**plugin, **pod_interfaces.keys_of_pod(plugin["type"], number)} for plugin in self.chain.plugins)
        network = replace(self.chain, plugins=tuple(plugins))
        return network.with_capabilities(portMappings=mappings, bandwidth=bandwidth_network.BOTH, mac=mac)

    def end_pod(self, pod: Namespace) -> None:
        """Deletes a pod's namespace; host-device's device returns to the host, as a physical device does."""
        if self.chain.plugins[0]["type"] == "host-device":
            pod_interfaces.end_pod(pod, self.host.name)
        else:
            pod.delete()

    def repair(self, pod: Namespace, result: dict[str, Any] | None) -> None:
        """Runs `podwire repair` with a cache that has a pod's `result`, if it has any."""
        cache = self.store.with_name(f"{self.store.name}-cache")
        node = repair_node.Node(self.host, self.with_capabilities(), cache)
        node.file(pod.name).parent.mkdir(parents=True, exist_ok=True)
        if self.neighbour:  # its namespace proves that the runtime's directory is visible here
            other, other_result = self.neighbour
            replace(node, chain=self.with_capabilities(0)).write_entry(other.path, other.name, other_result)
        if result:
            node.write_entry(pod.path, pod.name, result)
        node.repair()
        node.file(pod.name).unlink(missing_ok=True)

    def variables(self, pod: Namespace | None) -> dict[str, str]:
        """Returns the variables of a verb for a pod; GC and STATUS have none."""
        if pod is None:
            return {}
        return {"CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}

    def runner(self, pod: Namespace | None) -> Run:
        """Returns a function that runs a plugin's verb for a pod, for NetworkList."""
        return netlist.runner(self.host, pod)

    def valid_attachments(self) -> Sequence[Mapping[str, str]]:
        """Returns the attachments that a runtime lists with GC: the neighbour's."""
        return [{"containerID": self.neighbour[0].name, "ifname": "eth0"}] if self.neighbour else []

    def check_neighbour(self) -> None:
        """Runs CHECK of the neighbour."""
        if self.neighbour:
            pod, result = self.neighbour
            self.with_capabilities(0).check(self.runner(pod), result)

    def state(self, pod: Namespace | None = None) -> State:
        """Returns the whole state of the host, the neighbour and a pod."""
        state = bandwidth_network.state(self.host)
        state["nft"] = netstate.nft_rules(self.host)
        if _is_legacy():  # iptables-nft's rules are in nft's list
            state["iptables"] = {tool: netstate.iptables_rules(self.host, tool) for tool in ("iptables", "ip6tables")}
        state["settings"] = self._settings()
        directory = self.store / self.chain.name
        files = sorted(directory.iterdir()) if directory.is_dir() else []
        state["store"] = {file.name: file.read_text() for file in files if file.name not in BOOKKEEPING}
        state["beside"] = [name for name in _names(self.store, ".podwire") if not name.startswith(_DRAFT)]
        saved = backups(self.store)
        state["backups"] = {name: (saved / name).read_text() for name in _names(saved)}
        state["devices"] = pod_interfaces.device_files(self.store)
        state["notes"] = _names(saved, ".podwire")
        if self.neighbour:
            state["neighbour"] = netstate.state(self.neighbour[0])
        if pod and pod.exists():
            state["pod"] = netstate.state(pod) | {"tuned": _tuned(pod)}
        return state

    def _links(self) -> list[str]:
        with self.host.entered():
            return [name for _, name in socket.if_nameindex()]

    def _settings(self) -> dict[str, str]:
        with self.host.entered():
            root = Path("/proc/sys/net")
            return {str(file.relative_to(root)): _text(file) for each in _SETTINGS for file in root.glob(each)}

    def await_state(self, before: State, shared: State | None, pod: Namespace | None) -> None:
        """Waits until the state equals `before`, but for objects in `shared`, the state after the host's first pod."""
        deadline = time.monotonic() + _CLEANUP_TIMEOUT_S
        pod_exists = bool(pod and pod.exists())
        expected = before if pod_exists else {key: value for key, value in before.items() if key != "pod"}
        known = {*before["links"], *(shared or before)["links"]}
        while not pod_exists and not known.issuperset(self._links()) and time.monotonic() < deadline:
            time.sleep(0.005)
        while remaining := difference(self.state(pod), expected, shared):
            if pod_exists or time.monotonic() > deadline:
                raise AssertionError(remaining)
            time.sleep(0.02)


@cache
def _is_legacy() -> bool:
    return "legacy" in output("iptables", "--version")


def difference(state: State, before: State, shared: State | None = None) -> str:
    """Returns the lines in which `state` differs from `before`; with `shared`, those that differ from both."""
    if state == before:
        return ""
    now, then = _lines(state), _lines(before)
    if shared is None:
        return "\n".join(difflib.unified_diff(then, now, "before", "now", n=0, lineterm=""))
    later = _lines(shared)
    extra = [line for line in now if line not in then and line not in later and not _is_of_the_bridge(line)]
    lost = [line for line in then if line in later and line not in now]
    return "\n".join([f"+ {line}" for line in extra] + [f"- {line}" for line in lost])


def _is_of_the_bridge(line: str) -> bool:
    """Returns whether a killed ADD may leave `line`: an incomplete bridge, which the next ADD completes."""
    return line.startswith((f"links {SHARED_BRIDGE}:", "settings ")) and SHARED_BRIDGE in line.partition(":")[0]


def _lines(state: State) -> list[str]:
    """Returns a state as lines, each with its key; a setting is one line."""
    lines = []
    for key, value in state.items():
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            place = key if isinstance(name, int) else f"{key} {name}"
            items = part if isinstance(part, list) else [part]
            lines += [f"{place}: {json.dumps(item, sort_keys=True)}" for item in items]
    return lines


def _names(directory: Path, suffix: str = "") -> list[str]:
    directory = directory.with_name(directory.name + suffix)
    return sorted(file.name for file in directory.iterdir()) if directory.is_dir() else []


def _tuned(pod: Namespace) -> dict[str, str]:
    """Returns the sysctls of a pod that tuning changes."""
    with pod.entered():
        return {name: _text(Path("/proc/sys/net", name.replace("IFNAME", "eth0"))) for name in _INTERFACE_SETTINGS}


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # its interface was deleted
        return ""
