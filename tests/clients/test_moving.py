"""Moves a node from the reference plugins to podwire and back while podman's containers are running.

One rule: only the files in /opt/cni/bin change, by `podwire install` and `podwire uninstall`; podman is not notified.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients import podman as podman_client
from tests.clients.attaching import bridge
from tests.clients.podman import serving
from tests.support import binaries, sockets
from tests.support.machine import ADDRESS, CONF_DIR, PEER_ADDRESS, PEER_ADDRESS6, Machine
from tests.support.markdown import DOCS, Document
from tests.support.namespaces import Namespace
from tests.support.sockets import PORT, Reached, Service, call, is_unreachable

# The page's commands for an operator who keeps the reference plugins.
(CLEANING,) = [text for text in Document(DOCS / "moving.md").blocks("sh") if "CNI-FORWARD-OWNERS" in text]

# All plugins of the reference 1.1.1 that podwire has, too.
BRIDGE = {
    "cniVersion": "0.4.0",
    "name": "net",
    "plugins": [
        bridge("10.22.0.0/24"),
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000}
        | {"egressRate": 160_000_000, "egressBurst": 16_000_000},
        {"type": "firewall", "backend": "iptables"},
        {"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "77"}},
    ],
}
RANGES = [
    [{"subnet": "203.0.113.0/24", "rangeStart": "203.0.113.128", "gateway": PEER_ADDRESS}],
    [{"subnet": "2001:db8::/64", "rangeStart": "2001:db8::1:0", "gateway": PEER_ADDRESS6}],
]
LAN = {"type": "host-local", "ranges": RANGES, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
MACVLAN = BRIDGE | {"plugins": [{"type": "macvlan", "master": "up0", "ipam": LAN}, {"type": "tuning", "mtu": 1400}]}


class Node:
    """A machine with podman and one network, whose plugins are the reference's or podwire's."""

    def __init__(self, machine: Machine, bin_dir: Path, network: Mapping[str, Any]) -> None:
        """Gives a machine the reference plugins and the network."""
        machine.install(binaries.REFERENCE)
        machine.write(CONF_DIR / "10-net.conflist", json.dumps(network))
        self.podman, self.machine = podman_client.configure_with_image(machine), machine
        self.is_bridge, self._tool = network == BRIDGE, str(bin_dir / "podwire")

    def move(self, to: str) -> str:
        """Changes the files to "podwire" or "reference", as an operator does, and returns the tool's output."""
        return self.machine.run(self._tool, "install" if to == "podwire" else "uninstall")

    def installed_plugins(self) -> str:
        """Returns "podwire" or "reference", the plugins that a runtime would run."""
        return "podwire" if self.machine.succeeds("cmp", self._tool, "/opt/cni/bin/bridge") else "reference"

    def tool(self, *words: str, check: bool = True) -> str:
        """Runs a command of the tool."""
        return self.machine.run(self._tool, *words, check=check)

    def start(self, name: str, port: int) -> podman_client.Container:
        """Starts a container, on a bridge with a published port."""
        ports = (f"--publish={port}:{PORT}", f"--publish={port}:{PORT}/udp") if self.is_bridge else ()
        return self.podman.start(name, *ports, network="net")

    def targets(self, container: podman_client.Container, port: int) -> list[tuple[str, str, int, str]]:
        """Returns protocol, address and port by which the peer reaches a container, and the source that it sees."""
        if self.is_bridge:
            return [(protocol, ADDRESS, port, PEER_ADDRESS) for protocol in ("tcp", "udp")]
        both = zip(container.both("net"), (PEER_ADDRESS, PEER_ADDRESS6), strict=True)
        return [("tcp", ip, PORT, source) for ip, source in both]

    def states(self) -> dict[str, str]:
        """Returns the state of each container that `podwire show` prints."""
        seen = json.loads(self.tool("show", "--json", check=False))
        return {each["pod"]: each["state"] for each in seen["attachments"]}

    def problems(self) -> list[str]:
        """Returns the problems and warnings of `podwire doctor`."""
        checks = json.loads(self.tool("doctor", "net", "--json", check=False))["checks"]
        return [f"{one['severity']} {one['text']}" for one in checks if one["severity"] in ("problem", "warning")]


