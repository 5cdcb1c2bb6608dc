"""Moving a node from the reference plugins to ours and back while podman's containers live on it.

One rule: nobody tells podman; what changes is the files in /opt/cni/bin, by `podwire install` and `podwire uninstall`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients import podman as podman_room
from tests.clients.podman import Podman, serving
from tests.support import binaries, namespaces, netstate, sockets
from tests.support.hostports import ports
from tests.support.invocation import run_plugin
from tests.support.machine import ADDRESS, CONF_DIR, PEER_ADDRESS, Machine
from tests.support.markdown import DOCS, Document
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.processes import output
from tests.support.sockets import PORT, Reached, Service, call

# What an operator who stays with the reference runs in the end, as the page has it.
(CLEANING,) = [text for text in Document(DOCS / "moving.md").blocks("sh") if "CNI-FORWARD-OWNERS" in text]

# All that can be asked of the reference 1.1.1 and of ours.
NETWORK = {
    "cniVersion": "0.4.0",
    "name": "net",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.22.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000}
        | {"egressRate": 160_000_000, "egressBurst": 16_000_000},
        {"type": "firewall", "backend": "iptables"},
        {"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "77"}},
    ],
}


class Node:
    """A machine with podman, and who serves its network now: the reference's files, or ours."""

    def __init__(self, podman: Podman, bin_dir: Path) -> None:
        """Takes over a machine without plugins."""
        self.podman, self.machine, self._tool = podman, podman.machine, str(bin_dir / "podwire")

    def move(self, to: str) -> str:
        """Changes the files, as an operator does, and returns what the tool says."""
        return self.machine.run(self._tool, "install" if to == "ours" else "uninstall")

    def serves(self) -> str:
        """Returns whose plugins would be run."""
        return "ours" if self.machine.succeeds("cmp", self._tool, "/opt/cni/bin/bridge") else "reference"

    def tool(self, *words: str, check: bool = True) -> str:
        """Runs a command of the tool."""
        return self.machine.run(self._tool, *words, check=check)

    def start(self, name: str, port: int) -> podman_room.Container:
        """Starts a container with a published port."""
        return self.podman.start(name, f"--publish={port}:{PORT}", f"--publish={port}:{PORT}/udp", network="net")

    def states(self) -> dict[str, str]:
        """Returns what `podwire show` tells of each container."""
        seen = json.loads(self.tool("show", "--json", check=False))
        return {each["pod"]: each["state"] for each in seen["attachments"]}

    def problems(self) -> list[str]:
        """Returns what `podwire doctor` calls a problem or a warning."""
        found = json.loads(self.tool("doctor", "net", "--json", check=False))["checks"]
        return [f"{one['severity']} {one['text']}" for one in found if one["severity"] in ("problem", "warning")]


@pytest.fixture(scope="module")
def node(empty_machine: Machine, needs_programs, bin_dir, reference):
    """Podman with the reference plugins, on a network that both kinds of plugins have served before."""
    needs_programs(*podman_room.PROGRAMS)
    empty_machine.install(binaries.REFERENCE)
    empty_machine.write(CONF_DIR / "10-net.conflist", json.dumps(NETWORK))
    made = Node(podman_room.installed(empty_machine), bin_dir)
    for kind in ("ours", "reference"):
        made.move(kind)
        made.start("first", 8000)
        made.podman.remove()
    made.machine.run("sh", "-c", CLEANING)
    return made


class Call:
    """A connection to a published port that stays open."""

    def __init__(self, stack: contextlib.ExitStack, machine: Machine, services: list[Service], port: int) -> None:
        """Connects from the machine's peer."""
        self.caller = stack.enter_context(sockets.open_socket(machine.peer, "tcp", "0.0.0.0"))
        self.caller.connect((ADDRESS, port))
        listening = next(each for each in services if each.protocol == "tcp")
        self.answerer = stack.enter_context(listening.socket.accept()[0])

    def goes_on(self) -> bool:
        """Tells whether what either end sends arrives."""
        self.caller.sendall(b"ping")
        self.answerer.sendall(b"pong")
        return (self.answerer.recv(4), self.caller.recv(4)) == (b"ping", b"pong")


