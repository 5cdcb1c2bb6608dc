"""`podwire doctor` on nodes with an uplink: a route or a setting of it that is in the pods' way."""

from __future__ import annotations

import pytest

from tests.netns.test_tool_doctor_faults import MAPPING, OUT
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.netlist import NetworkList

UPLINK = OUT.format(mtu=1500)
ROUTED_ELSEWHERE = {  # what is done to a node with an uplink
    "one pod": f"{UPLINK}; ip route add 10.26.0.2/32 via 192.0.2.2",
    "half of the pods": f"{UPLINK}; ip route add 10.26.0.0/25 via 192.0.2.2 metric 7",
    "a neighbour": f"{UPLINK}; ip route add 10.26.0.0/24 dev out0",
}


@pytest.fixture
def node(host, tmp_path) -> DoctorNode:
    return DoctorNode(host, tmp_path)


@pytest.fixture
def network(node) -> NetworkList:
    return node.add_sample("60-podman.conflist").asking(portMappings=[MAPPING])


@pytest.mark.parametrize("shell", ROUTED_ELSEWHERE.values(), ids=ROUTED_ELSEWHERE)
def test_a_pod_that_is_routed_elsewhere(node, network, sandbox, shell):
    """A route to a pod by an interface that is not the pod's is found, and the command deletes that route only."""
    node.attach(network, sandbox)
    routes = node.host.ip("route")
    node.host.run("sh", "-ec", shell)
    found = node.find("pod-routed-elsewhere")
    assert 'by "out0", not by "cni4" or "veth' in found["text"]
    node.run_fix(found)
    assert list_problems(node.list_findings()) == []
    assert set(node.host.ip("route").splitlines()) > set(routes.splitlines())


def test_a_default_route_is_not_in_the_way(node, network, sandbox):
    """Where only the default route is left to a pod, no command deletes that."""
    node.attach(network, sandbox)
    node.host.run("sh", "-ec", f"{UPLINK}; ip address flush dev cni4")
    assert not any("route delete" in one["cure"] for one in node.list_findings())
    node.run_fix(node.find("gateway-missing"))
    assert list_problems(node.list_findings()) == []


def test_a_network_of_the_host_that_overlaps_the_pods_is_not_cut_off(node, network, sandbox):
    """The route that the kernel made for an address of the uplink is not deleted: the ranges overlap, which is said."""
    node.attach(network, sandbox)
    shell = f"{UPLINK}; ip address flush dev out0; ip address add 10.26.0.100/25 dev out0"
    node.host.run("sh", "-ec", shell)
    found = node.find("pod-routed-elsewhere")
    assert "overlaps the network 10.26.0.0/25 of out0" in found["cure"]
    assert "route delete" not in found["cure"]


def test_an_uplink_that_does_not_forward(node, network, sandbox):
    """Forwarding that is off for an interface that is not podwire's is found, and no command switches it on."""
    node.attach(network, sandbox)
    node.host.run("sh", "-ec", f"{UPLINK}; sysctl -qw net/ipv4/conf/out0/forwarding=0")
    found = node.find("interface-forwarding-off")
    assert found["subject"] == "net/ipv4/conf/out0/forwarding"
    assert "sysctl" not in found["cure"]
