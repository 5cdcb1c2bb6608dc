"""A node starts again with the same disk: the remains of its pods are removed, and the pods come back.

A machine ends, with all its namespaces, links and rules, and another one starts with the same /var/lib/cni: once as a
computer, whose boot has another ID, once as a container that is a node, whose kernel keeps running.

One rule: podwire cleans up after pods of both plugins, podwire's and the reference plugins.
"""

import contextlib
from collections.abc import Iterator

import pytest

from tests.clients.attaching import bridge, run_on
from tests.support.bandwidth_network import BOTH
from tests.support.hostports import ports
from tests.support.machine import ADDRESS, PEER_ADDRESS, Machine, machine
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
