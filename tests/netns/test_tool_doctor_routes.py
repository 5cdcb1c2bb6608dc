"""`podwire doctor` on nodes with an uplink whose routes or settings disturb the pods."""

from __future__ import annotations

import pytest

from tests.netns.test_tool_doctor_faults import MAPPING, OUT
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.netlist import NetworkList

UPLINK = OUT.format(mtu=1500)
ROUTED_ELSEWHERE = {  # shell commands on a node with an uplink
    "one pod": f"{UPLINK}; ip route add 10.26.0.2/32 via 192.0.2.2",
    "half of the pods": f"{UPLINK}; ip route add 10.26.0.0/25 via 192.0.2.2 metric 7",
    "a neighbour": f"{UPLINK}; ip route add 10.26.0.0/24 dev out0",
}


@pytest.fixture
def node(host, tmp_path) -> DoctorNode:
    return DoctorNode(host, tmp_path)


@pytest.fixture
def network(node: DoctorNode) -> NetworkList:
    return node.add_sample("60-podman.conflist").with_capabilities(portMappings=[MAPPING])


@pytest.mark.parametrize("shell", ROUTED_ELSEWHERE.values(), ids=ROUTED_ELSEWHERE)
def test_pod_that_is_routed_elsewhere(node, network, sandbox, shell):
    """A route to a pod through a foreign interface is reported, and the printed command deletes only that route."""
    node.attach(network, sandbox)
    routes = node.host.ip("route")
    node.host.run("sh", "-ec", shell)
    finding = node.find("pod-routed-elsewhere")
    assert 'to "out0", not to "cni4"' in finding["text"]
    node.run_fix(finding)
    assert list_problems(node.list_findings()) == []
    assert set(node.host.ip("route").splitlines()) > set(routes.splitlines())


def test_default_route_is_never_deleted(node, network, sandbox):
    """If the default route is the only route to a pod, no printed command deletes it."""
    node.attach(network, sandbox)
    node.host.run("sh", "-ec", f"{UPLINK}; ip address flush dev cni4")
    assert not any("route del" in one["cure"] for one in node.list_findings())
    node.run_fix(node.find("gateway-missing"))
    assert list_problems(node.list_findings()) == []


def test_route_of_an_uplink_address_is_never_deleted(node, network, sandbox):
    """For the kernel's route of an uplink address, the overlap is reported and no command deletes the route."""
    node.attach(network, sandbox)
    shell = f"{UPLINK}; ip address flush dev out0; ip address add 10.26.0.100/25 dev out0"
    node.host.run("sh", "-ec", shell)
    finding = node.find("pod-routed-elsewhere")
    assert finding["cure"].startswith('"out0" has an address in 10.26.0.0/25')
    assert finding["commands"] == []


def test_uplink_that_does_not_forward(node, network, sandbox):
    """Disabled forwarding of a foreign interface is reported without a command that enables it."""
    node.attach(network, sandbox)
    node.host.run("sh", "-ec", f"{UPLINK}; sysctl -qw net/ipv4/conf/out0/forwarding=0")
    finding = node.find("interface-forwarding-off")
    assert finding["subject"] == "net/ipv4/conf/out0/forwarding"
    assert "sysctl" not in finding["cure"]
