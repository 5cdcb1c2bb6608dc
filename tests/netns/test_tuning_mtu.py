"""Tuning's MTU for both ends of a veth pair: packets of full size, DEL, CHECK, and interfaces without a host veth."""

import pytest

from tests.support import netstate
from tests.support.attaching import host_end, reaches
from tests.support.bandwidth_network import connect_veth
from tests.support.tuning_network import Tuning, get_attributes

GATEWAY = "10.22.0.1"


@pytest.fixture
def jumbo(network, tmp_path):
    """A bridge network's tuning that sets the MTU to 9000; the test sets `mtuBothEnds`."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "tuning", "mtu": 9000, "dataDir": str(tmp_path / "tuning")}
    return Tuning(network.host, config)


def get_mtus(namespace, *names):
    """Returns the MTUs of interfaces."""
    return tuple(netstate.shown(namespace, name)["mtu"] for name in names)


@pytest.mark.parametrize("both", [True, False])
def test_packets_of_full_size(network, jumbo, new_sandbox, both):
    """With `mtuBothEnds` packets of 9000 bytes pass from pod to pod; otherwise they are lost."""
    net = jumbo.having(mtuBothEnds=both)
    pods = [new_sandbox(), new_sandbox()]
    results = [network.having(cniVersion="1.1.0").add(pod) for pod in pods]
    tuned_results = [net.add(pod, result) for pod, result in zip(pods, results, strict=True)]
    other = tuned_results[1]["ips"][0]["address"].partition("/")[0]
    assert reaches(pods[0], other)
    for target in (other, GATEWAY):
        # Unfragmented, with the headers of IP and ICMP.
        full_size = ("-M", "do", "-s", str(9000 - 28))
        assert reaches(pods[0], target, within_s=20 if both else 1, options=full_size) == both
    assert get_mtus(network.host, host_end(tuned_results[0]), "cni0") == ((9000, 9000) if both else (1500, 1500))
    new_mtus = {item["name"]: item["mtu"] for item in tuned_results[0]["interfaces"] if "mtu" in item}
    old_mtus = {item["name"]: item["mtu"] for item in results[0]["interfaces"] if "mtu" in item}
    assert new_mtus == old_mtus | {"eth0": 9000} | ({host_end(tuned_results[0]): 9000} if both else {})
    net.check(pods[0], tuned_results[0])
    net.delete(pods[0], tuned_results[0])
    assert get_mtus(network.host, host_end(tuned_results[0])) == (1500,)
    assert get_mtus(pods[0], "eth0") == (1500,)
    assert reaches(pods[0], other)


def test_check_and_del_of_both_ends(tuning, host, sandbox):
    """CHECK checks the host veth, too, and DEL restores the MTU of each end, whatever is configured."""
    prev_result = connect_veth(host, sandbox)
    host.ip("link", "set", "veth0", "mtu", "4000")
    sandbox.ip("link", "set", "eth0", "mtu", "3000")
    net, state = tuning.having(mtu=2000, mtuBothEnds=True), tuning.everything(sandbox)
    result = net.add(sandbox, prev_result)
    assert net.backup(sandbox) == {"mtu": 3000}
    net.check(sandbox, result)
    host.ip("link", "set", "veth0", "mtu", "1999")
    assert net.check_error(sandbox, result) == "Error: Tuning configured MTU of veth0 is 2000, current value is 1999"
    tuning.having(mtu=2000).check(sandbox, result)
    net.having(mtu=1800).add(sandbox, prev_result)
    tuning.delete(sandbox)
    assert tuning.everything(sandbox) == state


def test_del_after_deletion_of_the_veth(tuning, host, sandbox):
    """DEL does not change a new veth with the name of the deleted host veth."""
    net = tuning.having(mtu=2000, mtuBothEnds=True)
    net.add(sandbox, connect_veth(host, sandbox))
    host.ip("link", "delete", "veth0")
    host.ip("link", "add", "veth0", "mtu", "1234", "type", "veth", "peer", "name", "veth1")
    assert net.delete(sandbox) == ""
    assert (net.backups(), get_mtus(host, "veth0")) == ({}, (1234,))


@pytest.mark.needs("dummy")
def test_interface_without_a_peer(tuning, sandbox):
    """`mtuBothEnds` is refused for an interface without a host veth, and ADD changes nothing."""
    sandbox.ip("link", "add", "eth0", "type", "dummy")
    prev_result = {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": sandbox.path}]}
    net = tuning.having(mtu=1400, mtuBothEnds=True, sysctl={"net.core.somaxconn": "77"})
    error = net.add_error(sandbox, prev_result)
    assert (error["code"], error["msg"]) == (7, "container interface eth0 has no veth peer: it is dummy")
    assert "mtuBothEnds" in error["details"]
    tuning.having(mtu=1400).add(sandbox, prev_result)
    assert get_attributes(sandbox)["mtu"] == 1400
    assert net.having(sysctl=None).run("CHECK", sandbox, prev_result).error()["code"] == 7


def test_veth_with_both_ends_in_the_pod(tuning, sandbox):
    """`mtuBothEnds` is refused for a veth pair with both ends in the pod."""
    sandbox.ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    prev_result = {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": sandbox.path}]}
    error = tuning.having(mtu=1400, mtuBothEnds=True).add_error(sandbox, prev_result)
    assert error["msg"] == "container interface eth0 has no veth peer: its other end is not on this host"


def test_both_ends_without_an_mtu(tuning, host, sandbox):
    """`mtuBothEnds` without `mtu` has no effect."""
    prev_result = connect_veth(host, sandbox)
    net = tuning.having(mtuBothEnds=True)
    assert net.add(sandbox, prev_result) == prev_result
    net.having(txQLen=7).add(sandbox, prev_result)
    assert get_mtus(host, "veth0") == (1500,)
