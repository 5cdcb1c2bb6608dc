"""Options of bridge and port: MAC, hairpin and promiscuous mode, isolation; no IPAM; the container's end down."""

import sys

import pytest

from tests.support.attaching import address, host_end, reaches
from tests.support.netstate import links, shown, state

# Sends one broadcast frame of an experimental type and prints whether it came back within so many seconds.
ECHO = """\
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88b5))
link.bind(("eth0", 0x88b5))
link.settimeout(float(sys.argv[1]))
link.send(b"\\xff" * 6 + link.getsockname()[4] + b"\\x88\\xb5" + bytes(46))
try:
    while link.recvfrom(100)[1][2] == socket.PACKET_OUTGOING:
        pass
    print("came back")
except TimeoutError:
    print("lost")
"""


def port_flags(host, name):
    """Returns whether the port has hairpin mode and is isolated."""
    data = shown(host, name)["linkinfo"]["info_slave_data"]
    return data["hairpin"], data["isolated"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, (False, False)),
        ({"hairpinMode": True}, (True, False)),
        ({"hairpinMode": True, "portIsolation": True}, (True, True)),
    ],
)
def test_hairpin_mode_sends_frames_back(network, sandbox, keys, expected):
    """With hairpinMode a pod, unless isolated, receives its own broadcasts, as it must to reach its own service."""
    result = network.having(**keys).add(sandbox)
    assert port_flags(network.host, host_end(result)) == expected
    comes_back = expected == (True, False)
    answer = sandbox.run(sys.executable, "-I", "-c", ECHO, "20" if comes_back else "0.5").strip()
    assert answer == ("came back" if comes_back else "lost")


def test_isolated_ports_reach_the_gateway_only(network, new_sandbox):
    """With portIsolation pods reach gateway and host but not each other; without it they reach each other."""
    one, two, open_one = new_sandbox(), new_sandbox(), new_sandbox()
    isolated = network.having(portIsolation=True)
    first, second = isolated.add(one), isolated.add(two)
    third = network.add(open_one)
    assert port_flags(network.host, host_end(first)) == (False, True)
    assert reaches(one, first["ips"][0]["gateway"])
    assert reaches(network.host, address(second))
    assert not reaches(one, address(second), within_s=1)
    assert reaches(one, address(third))


def test_promiscuous_mode(network, new_sandbox):
    """With promiscMode a new or existing bridge is promiscuous; without the key it does not change."""
    network.add(new_sandbox())
    assert "PROMISC" not in links(network.host)["cni0"]["flags"]
    network.having(promiscMode=True).add(new_sandbox())
    assert "PROMISC" in links(network.host)["cni0"]["flags"]
    network.add(new_sandbox())
    assert "PROMISC" in links(network.host)["cni0"]["flags"]


def test_container_has_the_requested_mac(network, sandbox):
    """The container's MAC is the requested one, here that of runtimeConfig before that of CNI_ARGS."""
    net = network.having(runtimeConfig={"mac": "0200.0000.0003"})
    result = net.add(sandbox, args="IgnoreUnknown=1;MAC=02:00:00:00:00:01")
    assert result["interfaces"][2]["mac"] == links(sandbox)["eth0"]["address"] == "02:00:00:00:00:03"
    assert reaches(sandbox, result["ips"][0]["gateway"])


def test_macs_are_random_by_default(network, new_sandbox):
    """Without a requested MAC each interface has a random one, locally administered."""
    macs = [item["mac"] for _ in range(3) for item in network.add(new_sandbox())["interfaces"][1:]]
    assert len(set(macs)) == 6
    assert {int(mac[:2], 16) & 3 for mac in macs} == {2}


@pytest.mark.parametrize("ipam", [None, {}, {"type": ""}, {"dataDir": "/nowhere"}])
def test_without_ipam_there_are_no_addresses(layer2, sandbox, ipam):
    """Without an IPAM type the interface is up without addresses; the result lists interfaces; CHECK, DEL succeed."""
    net = layer2.having(ipam=ipam)
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


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_oldest_versions_refuse_a_network_without_ipam(layer2, sandbox, version):
    """Versions whose results consist of addresses refuse a network without IPAM, and change nothing."""
    error = layer2.having(cniVersion=version).add_error(sandbox)
    assert "cannot convert: no valid IP addresses" in error["msg"]


def test_the_containers_end_may_stay_down(layer2, sandbox):
    """With disableContainerInterface the container's end stays down; the host's end is a port and up."""
    net = layer2.having(disableContainerInterface=True)
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
def test_port_forwards_when_add_returns(network, layer2, sandbox, has_ipam):
    """When ADD returns, the host veth is operationally up and forwards, so the pod's first packet is not lost."""
    port = shown(layer2.host, host_end((network if has_ipam else layer2).add(sandbox)))
    assert (port["operstate"], port["linkinfo"]["info_slave_data"]["state"]) == ("UP", "forwarding")
