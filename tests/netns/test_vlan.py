"""vlan: links, results, keys, refusals and traffic with tags."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace
from typing import Any

import pytest

from tests.support.attaching import Network, reaches
from tests.support.netstate import links, shown, state


@pytest.fixture
def vlan(bin_dir, host, new_sandbox, store):
    """A dual-stack network of vlan with ID 100 on the host's uplink, whose other end is in another namespace."""
    neighbour = new_sandbox()
    host.ip("link", "add", "up0", "type", "veth", "peer", "name", "wire0", "netns", neighbour.name)
    host.ip("link", "set", "up0", "up")
    neighbour.ip("link", "set", "wire0", "up")
    ranges = [[{"subnet": "10.25.0.0/24"}], [{"subnet": "fd00:25::/64"}]]
    ipam = {"type": "host-local", "ranges": ranges, "dataDir": str(store)}
    conf = {"cniVersion": "1.0.0", "name": "net", "type": "vlan", "master": "up0", "vlanId": 100, "ipam": ipam}
    yield Network(host, conf), neighbour
    # Debian's Linux 5.10 waits for ever if a VLAN interface and its master are in two namespaces that end together.
    host.run("ip", "link", "delete", "up0", check=False)


@pytest.mark.needs("vlan_device")
def test_pod_reaches_the_vlan_on_the_wire(vlan, sandbox):
    """The interface has ID, master and addresses; a machine with the same VLAN on the wire answers; DEL restores."""
    net, neighbour = vlan
    neighbour.ip("link", "add", "link", "wire0", "name", "v100", "type", "vlan", "id", "100")
    neighbour.ip("address", "add", "10.25.0.251/24", "dev", "v100")
    neighbour.ip("link", "set", "v100", "up")
    before = state(net.host), state(sandbox)
    result = net.add(sandbox)
    link = shown(sandbox, "eth0")
    assert link["linkinfo"]["info_kind"] == "vlan"
    assert (link["linkinfo"]["info_data"]["id"], link["linkinfo"]["info_data"]["protocol"]) == (100, "802.1Q")
    assert link["link_index"] == shown(net.host, "up0")["ifindex"]
    assert result["interfaces"] == [{"name": "eth0", "mac": link["address"], "sandbox": sandbox.path}]
    assert reaches(sandbox, "10.25.0.251")
    net.check(sandbox, result)
    error = net.having(vlanId=200).run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == "Error: VLAN ID of eth0 is 100, the configuration has 200"
    net.delete(sandbox, result)
    assert (state(net.host), state(sandbox)) == before
    assert net.leases() == {}


@pytest.mark.needs("vlan_device")
def test_one_pod_for_each_vlan(vlan, new_sandbox):
    """A second pod with the same ID on the same master is refused with a hint; the first is not disturbed."""
    net, _ = vlan
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    before = state(one)
    error = net.run("ADD", two).error()
    assert error["msg"] == "failed to create vlan: file exists"
    assert 'use the plugin macvlan with "master"' in error["details"]
    assert set(links(two)) == {"lo"}
    assert state(one) == before
    assert list(net.leases().values()) == [one.name] * 2


@pytest.mark.needs("vlan_device")
@pytest.mark.parametrize("linked_in_pod", [False, True])
def test_keys(vlan, sandbox, linked_in_pod):
    """Protocol, priorities and MTU are set, also for a master in the container."""
    net, _ = vlan
    namespace = sandbox if linked_in_pod else net.host
    if linked_in_pod:
        sandbox.ip("link", "add", "up0", "type", "veth", "peer", "name", "up1")
        sandbox.ip("link", "set", "up0", "up")
    net = net.having(
        linkInContainer=linked_in_pod,
        protocol="802.1ad",
        ingressQosMap=["1:5"],
        egressQosMap=["6:2"],
        mtu=1400,
        ipam=None,
    )
    result = net.add(sandbox)
    link = shown(sandbox, "eth0")
    data = link["linkinfo"]["info_data"]
    assert (data["protocol"], data["ingress_qos"], data["egress_qos"]) == (
        "802.1ad",
        [{"from": 1, "to": 5}],
        [{"from": 6, "to": 2}],
    )
    assert (link["mtu"], link["link_index" if not linked_in_pod else "link"]) == (
        1400,
        shown(namespace, "up0")["ifindex"] if not linked_in_pod else "up0",
    )
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert "eth0" not in links(sandbox)


