"""What pods of one bridge send each other beside unicast to their addresses: multicast, broadcast, link-local.

Policies judge addresses of pods, so the guard of each port drops these; otherwise they reach a pod that is isolated.
"""

import contextlib
import re
import socket
from typing import NamedTuple

import pytest

from agent.policy.evaluator import PodConnection
from attachment.policy import port_guard
from attachment.policy.records import PodRecord
from tests.support.netstate import nft_rules
from tests.support.policy_packets import PODS
from tests.support.policy_tables import SERVICE, deny, pod, proxy

pytestmark = pytest.mark.needs("nft_inet", "nft_bridge", "br_netfilter", "nft_nat")

PORT = 5000
WAIT_S = 0.3


class Neighbour(NamedTuple):
    """A way to the second pod: the address to which its neighbour sends."""

    family: int
    address: str


WAYS = {
    "link-local": Neighbour(socket.AF_INET6, ""),  # of the second pod
    "IPv6 multicast": Neighbour(socket.AF_INET6, "ff02::1"),
    "broadcast": Neighbour(socket.AF_INET, "255.255.255.255"),
    "IPv4 multicast": Neighbour(socket.AF_INET, "224.0.0.1"),
}


@pytest.fixture
def guarded_node(policed_node):
    """A node on which the ports of the bridge are guarded, as by ADD."""
    with policed_node.host.entered():
        for number in range(1, 8):
            port_guard.add(record_of(policed_node, number))
    return policed_node


def record_of(node, number):
    """Returns the record of a pod on the bridge."""
    (mac,) = re.findall(r"link/ether (\S+)", node.pods[number - 1].ip("link", "show", "eth0"))
    veth = f"veth{number}"
    return PodRecord("boot", "shop", veth, "", "net", veth, "eth0", veth, mac, PODS[number - 1], port_guard.BRIDGE)


def reaches(node, way):
    """Returns whether the second pod receives a datagram of the first one, sent in this way."""
    first, second = node.pods[:2]
    (link_local,) = re.findall(r"(fe80::\S+)/64", second.ip("-6", "address", "show", "dev", "eth0"))
    address = way.address or link_local
    with contextlib.ExitStack() as stack:
        ends = []
        for place in (first, second):
            with place.entered():
                ends.append(stack.enter_context(socket.socket(way.family, socket.SOCK_DGRAM)))
        sender, receiver = ends
        receiver.bind(("", PORT))
        receiver.settimeout(WAIT_S)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
        sender.sendto(b"x", (address, PORT))
        try:
            return receiver.recv(9) == b"x"
        except TimeoutError:
            return False


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_neighbours_reach_an_isolated_pod_by_its_addresses_only(guarded_node, node_filter, way):
    """No multicast, broadcast or link-local packet of a neighbour reaches a pod; without the guard's rule it does."""
    node_filter.apply(deny(pod(2), pod(2, 6)))
    assert not reaches(guarded_node, way)
    guarded_node.host.run("nft", "flush", "chain", "bridge", "podwire_guard", "forward")
    assert reaches(guarded_node, way)


def test_an_isolated_pod_reaches_no_neighbour_by_its_link_local_address(policed_node, node_filter):
    """A pod under an egress policy sends from its link-local address to no port of the bridge, guarded or not."""
    with policed_node.host.entered():
        port_guard.add(record_of(policed_node, 1))
    node_filter.apply(deny(pod(1), pod(1, 6), ingress=False))
    assert not reaches(policed_node, WAYS["link-local"])
    policed_node.host.run("nft", "flush", "chain", "bridge", "podwire_guard", "link-local")
    assert reaches(policed_node, WAYS["link-local"])


@pytest.mark.parametrize("version", [4, 6])
def test_guarded_pods_reach_each_other(guarded_node, version):
    """Pods on the bridge reach each other, their Services and themselves, after they forgot their neighbours."""
    one, two = pod(1, version), pod(2, version)
    for place in (guarded_node.host, *guarded_node.pods):
        place.ip("neigh", "flush", "all")
    to_pod = socket.AF_INET if version == 4 else socket.AF_INET6
    assert reaches(guarded_node, Neighbour(to_pod, str(two)))
    guarded_node.host.run("nft", proxy(version, one, two))
    arrivals = guarded_node.arrivals(*(connection(version, port) for port in (1, 2)))
    assert arrivals == [{one}, {two}]
    assert "oifname @ports goto delivery" in "".join(nft_rules(guarded_node.host))


def connection(version, port):
    """Returns a connection of the first pod with a Service: of itself, or of the second pod."""
    return PodConnection(pod(1, version), SERVICE[version], "udp", port)
