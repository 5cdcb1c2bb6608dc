"""A node for the table of faults: an uplink with a gateway behind it, a dual-stack network, and two pods with ports."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.support import namespaces
from tests.support.doctor_node import DoctorNode
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.processes import PATH

SUBNET, SUBNET6 = "10.44.0.0/24", "fd00:44::/64"
UPLINK = """
ip link add out0 type veth peer name out1 netns {far}; ip link set out0 up; ip address add 192.0.2.1/24 dev out0
ip -n {far} link set out1 up; ip -n {far} link set lo up; ip -n {far} address add 192.0.2.2/24 dev out1
ip route add default via 192.0.2.2
"""
_TIMEOUT_S = 30.0
_Node = TypeVar("_Node")


@dataclass
class FaultNode:
    """The node, with the words that the faults' shell commands use."""

    node: DoctorNode
    words: dict[str, str]

    @property
    def host(self) -> Namespace:
        """The host's namespace."""
        return self.node.host

    def shell(self, text: str) -> subprocess.CompletedProcess[str]:
        """Runs shell commands on the host; `podwire` is the tool, with the node's directories."""
        line = ["sh", "-ec", text]
        with self.host.entered():
            return subprocess.run(
                line, env={"PATH": PATH}, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )

    def inject(self, text: str) -> None:
        """Runs a fault's shell commands, which must succeed."""
        done = self.shell(text.format(**self.words))
        assert done.returncode == 0, f"{text}: {done.stdout}{done.stderr}"

    def list_findings(self, before: str = "") -> list[dict[str, Any]]:
        """Returns doctor's findings, except that the test's store is in memory."""
        findings: list[dict[str, Any]] = self.node.list_findings(before=before)
        return [one for one in findings if one["name"] != "store-in-memory"]

    def list_rules(self) -> str:
        """Returns all rules, of nftables and of iptables-legacy, without the counters of packets."""
        done = self.shell("nft -s list ruleset; iptables-legacy -S; iptables-legacy -t nat -S")
        return re.sub(r"counter packets \d+ bytes \d+", "counter", done.stdout)

    def run_commands(self, finding: dict[str, Any]) -> str:
        """Runs the commands of a finding unchanged; returns what failed."""
        for command in finding["commands"]:
            if command.startswith("podwire "):
                done = self.node.podwire(*shlex.split(command)[1:])
            else:
                done = self.shell(command)
            if done.returncode:
                return f"{command}: {done.stdout}{done.stderr}"
        return ""


def network_list(directory: Path) -> dict[str, Any]:
    """Returns the configuration of the network."""
    ranges = [[{"subnet": SUBNET}], [{"subnet": SUBNET6}]]
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    ipam = {"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": str(directory / "leases")}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam}
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "net", "plugins": [bridge, portmap]}


@contextmanager
def fault_node(directory: Path, **options: Any) -> Iterator[FaultNode]:
    """Yields the node; `options` are those of DoctorNode."""
    with ExitStack() as stack:
        host = stack.enter_context(namespaces.temporary_host())
        far = stack.enter_context(namespaces.temporary())
        host.run("sh", "-ec", UPLINK.format(far=far.name))
        node = DoctorNode(host, directory, **options)
        network = NetworkList.load(node.configure("10.conflist", network_list(directory)))
        pods = [stack.enter_context(namespaces.temporary()) for _ in range(2)]
        results = []
        for number, pod in enumerate(pods):
            pod.ip("link", "set", "lo", "up")
            mappings = [{"hostPort": 8080 + number, "containerPort": 80, "protocol": "tcp"}]
            mappings += [] if number else [{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]
            results.append(node.attach(network.with_capabilities(portMappings=mappings), pod))
        yield FaultNode(node, _words(node, far, pods, results, network))


class Shared(Generic[_Node]):
    """A node that tests share: a new one is made after a fault that could not be undone."""

    def __init__(self, make: Callable[[], AbstractContextManager[_Node]]) -> None:
        self._make = make
        self._stack = ExitStack()
        self._node: _Node | None = None

    @contextmanager
    def used(self) -> Iterator[_Node]:
        """Yields the node; deletes it if the block fails."""
        try:
            if self._node is None:
                self._node = self._stack.enter_context(self._make())
            yield self._node
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Deletes the node."""
        self._node = None
        self._stack.close()


def _words(
    node: DoctorNode, far: Namespace, pods: list[Namespace], results: list[dict[str, Any]], network: NetworkList
) -> dict[str, str]:
    first = results[0]
    addresses = [[ip["address"].partition("/")[0] for ip in result["ips"]] for result in results]
    veths = [next(one["name"] for one in result["interfaces"] if one["name"].startswith("veth")) for result in results]
    gateway = first["ips"][0]["gateway"]
    return {
        "gate": "cni0", "veth": veths[0], "veth2": veths[1], "pod": pods[0].name, "pod2": pods[1].name, "far": far.name,
        "ip": addresses[0][0], "ip6": addresses[0][1], "ip2": addresses[1][0], "gateway": gateway,
        "gateway6": first["ips"][1]["gateway"],
        "gateway16": f"{ip_network(SUBNET).network_address + 200}/16",
        "mac": next(one["mac"] for one in first["interfaces"] if one.get("sandbox")),
        "subnet": SUBNET, "subnet6": SUBNET6, "half": SUBNET.replace("/24", "/25"),
        "gone": str(ip_network(SUBNET).network_address + 99),
        "conf": str(node.conf), "cached": str(node.cache_file(network, pods[0])),
        "leases": str(node.directory / "leases" / "net"), "ready": str(node.directory / "ready"),
    }  # fmt: skip


def describe(findings: list[dict[str, Any]]) -> str:
    """Returns findings as text for a failure."""
    return json.dumps(findings, indent=1)
