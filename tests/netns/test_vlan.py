"""vlan: IDs, keys, and tags on the wire."""

import socket
import struct

import pytest

from tests.support import uplink
from tests.support.attaching import reaches
from tests.support.netstate import links, shown, state
from tests.support.single_link import each
from tests.support.uplink import UPLINK, WIRE

ETH_P_ALL, SOL_PACKET, PACKET_AUXDATA = 3, 263, 8  # linux/if_ether.h, linux/socket.h, linux/if_packet.h

pytestmark = each("vlan")


def test_one_pod_for_each_vlan(net, new_sandbox):
    """A second pod with the same ID on the same master is refused with a hint; the first is not disturbed."""
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    before = state(one)
    error = net.run("ADD", two).error()
    assert error["msg"] == "failed to create vlan: file exists"
    assert 'use the plugin macvlan with "master"' in error["details"]
    assert set(links(two)) == {"lo"}
    assert state(one) == before
    assert list(net.leases().values()) == [one.name] * 2


@pytest.mark.parametrize("linked_in_pod", [False, True])
def test_keys(net, sandbox, linked_in_pod):
    """Protocol, priorities and MTU are set, also for a master in the container."""
    if linked_in_pod:
        sandbox.ip("link", "add", UPLINK, "type", "veth", "peer", "name", "up1")
        sandbox.ip("link", "set", UPLINK, "up")
    tags = {"protocol": "802.1ad", "ingressQosMap": ["1:5"], "egressQosMap": ["6:2"]}
    net = net.having(**tags, linkInContainer=linked_in_pod, mtu=1400, ipam=None)
    result = net.add(sandbox)
    link = shown(sandbox, "eth0")
    data = link["linkinfo"]["info_data"]
    assert (data["ingress_qos"], data["egress_qos"]) == ([{"from": 1, "to": 5}], [{"from": 6, "to": 2}])
    assert (data["protocol"], link["mtu"]) == ("802.1ad", 1400)
    if linked_in_pod:
        assert link["link"] == UPLINK
    else:
        assert link["link_index"] == shown(net.host, UPLINK)["ifindex"]
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert "eth0" not in links(sandbox)


def test_tag_on_the_wire(net, sandbox, neighbour):
    """Frames on the master's other end carry the protocol, the ID and the mapped priority in their tags."""
    net = net.having(
        protocol="802.1ad", egressQosMap=["0:3"], ipam={"type": "static", "addresses": [{"address": "10.25.0.2/24"}]}
    )
    with neighbour.entered():
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    with sniffer:
        sniffer.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        sniffer.bind((WIRE, ETH_P_ALL))
        sniffer.settimeout(20)
        net.add(sandbox)
        assert not reaches(sandbox, "10.25.0.99", within_s=1)
        tags = set()
        for _ in range(100):
            frame, data, _, _ = sniffer.recvmsg(2048, 256)
            _, _, _, _, _, tci, protocol = struct.unpack("=IIIHHHH", data[0][2][:20])
            if frame[12:14] == b"\x08\x06" or frame[16:18] == b"\x08\x06":
                tags.add((protocol or int.from_bytes(frame[12:14]), tci or int.from_bytes(frame[14:16])))
                break
        assert tags == {(0x88A8, 3 << 13 | 100)}


@pytest.mark.parametrize("vlan_id", [0, 1, 4094])
def test_smallest_and_largest_ids(net, sandbox, neighbour, vlan_id):
    """The smallest and the largest VLAN ID work, and ID 0, whose frames belong to no VLAN."""
    net = net.having(vlanId=vlan_id)
    if vlan_id:
        uplink.tag(neighbour, vlan_id)
    result = net.add(sandbox)
    data = shown(sandbox, "eth0")["linkinfo"]["info_data"]
    assert (data["id"], data["protocol"]) == (vlan_id, "802.1Q")
    net.check(sandbox, result)
    assert not vlan_id or reaches(sandbox, uplink.NEIGHBOUR[0].partition("/")[0])
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}