@pytest.fixture(scope="module", params=[BRIDGE, MACVLAN], ids=["bridge", "macvlan"])
def node(request, empty_machine, needs_programs, bin_dir, reference):
    """Podman with the reference plugins, on a network that both sets of plugins have used."""
    needs_programs(*podman_client.PROGRAMS)
    node = Node(empty_machine, bin_dir, request.param)
    for plugins in ("podwire", "reference"):
        node.move(plugins)
        node.start("first", 8000)
        node.podman.remove()
    node.machine.run("sh", "-c", CLEANING)
    return node


class Call:
    """A connection to a container that stays open."""

    def __init__(self, stack: contextlib.ExitStack, peer: Namespace, services: list[Service], target: Any) -> None:
        """Connects from the machine's peer."""
        self.caller = stack.enter_context(sockets.open_socket(peer, "tcp", "0.0.0.0"))
        self.caller.connect(target)
        listening = next(each for each in services if each.protocol == "tcp")
        self.server = stack.enter_context(listening.socket.accept()[0])

    def works(self) -> bool:
        """Sends data in both directions; returns whether it arrives."""
        self.caller.sendall(b"ping")
        self.server.sendall(b"pong")
        return (self.server.recv(4), self.caller.recv(4)) == (b"ping", b"pong")


@pytest.mark.parametrize(("first", "second"), [("reference", "podwire"), ("podwire", "reference")])
def test_node_is_moved_while_containers_are_running(node, first, second):
    """Connections to containers continue, old and new ones and the peer reach each other, each is removed completely.

    The reference plugins leave of podwire's containers what docs/moving.md lists; the page's commands remove it.
    """
    machine = node.machine
    before = machine.picture()
    node.move(first)
    assert node.installed_plugins() == first
    old, restarted = node.start("old", 8001), node.start("restarted", 8002)
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(serving(old))
        connection = Call(stack, machine.peer, services, node.targets(old, 8001)[0][1:3])
        output = node.move(second)
        assert "restored" in output if second == "reference" else "kept the previous bridge" in output
        assert node.installed_plugins() == second
        assert connection.works()
        new = node.start("new", 8003)
        node.podman("restart", "--time=0", "restarted")
        restarted = node.podman.inspect("restarted")
        for each in (new, restarted):
            services += stack.enter_context(serving(each))
        for each, number in ((old, 8001), (restarted, 8002), (new, 8003)):
            for protocol, ip, port, source in node.targets(each, number):
                assert call(services, machine.peer, protocol, ip, port) == Reached(each.name, source), (protocol, ip)
        for one, two in ((new, old), (old, new)):
            reached = call(services, one.namespace, "tcp", two.address("net"), PORT)
            assert reached == Reached(two.name, one.address("net"))
        assert node.states() == dict.fromkeys(("old", "restarted", "new"), "ok")
        assert node.problems() == []
        assert connection.works()
        gone, (protocol, ip, port, source) = node.targets(old, 8001)[0], node.targets(new, 8003)[0]
        node.podman.remove("old", "restarted")
        assert is_unreachable(services, machine.peer, *gone[:3])
        assert call(services, machine.peer, protocol, ip, port) == Reached("new", source)
    node.podman.remove()
    left = machine.leftovers(links=["cni0"])
    if second == "reference":
        assert len(left) == 2 * (2 if node.is_bridge else 1), left
        left = [line for line in left if not line.startswith(("/run/cni/tuning.podwire/", "-A CNI-FORWARD-OWNERS "))]
    assert left == []
    node.move("reference")
    with machine.unchanged(before):
        machine.run("sh", "-c", CLEANING)
