"""tuning's MTU for both ends of a pair: real packets of full size, DEL, CHECK, and what has no second end."""

import pytest

from tests.support import netstate
from tests.support.attaching import host_end, reaches
from tests.support.bandwidth_network import connect_veth
from tests.support.tuned import Tuning, now

GATEWAY = "10.22.0.1"


@pytest.fixture
def jumbo(network, tmp_path):
    """A bridge network's tuning that raises the MTU to 9000; both ends of the pair are for the test."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "tuning", "mtu": 9000, "dataDir": str(tmp_path / "tuning")}
    return Tuning(network.host, config)


def full_size(mtu):
    """Returns ping's options for packets of an MTU that must not be fragmented."""
    return ("-M", "do", "-s", str(mtu - 28))


def mtus(namespace, *names):
    """Returns the MTUs of interfaces."""
    return tuple(netstate.shown(namespace, name)["mtu"] for name in names)


@pytest.mark.parametrize("both", [True, False])
def test_packets_of_full_size(network, jumbo, new_sandbox, both):
    """With both ends packets of 9000 bytes pass from pod to pod; with the pod's alone they are lost on the way."""
    net = jumbo.having(mtuBothEnds=both)
    pods = [new_sandbox(), new_sandbox()]
    results = [network.having(cniVersion="1.1.0").add(pod) for pod in pods]
    tuned = [net.add(pod, result) for pod, result in zip(pods, results, strict=True)]
    other = tuned[1]["ips"][0]["address"].partition("/")[0]
    assert reaches(pods[0], other)
    assert reaches(pods[0], other, within_s=1, options=full_size(9000)) == both
    assert reaches(pods[0], GATEWAY, within_s=1, options=full_size(9000)) == both
    assert mtus(network.host, host_end(tuned[0]), "cni0") == ((9000, 9000) if both else (1500, 1500))
    told = {item["name"]: item["mtu"] for item in tuned[0]["interfaces"] if "mtu" in item}
    given = {item["name"]: item["mtu"] for item in results[0]["interfaces"] if "mtu" in item}
    assert told == given | {"eth0": 9000} | ({host_end(tuned[0]): 9000} if both else {})
    net.check(pods[0], tuned[0])
    net.delete(pods[0], tuned[0])
    assert mtus(network.host, host_end(tuned[0])) == (1500,)
    assert mtus(pods[0], "eth0") == (1500,)
    assert reaches(pods[0], other)


def test_check_and_del_of_both_ends(tuning, host, sandbox):
    """CHECK sees the host's end, too, and DEL restores what each end had, whatever is configured by then."""
    before = connect_veth(host, sandbox)
    host.ip("link", "set", "veth0", "mtu", "4000")
    sandbox.ip("link", "set", "eth0", "mtu", "3000")
    net, whole = tuning.having(mtu=2000, mtuBothEnds=True), tuning.everything(sandbox)
    result = net.add(sandbox, before)
    assert net.backup(sandbox) == {"mtu": 3000}
    net.check(sandbox, result)
    host.ip("link", "set", "veth0", "mtu", "1999")
    error = net.run("CHECK", sandbox, result).error()
    assert error["msg"] == "Error: Tuning configured MTU of veth0 is 2000, current value is 1999"
    tuning.having(mtu=2000).check(sandbox, result)
    net.having(mtu=1800).add(sandbox, before)
    tuning.delete(sandbox)
    assert tuning.everything(sandbox) == whole


def test_a_pair_that_is_gone(tuning, host, sandbox):
    """Where the pair, or the namespace, is gone at DEL the host keeps what it has."""
    net = tuning.having(mtu=2000, mtuBothEnds=True)
    net.add(sandbox, connect_veth(host, sandbox))
    host.ip("link", "delete", "veth0")
    host.ip("link", "add", "veth0", "mtu", "1234", "type", "veth", "peer", "name", "veth1")
    assert net.delete(sandbox) == ""
    assert (net.backups(), mtus(host, "veth0")) == ({}, (1234,))


@pytest.mark.needs("dummy")
def test_what_is_no_pair(tuning, sandbox):
    """An interface without another end on the host is refused with both ends, and nothing is changed."""
    sandbox.ip("link", "add", "eth0", "type", "dummy")
    before = {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": sandbox.path}]}
    net = tuning.having(mtu=1400, mtuBothEnds=True, sysctl={"net.core.somaxconn": "77"})
    error = net.refused(sandbox, before)
    assert (error["code"], error["msg"]) == (7, "container interface eth0 has no veth peer: it is dummy")
    assert "mtuBothEnds" in error["details"]
    alone = tuning.having(mtu=1400)
    alone.add(sandbox, before)
    assert now(sandbox)["mtu"] == 1400
    assert net.having(sysctl=None).run("CHECK", sandbox, before).error()["code"] == 7


def test_a_pair_inside_the_pod(tuning, sandbox):
    """A pair with both ends in the pod has none on the host."""
    sandbox.ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    before = {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": sandbox.path}]}
    error = tuning.having(mtu=1400, mtuBothEnds=True).refused(sandbox, before)
    assert error["msg"] == "container interface eth0 has no veth peer: its other end is not on this host"


def test_without_an_mtu(tuning, host, sandbox):
    """`mtuBothEnds` alone asks for nothing."""
    before = connect_veth(host, sandbox)
    net = tuning.having(mtuBothEnds=True)
    assert net.add(sandbox, before) == before
    net.having(txQLen=7).add(sandbox, before)
    assert mtus(host, "veth0") == (1500,)
