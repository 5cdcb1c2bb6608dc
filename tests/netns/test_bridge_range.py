"""A bridge whose address conflicts with the network's range: STATUS, ADD and `podwire doctor` report it."""

import pytest

from tests.support.attaching import reaches
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.netlist import NetworkList

TEXT = '"cni0" already has an IP address different from 10.30.0.1/16'


def with_ranges(network, *ranges, **keys):
    """Returns the network in a version with STATUS, with these range sets."""
    ipam = {**network.config["ipam"], "ranges": list(ranges) or [[{"subnet": "10.30.0.0/16"}]]}
    return network.having(cniVersion="1.1.0", ipam=ipam, **keys)


def test_status_reports_the_same_conflict_as_add(network, new_sandbox):
    """After a change of the subnet STATUS fails with code 50 and ADD's text, which names the conflicting address."""
    running = [(pod := new_sandbox(), network.add(pod)) for _ in range(2)]
    status = with_ranges(network).run("STATUS").error()
    added = with_ranges(network).run("ADD", new_sandbox()).error()
    assert (status["code"], added["code"]) == (50, 7)
    assert status["msg"] == added["msg"] == f"failed to set bridge addr: {TEXT}"
    assert status["details"] == added["details"]
    assert added["details"] == (
        '"cni0" has 10.22.0.1/16, and 2 ports are in use; configure IPAM with the subnet of that address, or set '
        '"bridge" to another name; "forceAddress" replaces the address, and running pods lose their gateway'
    )
    assert all(reaches(pod, result["ips"][0]["gateway"]) for pod, result in running)


def test_command_in_status_fixes_a_bridge_without_pods(network, new_sandbox):
    """Without pods, the command in STATUS' details makes STATUS and ADD succeed."""
    pod = new_sandbox()
    network.delete(pod, network.add(pod))
    details = with_ranges(network).run("STATUS").error()["details"]
    network.host.run("sh", "-ec", details)
    with_ranges(network).run("STATUS").assert_silent()
    with_ranges(network).add(pod)


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
def test_status_accepts_ranges_that_add_can_serve(network, new_sandbox, ranges, keys):
    """STATUS succeeds if ADD can add a gateway address."""
    network.add(new_sandbox())
    with_ranges(network, *ranges, **keys).run("STATUS").assert_silent()


@pytest.mark.needs("vlan_filtering")
def test_status_checks_the_gateway_interface_of_a_vlan(network, new_sandbox):
    """With a VLAN, STATUS checks the addresses of the gateway interface."""
    network.having(vlan=100).add(new_sandbox())
    error = with_ranges(network, vlan=100).run("STATUS").error()
    assert error["msg"].endswith(TEXT.replace("cni0", "cni0.100"))


@pytest.mark.parametrize("family", [4, 6])
def test_doctor_reports_the_conflict(host, tmp_path, sandbox, family):
    """`podwire doctor` reports that the next ADD fails, for any version of the network."""
    node = DoctorNode(host, tmp_path)
    before, after = ("10.9.0.0/16", "10.30.0.0/16") if family == 4 else ("fd00:9::/64", "fd00:9::/48")
    gateway = "10.30.0.1/16" if family == 4 else "fd00:9::1/48"

    def configure(subnet):
        ipam = {"type": "host-local", "subnet": subnet, "dataDir": str(tmp_path / "leases")}
        body = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam}
        conf = {"cniVersion": "1.0.0", "name": "net", "plugins": [body]}
        return NetworkList.load(node.configure("10-net.conflist", conf))

    node.attach(configure(before), sandbox)
    assert list_problems(node.list_findings()) == []
    configure(after)
    finding = node.find("not-ready")
    assert finding["severity"] == "problem"
    assert finding["text"] == f'failed to set bridge addr: "cni0" already has an IP address different from {gateway}'
    assert "1 port is in use" in finding["cure"]