ETH_P_ALL, SOL_PACKET, PACKET_AUXDATA = 3, 263, 8  # linux/if_ether.h, linux/socket.h, linux/if_packet.h

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no master": ({"master": None}, '"master" field is required. It specifies the host interface name to create the '
                  "VLAN for"),
    "unknown master": ({"master": "zz"}, 'failed to lookup master "zz": Link not found'),
    "4095": ({"vlanId": 4095}, "invalid VLAN ID 4095 (must be between 0 and 4095 inclusive)"),
    "-1": ({"vlanId": -1}, "invalid VLAN ID -1 (must be between 0 and 4095 inclusive)"),
    "MTU": ({"mtu": 1501}, "invalid MTU 1501, must be [0, master MTU(1500)]"),
    "negative MTU": ({"mtu": -1}, "invalid MTU -1, must be [0, master MTU(1500)]"),
    "protocol": ({"protocol": "x"}, 'failed to load netconf: "protocol" is not a VLAN protocol: "x"'),
    "priority": ({"ingressQosMap": ["8:1"]}, 'failed to load netconf: "ingressQosMap[0]" is not a pair of priorities: '
                 '"8:1"'),
    "ipam without type": ({"ipam": {}}, "failed to execute IPAM delegate: no plugin name provided"),
    "loopback": ({"master": "lo"}, 'master "lo" is the loopback interface'),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(vlan, sandbox, case):
    """Wrong input is refused before anything changes."""
    net, _ = vlan
    keys, text = REFUSED[case]
    before = state(net.host), state(sandbox)
    assert net.having(**keys).run("ADD", sandbox).error()["msg"] == text
    assert (state(net.host), state(sandbox), net.leases()) == (*before, {})


def test_del_of_nothing(vlan, sandbox):
    """DEL succeeds without interface, namespace path or master, with an invalid configuration."""
    net, _ = vlan
    net.host.ip("link", "del", "up0")
    for pod in (sandbox, "", "/run/netns/missing"):
        net.having(vlanId=4095).delete(pod)


@pytest.mark.needs("vlan_device")
@pytest.mark.parametrize(("created_by", "deleted_by"), [("podwire", "reference"), ("reference", "podwire")])
def test_pod_is_checked_and_deleted_by_the_other(vlan, sandbox, bin_dir, reference, created_by, deleted_by):
    """A pod of one implementation passes CHECK and DEL of the other."""
    net = vlan[0]
    directories = {"podwire": bin_dir, "reference": reference}
    creator, deleter = (
        replace(net, bin_dir=directories[kind], path=str(directories[kind])) for kind in (created_by, deleted_by)
    )
    result = creator.add(sandbox)
    deleter.check(sandbox, result)
    deleter.delete(sandbox, result)
    creator.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}
    assert not [name for name, owner in net.leases().items() if owner == sandbox.name]


FAILURES: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "IPAM fails": (
        {"ips": [{"address": "10.25.0.9/24"}], "body": "[ $CNI_COMMAND != ADD ] || exit 1"},
        "failed to execute IPAM delegate: netplugin failed",
        ["ADD", "DEL"],
    ),
    "bad route": (
        {"ips": [{"address": "10.25.0.9/24"}], "routes": [{"dst": "192.0.2.0/24", "gw": "203.0.113.1"}]},
        "failed to add route '192.0.2.0/24 via 203.0.113.1",
        ["ADD", "DEL"],
    ),
}


@pytest.mark.needs("vlan_device")
@pytest.mark.parametrize("case", FAILURES)
def test_failed_add_leaves_nothing(vlan, scripted_network, sandbox, ipam_calls, case):
    """If a step after the creation fails, ADD deletes the interface and releases the addresses."""
    keys, text, calls = FAILURES[case]
    net = scripted_network(**keys).having(bridge=None, isDefaultGateway=None, type="vlan", master="up0", vlanId=5)
    before = state(net.host), state(sandbox)
    assert net.run("ADD", sandbox).error()["msg"].startswith(text)
    assert ipam_calls() == calls
    assert (state(net.host), state(sandbox)) == before


@pytest.mark.needs("vlan_device")
def test_tag_on_the_wire(vlan, sandbox):
    """Frames on the master's other end carry the protocol, the ID and the mapped priority in their tags."""
    net, neighbour = vlan
    net = net.having(
        protocol="802.1ad", egressQosMap=["0:3"], ipam={"type": "static", "addresses": [{"address": "10.25.0.2/24"}]}
    )
    with neighbour.entered():
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    with sniffer:
        sniffer.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        sniffer.bind(("wire0", ETH_P_ALL))
        sniffer.settimeout(5)
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


@pytest.mark.needs("vlan_device")
def test_name_of_a_host_interface(vlan, sandbox):
    """The interface may have the name of an interface of the host, also of the master."""
    net = vlan[0]
    before = state(net.host), state(sandbox)
    result = net.run("ADD", sandbox, ifname="up0").result()
    assert set(links(sandbox)) == {"lo", "up0"}
    net.check(sandbox, result, ifname="up0")
    net.delete(sandbox, result, ifname="up0")
    assert (state(net.host), state(sandbox)) == before
