"""`podwire show` prints ok for a pod only if CHECK of its plugins passes, like `podwire doctor`."""

from __future__ import annotations

import pytest

from tests.support.doctor_node import DoctorNode

MAPPING = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}


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
