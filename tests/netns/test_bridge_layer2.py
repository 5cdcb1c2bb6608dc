"""bridge without IPAM, and with the container's end down: no addresses, only frames."""

import pytest

from tests.support.attaching import host_end, reaches
from tests.support.netstate import links, shown, state

NO_IPAM = [None, {}, {"type": ""}, {"dataDir": "/nowhere"}]


@pytest.fixture
def l2(network):
    """A network without IPAM and gateway."""
    return network.having(ipam=None, isDefaultGateway=None)


@pytest.mark.parametrize("ipam", NO_IPAM)
def test_without_ipam_there_are_no_addresses(l2, sandbox, ipam):
    """Without an IPAM type the interface is up without addresses; the result lists interfaces; CHECK, DEL succeed."""
    net = l2.having(ipam=ipam)
    result = net.add(sandbox)
    assert result.keys() == {"cniVersion", "interfaces"}
    assert [item["name"] for item in result["interfaces"]][::2] == ["cni0", "eth0"]
    container_link = links(sandbox)["eth0"]
    assert (container_link["addresses"], "UP" in container_link["flags"]) == ([], True)
    assert state(sandbox)["routes"]["ipv4"] == []
    net.check(sandbox, result)
    for _ in range(2):
        net.delete(sandbox, result)
    assert (set(links(sandbox)), set(links(net.host))) == ({"lo"}, {"lo", "cni0"})


def test_pods_reach_each_other_by_manual_addresses(l2, new_sandbox):
    """Two pods without IPAM reach each other once addresses were added by hand."""
    for number in (1, 2):
        pod = new_sandbox()
        l2.add(pod)
        pod.ip("addr", "add", f"192.0.2.{number}/24", "dev", "eth0")
    assert reaches(pod, "192.0.2.1")


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_oldest_versions_refuse_a_network_without_ipam(l2, sandbox, version):
    """Versions whose results consist of addresses refuse a network without IPAM, and change nothing."""
    error = l2.having(cniVersion=version).add_error(sandbox)
    assert "cannot convert: no valid IP addresses" in error["msg"]


def test_the_containers_end_may_stay_down(l2, sandbox):
    """With disableContainerInterface the container's end stays down; the host's end is a port and up."""
    net = l2.having(disableContainerInterface=True)
    result = net.add(sandbox)
    assert "UP" not in links(sandbox)["eth0"]["flags"]
    port = shown(net.host, host_end(result))
    assert (port["master"], "UP" in port["flags"]) == ("cni0", True)
    net.check(sandbox, result)
    sandbox.ip("link", "set", "eth0", "up")
    assert "eth0" in net.run("CHECK", sandbox, prev_result=result).error()["msg"]
    net.delete(sandbox, result)
    assert set(links(net.host)) == {"lo", "cni0"}


@pytest.mark.parametrize("has_ipam", [False, True])
def test_port_forwards_when_add_returns(network, l2, sandbox, has_ipam):
    """When ADD returns, the host veth is operationally up and forwards, so the pod's first packet is not lost."""
    port = shown(l2.host, host_end((network if has_ipam else l2).add(sandbox)))
    assert (port["operstate"], port["linkinfo"]["info_slave_data"]["state"]) == ("UP", "forwarding")
