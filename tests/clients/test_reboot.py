"""A node starts again with the same disk: the remains of its pods are removed, and the pods come back.

A machine ends, with all its namespaces, links and rules, and another one starts with the same /var/lib/cni: once as a
computer, whose boot has another ID, once as a container that is a node, whose kernel keeps running.

One rule: podwire cleans up after pods of both plugins, podwire's and the reference plugins.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import podman as podman_client
from tests.clients.attaching import bridge, run_on
from tests.clients.podman import Podman, serving
from tests.support.bandwidth_network import BOTH
from tests.support.hostports import ports
from tests.support.machine import ADDRESS, CONF_DIR, PEER_ADDRESS, Machine, machine
from tests.support.netlist import NetworkList
from tests.support.sockets import PORT, Reached, call, service

LIST = (
    bridge("10.22.0.0/24"),
    {"type": "portmap", "capabilities": {"portMappings": True}},
    {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    {"type": "firewall", "backend": "iptables"},
    {"type": "tuning", "mtu": 1400, "dataDir": "/var/lib/cni/tuning"},  # a directory that survives a reboot
)
PODS = {"with-path": 8001, "without-path": 8002, "without-result": 8003}  # and their host ports


@pytest.fixture(params=["another boot", "the same boot"])
def next_machine(request, root, tmp_path):
    """A function that yields a machine with the disk of the one before, which has ended."""
    started = 0

    @contextlib.contextmanager
    def start() -> Iterator[Machine]:
        nonlocal started
        started += 1
        with machine(tmp_path) as node:
            if request.param == "another boot":
                boot_id = tmp_path / f"boot-{started}"
                boot_id.write_text(f"{started:08}-0000-4000-8000-000000000000\n")
                node.run("mount", "--bind", str(boot_id), "/proc/sys/kernel/random/boot_id")
            yield node

    return start


@pytest.fixture(params=["podwire", "reference"])
def first_bin_dir(request, bin_dir, reference):
    """The directory of the plugins that create the pods of the first machine."""
    return {"podwire": bin_dir, "reference": reference}[request.param]


def test_pods_from_before_a_reboot_are_deleted_and_start_again(next_machine, first_bin_dir, bin_dir):
    """DEL of earlier pods with a path, without one, or without a result removes all; the pods can start again."""
    network = {
        name: NetworkList("net", "1.0.0", LIST).with_capabilities(portMappings=ports(f"{port}:{PORT}"), bandwidth=BOTH)
        for name, port in PODS.items()
    }
    with next_machine() as node:
        node.install(first_bin_dir)
        results = {}
        for name in PODS:
            node.run("ip", "netns", "add", name)
            results[name] = network[name].add(run_on(node, name, f"/run/netns/{name}"))
        assert len([line for line in node.leftovers(links=["cni0"]) if "/networks/net/10.22.0." in line]) == 3
    with next_machine() as node:
        node.install(bin_dir)
        assert any("/networks/net/10.22.0." in line for line in node.leftovers())
        network["with-path"].delete(run_on(node, "with-path", "/run/netns/with-path"), results["with-path"])
        network["without-path"].delete(run_on(node, "without-path", ""), results["without-path"])
        network["without-result"].delete(run_on(node, "without-result", ""), None)
        assert node.leftovers() == []
        for name in PODS:
            node.run("ip", "netns", "add", name)
            results[name] = network[name].add(run := run_on(node, name, f"/run/netns/{name}"))
            network[name].check(run, results[name])
        for name, port in PODS.items():
            with service(node.namespace(f"/run/netns/{name}"), "tcp", "0.0.0.0", name=name) as server:
                assert call([server], node.peer, "tcp", ADDRESS, port) == Reached(name, PEER_ADDRESS)
        for name in PODS:
            network[name].delete(run_on(node, name, f"/run/netns/{name}"), results[name])
            node.run("ip", "netns", "del", name)
        assert node.leftovers(links=["cni0"]) == []


def configure_node(node: Machine, plugins: Path) -> Podman:
    """Configures podman with a network and a directory of plugins; its state of containers is on the disk."""
    node.install(plugins)
    node.write(CONF_DIR / "10-net.conflist", json.dumps({"cniVersion": "0.4.0", "name": "net", "plugins": LIST}))
    return podman_client.configure_with_image(node)


@pytest.mark.parametrize(
    ("next_machine", "first_bin_dir"), [("another boot", "podwire"), ("the same boot", "reference")], indirect=True
)
def test_containers_of_podman_start_again(next_machine, first_bin_dir, bin_dir, needs_programs):
    """Podman starts a container again, which has its port, and removes another, whose port a new one gets.

    Podman runs no DEL for a container that it removes without starting it: `podwire gc` releases its resources.
    """
    needs_programs(*podman_client.PROGRAMS)
    with next_machine() as node:
        podman = configure_node(node, first_bin_dir)
        podman.start("web", f"--publish=8080:{PORT}", network="net")
        podman.start("other", f"--publish=8081:{PORT}", network="net")
    with next_machine() as node:
        podman = configure_node(node, bin_dir)
        podman.start("first", network="net")  # its namespace shows the directory of namespaces
        podman("start", "web")
        podman.start("new", f"--publish=8081:{PORT}", network="net")
        for name, port in (("web", 8080), ("new", 8081)):
            with serving(podman.inspect(name)) as services:
                assert call(services, node.peer, "tcp", ADDRESS, port) == Reached(name, PEER_ADDRESS)
        collected = node.run(str(bin_dir / "podwire"), "gc", "net")
        assert "network net: 4 attachments: 3 running, 1 no longer running" in collected
        podman.remove()
        assert node.leftovers(links=["cni0"]) == []