@pytest.mark.parametrize(("maker", "taker"), [("reference", "ours"), ("ours", "reference")])
def test_a_node_changes_hands_while_containers_live(node, maker, taker):
    """Connections through published ports go on, old and new containers are neighbours, and each is removed in whole.

    What the reference leaves of containers that we made is what docs/moving.md says, and goes as it says.
    """
    machine = node.machine
    before = machine.picture()
    node.move(maker)
    assert node.serves() == maker
    old, restarted = node.start("old", 8001), node.start("restarted", 8002)
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(serving(old))
        held = Call(stack, machine, services, 8001)
        told = node.move(taker)
        assert "restored" in told if taker == "reference" else "kept the previous bridge" in told
        assert node.serves() == taker
        assert held.goes_on()
        new = node.start("new", 8003)
        node.podman("restart", "--time=0", "restarted")
        restarted = node.podman.inspect("restarted")
        for each in (new, restarted):
            services += stack.enter_context(serving(each))
        for each, port in ((old, 8001), (restarted, 8002), (new, 8003)):
            for protocol in ("tcp", "udp"):
                reached = call(services, machine.peer, protocol, ADDRESS, port)
                assert reached == Reached(each.name, PEER_ADDRESS), (each.name, protocol)
        assert call(services, new.namespace, "tcp", old.address("net"), PORT) == Reached("old", new.address("net"))
        assert call(services, old.namespace, "tcp", new.address("net"), PORT) == Reached("new", old.address("net"))
        assert node.states() == dict.fromkeys(("old", "restarted", "new"), "ok")
        assert node.problems() == []
        assert held.goes_on()
        node.podman.remove("old", "restarted")
        assert call(services, machine.peer, "tcp", ADDRESS, 8001) is None
        assert call(services, machine.peer, "tcp", ADDRESS, 8003) == Reached("new", PEER_ADDRESS)
    node.podman.remove()
    left = machine.leftovers(links=["cni0"])
    if taker == "reference":
        assert len(left) == 2 * 2, left
        left = [line for line in left if not line.startswith(("/run/cni/tuning.podwire/", "-A CNI-FORWARD-OWNERS "))]
    assert left == []
    node.move("reference")
    with machine.unchanged(before):
        machine.run("sh", "-c", CLEANING)


def older(bin_dir: Path, directory: Path) -> Path:
    """Returns another build of the tool: the same program in other bytes."""
    program = directory / "older"
    program.write_bytes((bin_dir / "podwire").read_bytes() + b"older")
    program.chmod(0o755)
    return program


class Traffic:
    """Pods that come and go, one after the other, by whatever is in a directory at that moment."""

    def __init__(self, host: Namespace, bin_dir: Path, store: Path, number: int) -> None:
        """Knows a network, whose pods have a host port of this number."""
        ipam = {"type": "host-local", "dataDir": str(store), "ranges": [[{"subnet": "10.22.0.0/16"}]]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "ipam": ipam}
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        network = NetworkList("net", "1.0.0", (bridge, portmap))
        self.network = network.asking(portMappings=ports(f"{8000 + number}:80"))
        self.how = {"host": host, "bin_dir": bin_dir}
        self.passed, self.over = threading.Semaphore(0), False

    def run(self) -> None:
        """Attaches and detaches pods until it is over; a verb that fails ends it."""
        while not self.over:
            with namespaces.temporary() as pod:
                how = {"netns": pod, "container_id": pod.name, **self.how}
                run = functools.partial(run_plugin, **how)
                self.network.delete(run, self.network.add(run))
            self.passed.release()


def test_an_upgrade_while_pods_are_started(host, bin_dir, store, tmp_path):
    """From one podwire to the next, out of an archive, and back: no ADD and no DEL of pods that come and go fails."""
    directory, archive = tmp_path / "bin", tmp_path / "podwire.tgz"
    builds = [unpacked := tmp_path / "podwire", older(bin_dir, tmp_path)]
    output("tar", "-C", str(bin_dir), "-czf", str(archive), "bridge", "portmap", "host-local", "podwire")
    output(str(builds[1]), "install", "--bin-dir", str(directory))
    loops = [Traffic(host, directory, store, number) for number in range(2)]
    with ThreadPoolExecutor(len(loops)) as pool:
        running, going = [pool.submit(loop.run) for loop in loops], True
        try:
            for build in builds * 2:
                if build == unpacked:
                    output("tar", "-C", str(unpacked.parent), "-xzf", str(archive))
                output(str(build), "install", "--bin-dir", str(directory))
                going = going and all(loop.passed.acquire(timeout=30) for loop in loops)
        finally:
            for loop in loops:
                loop.over = True
        for each in running:
            each.result()
    assert going
    assert (set(netstate.links(host)), {path.name for path in store.glob("net/1*")}) == ({"lo", "cni0"}, set())
