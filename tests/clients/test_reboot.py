"""A node that starts again with the disk of before: its pods' remains are removed, and pods come back.

A machine is left, with all its namespaces, links and rules, and another one is begun with the same /var/lib/cni, once
as a computer (its boot has another id), once as a container that is a node (the kernel goes on).

One rule: whoever made the pods, ours or the reference's plugins, what comes after is ours to clean up.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import podman as podman_room
from tests.clients.attaching import run_on
from tests.clients.podman import Podman, serving
from tests.support.bandwidth_network import BOTH
from tests.support.hostports import ports
from tests.support.machine import ADDRESS, CONF_DIR, PEER_ADDRESS, Machine, machine
from tests.support.netlist import NetworkList
from tests.support.sockets import PORT, Reached, call, service

LIST = (
    {
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,
        "ipMasq": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/24"}]]},
    },
    {"type": "portmap", "capabilities": {"portMappings": True}},
    {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    {"type": "firewall", "backend": "iptables"},
    {"type": "tuning", "mtu": 1400, "dataDir": "/var/lib/cni/tuning"},  # which a reboot does not empty
)
PODS = {"told": 8001, "without-path": 8002, "forgotten": 8003}  # and their host ports


@pytest.fixture(params=["another boot", "the same boot"])
def life(request, root, tmp_path):
    """A function that yields a machine with the disk of the one before, which is over."""
    lives = 0

    @contextlib.contextmanager
    def begun() -> Iterator[Machine]:
        nonlocal lives
        lives += 1
        with machine(tmp_path) as made:
            if request.param == "another boot":
                boot_id = tmp_path / f"boot-{lives}"
                boot_id.write_text(f"{lives:08}-0000-4000-8000-000000000000\n")
                made.run("mount", "--bind", str(boot_id), "/proc/sys/kernel/random/boot_id")
            yield made

    return begun


@pytest.fixture(params=["ours", "reference"])
def maker(request, bin_dir, reference):
    """The directory of who makes the pods of the first life."""
    return {"ours": bin_dir, "reference": reference}[request.param]


def test_every_old_pod_is_deleted_and_comes_back(life, maker, bin_dir):
    """DEL of pods of before frees all, told of a path, of none, or of nothing; ADD of their names works again."""
    network = {
        name: NetworkList("net", "1.0.0", LIST).asking(portMappings=ports(f"{port}:{PORT}"), bandwidth=BOTH)
        for name, port in PODS.items()
    }
    with life() as node:
        node.install(maker)
        results = {}
        for name in PODS:
            node.run("ip", "netns", "add", name)
            results[name] = network[name].add(run_on(node, name, f"/run/netns/{name}"))
        assert len([line for line in node.leftovers(links=["cni0"]) if "/networks/net/10.22.0." in line]) == 3
    with life() as node:
        node.install(bin_dir)
        assert any("/networks/net/10.22.0." in line for line in node.leftovers())
        network["told"].delete(run_on(node, "told", "/run/netns/told"), results["told"])
        network["without-path"].delete(run_on(node, "without-path", ""), results["without-path"])
        network["forgotten"].delete(run_on(node, "forgotten", ""), None)
        assert node.leftovers() == []
        for name in PODS:
            node.run("ip", "netns", "add", name)
            results[name] = network[name].add(run := run_on(node, name, f"/run/netns/{name}"))
            network[name].check(run, results[name])
        for name, port in PODS.items():
            with service(node.namespace(f"/run/netns/{name}"), "tcp", "0.0.0.0", name=name) as own:
                assert call([own], node.peer, "tcp", ADDRESS, port) == Reached(name, PEER_ADDRESS)
        for name in PODS:
            network[name].delete(run_on(node, name, f"/run/netns/{name}"), results[name])
            node.run("ip", "netns", "del", name)
        assert node.leftovers(links=["cni0"]) == []


def configured(node: Machine, plugins: Path) -> Podman:
    """Configures podman with a network and whose plugins it runs; what it knows of containers is on the disk."""
    node.install(plugins)
    node.write(CONF_DIR / "10-net.conflist", json.dumps({"cniVersion": "0.4.0", "name": "net", "plugins": LIST}))
    return podman_room.installed(node)


@pytest.mark.parametrize(("life", "maker"), [("another boot", "ours"), ("the same boot", "reference")], indirect=True)
def test_containers_of_podman_start_again(life, maker, bin_dir, needs_programs):
    """Podman starts a container of before, which has its port again, and forgets another, whose port a new one gets.

    Of one that it removes without having started it podman tells no plugin: `podwire gc` frees what that had.
    """
    needs_programs(*podman_room.PROGRAMS)
    with life() as node:
        podman = configured(node, maker)
        podman.start("web", f"--publish=8080:{PORT}", network="net")
        podman.start("other", f"--publish=8081:{PORT}", network="net")
    with life() as node:
        podman = configured(node, bin_dir)
        podman.start("first", network="net")  # its namespace shows where those that are missing would be
        podman("start", "web")
        podman.start("new", f"--publish=8081:{PORT}", network="net")
        for name, port in (("web", 8080), ("new", 8081)):
            with serving(podman.inspect(name)) as services:
                assert call(services, node.peer, "tcp", ADDRESS, port) == Reached(name, PEER_ADDRESS)
        collected = node.run(str(bin_dir / "podwire"), "gc", "net")
        assert "network net: 4 attachments: 3 running, 1 no longer running" in collected
        podman.remove()
        assert node.leftovers(links=["cni0"]) == []
