"""A bridge whose address is of another range than the network's: what STATUS, ADD and `podwire doctor` say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.attaching import Network
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList

TEXT = '"cni0" already has an IP address different from 10.30.0.1/16'


def moved(network: Network, *ranges: list[dict[str, str]], **keys: Any) -> Network:
    """Returns the network in a version with STATUS, with these range sets."""
    ipam = {**network.config["ipam"], "ranges": list(ranges) or [[{"subnet": "10.30.0.0/16"}]]}
    return network.having(cniVersion="1.1.0", ipam=ipam, **keys)


def test_status_says_what_add_would_say(network: Network, new_sandbox: Callable[[], Namespace]) -> None:
    """After a change of the subnet STATUS fails with code 50 and names the address that is in the way, as ADD does."""
    network.add(new_sandbox())
    status = moved(network).run("STATUS").error()
    added = moved(network).run("ADD", new_sandbox()).error()
    assert (status["code"], added["code"]) == (50, 7)
    assert status["msg"] == added["msg"] == f"failed to set bridge addr: {TEXT}"
    assert status["details"] == added["details"]
    assert '"cni0" has 10.22.0.1/16, and 1 port is in use' in status["details"]


def test_without_pods_the_command_that_is_told_is_enough(
    network: Network, new_sandbox: Callable[[], Namespace]
) -> None:
    """When no pod is left, the command in STATUS' details makes the network ready, and ADD succeeds."""
    pod = new_sandbox()
    network.delete(pod, network.add(pod))
    details = moved(network).run("STATUS").error()["details"]
    network.host.run("sh", "-ec", details)
    moved(network).run("STATUS").assert_silent()
    moved(network).add(pod)


@pytest.mark.parametrize(
    ("ranges", "keys"),
    [
        ([], {"forceAddress": True}),
        ([], {"isDefaultGateway": False}),
        ([[{"subnet": "10.30.0.0/16"}, {"subnet": "10.22.0.0/16"}]], {}),
        ([[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]], {}),
        ([], {"bridge": "cni9"}),
        pytest.param([], {"vlan": 100}, marks=pytest.mark.needs("vlan_filtering")),
    ],
    ids=["forced", "no gateway", "another range of the set", "another family", "another bridge", "a VLAN's gateway"],
)
def test_what_add_can_serve_is_ready(network: Network, new_sandbox: Callable[[], Namespace], ranges, keys) -> None:
    """STATUS is silent where ADD finds a gateway address that can be put on its interface."""
    network.add(new_sandbox())
    net = moved(network, *ranges, **keys)
    net.run("STATUS").assert_silent()


@pytest.mark.needs("vlan_filtering")
def test_the_gateway_of_a_vlan(network: Network, new_sandbox: Callable[[], Namespace]) -> None:
    """With a VLAN, STATUS looks at the interface of the VLAN's gateway."""
    network.having(vlan=100).add(new_sandbox())
    error = moved(network, vlan=100).run("STATUS").error()
    assert error["msg"].endswith(TEXT.replace("cni0", "cni0.100"))


@pytest.mark.parametrize("family", [4, 6])
def test_doctor_reports_it(host: Namespace, tmp_path, sandbox: Namespace, family: int) -> None:
    """`podwire doctor` says that the next ADD fails, whatever the network's version is."""
    node = DoctorNode(host, tmp_path)
    before, after = ("10.9.0.0/16", "10.30.0.0/16") if family == 4 else ("fd00:9::/64", "fd00:9::/48")
    gateway = "10.30.0.1/16" if family == 4 else "fd00:9::1/48"

    def configure(subnet: str) -> NetworkList:
        ipam = {"type": "host-local", "subnet": subnet, "dataDir": str(tmp_path / "leases")}
        body = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam}
        return NetworkList.load(
            node.configure("10-net.conflist", {"cniVersion": "1.0.0", "name": "net", "plugins": [body]})
        )

    node.attach(configure(before), sandbox)
    assert list_problems(node.list_findings()) == []
    configure(after)
    found = node.find("not-ready")
    assert found["severity"] == "problem"
    assert found["text"] == f'failed to set bridge addr: "cni0" already has an IP address different from {gateway}'
    assert "1 port is in use" in found["cure"]
