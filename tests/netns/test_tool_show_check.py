"""`podwire show` prints ok for a pod only if CHECK of its plugins passes, like `podwire doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.doctor_node import DoctorNode
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList

MAPPING = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}


@pytest.fixture
def node(host: Namespace, tmp_path: Path) -> DoctorNode:
    return DoctorNode(host, tmp_path)


def run_show(node: DoctorNode) -> tuple[int, str]:
    """Returns the exit status and the output of `show`."""
    done = node.podwire("show", f"--data-dir={node.directory}/leases")
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_pod_without_masquerade_rules(node, sandbox):
    """A pod without its NAT rules is not ok, and the plugin's error is printed."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    status, text = run_show(node)
    assert (status, " ok\n" in text) == (0, True), text
    node.host.run("iptables", "-t", "nat", "-F")
    status, text = run_show(node)
    assert (status, " ok\n" in text, "check failed" in text) == (1, False, True), text
    assert f"podwire-podman {sandbox.name} eth0: bridge: masquerade: " in text
    assert text.endswith("for the fixes: podwire doctor\n")


@pytest.mark.needs("ifb", "tbf")
def test_host_port_without_ipv4_rules(node, sandbox):
    """A dual-stack pod whose host port has no IPv4 rules is not ok, and the port is not confirmed."""
    network = node.add_sample("20-dual-stack.conflist").with_capabilities(portMappings=[MAPPING])
    node.attach(network, sandbox)
    assert run_show(node)[0] == 0
    node.host.run("iptables", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT")
    status, text = run_show(node)
    assert (status, "check failed" in text, "8080->80/tcp?" in text) == (1, True, True), text
    assert f"{network.name} {sandbox.name} eth0: portmap: " in text


def test_shadowed_host_port(node, new_sandbox):
    """A pod whose host port is shadowed by another pod's rule is not ok, and the other pod is."""
    network = node.add_sample("60-podman.conflist").with_capabilities(portMappings=[MAPPING])
    first, second = new_sandbox(), new_sandbox()
    node.attach(network, first)
    node.attach(network, second)
    status, text = run_show(node)
    assert (status, text.count(" ok\n"), text.count("check failed\n")) == (1, 1, 1), text
    assert f"{second.name} eth0: portmap: host port 8080" in text


def test_network_without_check(node, sandbox):
    """A pod whose network's version has no CHECK has the state "not checked"."""
    ipam = {"type": "host-local", "subnet": "10.9.0.0/28", "dataDir": str(node.directory / "leases")}
    body = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam}
    path = node.configure("10-old.conflist", {"cniVersion": "0.3.1", "name": "old", "plugins": [body]})
    node.attach(NetworkList.load(path), sandbox)
    status, text = run_show(node)
    assert (status, "not checked" in text) == (0, True), text
