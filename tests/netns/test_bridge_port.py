"""Options of bridge and port: MTU, MAC, hairpin and promiscuous mode, isolation."""

import sys

import pytest

from tests.support.attaching import address, host_end, reaches
from tests.support.netstate import links, shown

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


def test_packets_of_the_mtus_size_pass(network, new_sandbox):
    """A packet as large as the MTU passes unfragmented, a larger one is not sent."""
    net = network.having(mtu=1400)
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    destination = address(net.add(two))
    assert reaches(one, destination, options=("-M", "do", "-s", str(1400 - 28)))
    assert not reaches(one, destination, within_s=1, options=("-M", "do", "-s", str(1400 - 27)))


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
