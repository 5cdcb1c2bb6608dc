"""A cluster on this kernel: nodes that are network and mount namespaces, and the network between them.

Each node has separate /etc/cni, /opt/cni, /var/lib/cni, /var/lib/podwire and /run. Nodes share a segment (a bridge), or
each has a segment of its own behind a router; both are in the namespace `fabric`, where an API server can listen at
SERVER. All processes of a node end with its first process.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import binaries, machine, namespaces
from tests.support.machine import Host
from tests.support.namespaces import Namespace

SERVER, SERVER6 = "192.0.2.1", "2001:db8::1"
NETWORK, POD = "podwire", "pod"
_TOOL = "/opt/cni/bin/podwire"
_SETUP = f"""
set -e
{machine.DISK}
mount -t sysfs podwire /sys
rm -rf /etc/cni /opt/cni
mkdir -p /etc/cni/net.d /opt/cni/bin
ip link set lo up
"""


class Pod(NamedTuple):
    """A pod: its namespace and its addresses by IP version."""

    namespace: Namespace
    addresses: dict[int, str]


@dataclass
class ClusterNode(Host):
    """A node: its name and number, the process that keeps its namespaces, and the directory of its disk."""

    name: str
    number: int
    pid: int
    disk: Path
    network: Namespace
    addresses: tuple[str, ...]

    def nsenter(self, *argv: str) -> list[str]:
        """Returns the command line that runs a program on the node."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--", *argv]

    @property
    def tool(self) -> str:
        """The executable from which the agent installs."""
        return str(self.disk / "podwire" / "podwire")

    def try_add(self, name: str = POD, *options: str, network: str = NETWORK) -> dict[str, Any]:
        """Runs ADD of the installed plugins for a pod, which it creates; returns what `podwire add` prints."""
        if name not in self.run("ip", "netns").split():
            self.run("ip", "netns", "add", name)
        text = self.run(_TOOL, "add", network, name, "--json", *options, check=False)
        try:
            answer: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise AssertionError(f"{self.name}: podwire add: {text}") from error
        return answer

    def add(self, name: str = POD, *options: str, network: str = NETWORK) -> Pod:
        """Creates a pod; fails the test with the plugin's answer."""
        answer = self.try_add(name, *options, network=network)
        assert "result" in answer, f"{self.name}: {answer}"
        return self.pod(name, answer)

    def pod(self, name: str, answer: Mapping[str, Any]) -> Pod:
        """Returns a pod with the addresses in an answer of try_add()."""
        ips = [ip["address"] for ip in answer["result"]["ips"]]
        addresses = {6 if ":" in ip else 4: ip.partition("/")[0] for ip in ips}
        return Pod(Namespace(f"../../proc/{self.pid}/root/run/netns/{name}"), addresses)

    def delete(self, name: str = POD) -> None:
        """Deletes a pod."""
        self.run(_TOOL, "del", NETWORK, name)
        self.run("ip", "netns", "delete", name)

    def routes(self, *options: str) -> str:
        """Returns the routes of both IP versions, or those that the options of `ip route show` select."""
        return "".join(self.run("ip", version, "route", "show", *options) for version in ("-4", "-6"))

    def route(self, network: str) -> str:
        """Returns the main table's route to a network, "" if there is none."""
        return " ".join(self.run("ip", "-6" if ":" in network else "-4", "route", "show", network).split())

    def power_off(self) -> None:
        """Cuts the node off."""
        self.network.ip("link", "set", "eth0", "down")


def error_of(answer: Mapping[str, Any]) -> Any:
    """Returns the error in an answer of ClusterNode.try_add(), None if it succeeded."""
    return next((step["error"] for step in answer["steps"] if step.get("error")), None)


def pod_args(namespace: str, name: str) -> tuple[str, ...]:
    """Returns the options of `podwire add` with CNI_ARGS as kubelet's runtime sets them."""
    values = ("IgnoreUnknown=1", f"K8S_POD_NAMESPACE={namespace}", f"K8S_POD_NAME={name}")
    return tuple(option for value in values for option in ("--args", value))


@contextlib.contextmanager
def cluster(directory: Path, count: int, *, routed: bool = False) -> Iterator[tuple[Namespace, list[ClusterNode]]]:
    """Yields the namespace of the network and `count` nodes; the nodes and their processes end with the block."""
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(namespaces.temporary("fabric"))
        fabric.ip("link", "set", "lo", "up")
        if routed:
            for key in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
                fabric.set_sysctl(key, "1")
            fabric.ip("address", "add", f"{SERVER}/32", "dev", "lo")
            fabric.ip("address", "add", f"{SERVER6}/128", "dev", "lo")
        else:
            fabric.ip("link", "add", "lan", "type", "bridge")
            fabric.ip("address", "add", f"{SERVER}/24", "dev", "lan")
            fabric.ip("address", "add", f"{SERVER6}/64", "dev", "lan", "nodad")
            fabric.ip("link", "set", "lan", "up")
        yield fabric, [stack.enter_context(_node(directory, number, fabric, routed)) for number in range(1, count + 1)]


@contextlib.contextmanager
def _node(directory: Path, number: int, fabric: Namespace, routed: bool) -> Iterator[ClusterNode]:
    disk = directory / f"node-{number}"
    disk.mkdir()
    with machine.first_process() as pid:
        network = machine.unnamed_namespace(f"/proc/{pid}/ns/net")
        addresses = _wire(pid, network, fabric, number, routed)
        node = ClusterNode(f"node-{number}", number, pid, disk, network, addresses)
        node.run("env", f"SCRATCH={disk}", "sh", "-c", _SETUP)
        (disk / "podwire").mkdir()
        shutil.copy2(binaries.directory() / "podwire", node.tool)
        yield node


def _wire(pid: int, network: Namespace, fabric: Namespace, number: int, routed: bool) -> tuple[str, ...]:
    """Connects a node's eth0; returns its addresses."""
    port = f"n{number}"
    fabric.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    ends = ((SERVER, f"192.0.2.{10 + number}", 24), (SERVER6, f"2001:db8::{10 + number}", 64))
    if routed:
        segment, segment6 = f"198.51.100.{16 * number + 1}", f"2001:db8:{number}::1"
        ends = ((segment, f"198.51.100.{16 * number + 10}", 28), (segment6, f"{segment6}0", 64))
    else:
        fabric.ip("link", "set", port, "master", "lan")
    for link, namespace in ((port, fabric), ("lo", network), ("eth0", network)):
        namespace.ip("link", "set", link, "up")
    for gateway, address, length in ends:
        options = ("nodad",) if ":" in address else ()
        if routed:
            fabric.ip("address", "add", f"{gateway}/{length}", "dev", port, *options)
        network.ip("address", "add", f"{address}/{length}", "dev", "eth0", *options)
        network.ip("route", "add", "default", "via", gateway)
    return tuple(address for _, address, _ in ends)
