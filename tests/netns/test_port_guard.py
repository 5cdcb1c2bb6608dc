"""The guard of a pod's port (attachment.policy.port_guard), by frames: what a pod with networkPolicy can send."""

import json
import socket
from collections.abc import Iterator

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import (
    ICMPv6MLReport2,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrHopByHop,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from attachment.policy import options
from cni import conf
from cni.args import CmdArgs
from tests.support import dhcp_node, policy_node
from tests.support.attaching import Network, address, host_end, reaches
from tests.support.dhcp import SERVER
from tests.support.machine import eventually
from tests.support.namespaces import Namespace

ALL = "ff:ff:ff:ff:ff:ff"
MARK = b"a frame that may pass"
VICTIM4, VICTIM6 = "10.22.0.99", "fd00:22::99"
OTHER_MAC = "02:00:00:00:00:99"
ETH_P_ALL = 3
_TIMEOUT_S = 10.0


@pytest.fixture(autouse=True)
def private_directory(root) -> Iterator[None]:
    with policy_node.private_directory():
        yield


class Pods:
    """A sender and a receiver on one network; frames are sent and received as they are on the wire.

    The receiver has no networkPolicy, unless `guards_both`, so that its port passes everything.
    """

    def __init__(self, network: Network, sender: Namespace, receiver: Namespace, *, guards_both: bool = False) -> None:
        self.network, self.sender, self.receiver = network, sender, receiver
        self.result = network.add(sender)
        other = (network if guards_both else network.having(networkPolicy=None)).add(receiver)
        self.mac, self.receiver_mac = (one["interfaces"][-1]["mac"] for one in (self.result, other))
        self.ip4, self.ip6 = address(self.result), address(self.result, 1)
        self.receiver4, self.receiver6 = address(other), address(other, 1)
        first, *rest = (int(part, 16) for part in self.mac.split(":"))
        tail = bytes([first ^ 2, *rest[:2], 0xFF, 0xFE, *rest[2:]])
        self.link_local = socket.inet_ntop(socket.AF_INET6, b"\xfe\x80" + bytes(6) + tail)
        self.gateway_mac = self.result["interfaces"][0]["mac"]

    def ether(self, destination: str = "", source: str = "") -> Packet:
        """Returns the start of a frame to the receiver, from the sender."""
        return Ether(src=source or self.mac, dst=destination or self.receiver_mac)

    def arrives(self, frame: Packet) -> bool:
        """Sends a frame and a marked one behind it; returns whether the receiver got the first, too."""
        mark = self.ether() / IP(src=self.ip4, dst=self.receiver4) / UDP(sport=1, dport=9) / Raw(MARK)
        with _packet_socket(self.receiver) as receiving, _packet_socket(self.sender) as sending:
            receiving.settimeout(_TIMEOUT_S)
            for each in (frame, mark):
                sending.send(bytes(each))
            received = []
            while MARK not in (data := receiving.recv(4096)):
                received.append(data)
        return any(self.is_same(data, bytes(frame)) for data in received)

    def is_same(self, received: bytes, sent: bytes) -> bool:
        """Returns whether a frame is the one that was sent; the kernel takes a VLAN tag off."""
        return received in (sent, sent[:12] + sent[16:])


def _packet_socket(pod: Namespace) -> socket.socket:
    with pod.entered():
        packet_socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    packet_socket.bind(("eth0", ETH_P_ALL))
    return packet_socket


def forgeries(pods: Pods) -> dict[str, Packet]:
    """Returns the frames that only an attacker sends, by name."""
    node4, node6 = (ip["gateway"] for ip in pods.result["ips"])
    ether, to4, to6 = pods.ether(), pods.receiver4, pods.receiver6
    na = ICMPv6ND_NA(tgt=VICTIM6, R=0, S=0) / ICMPv6NDOptDstLLAddr(lladdr=pods.mac)
    udp = UDP(sport=1, dport=2) / Raw(b"forged")
    from_pod6 = IPv6(src=pods.ip6, dst=to6, hlim=255)
    pods_na = ICMPv6ND_NA(tgt=pods.ip6, R=0, S=0)
    pods_arp = bytearray(bytes(ARP(op=2, hwsrc=pods.mac, psrc=pods.ip4, pdst=to4)))
    pods_arp[4:6] = 4, 6  # the sizes of the addresses, which say where the others are
    return {
        "IPv4 of a neighbour": ether / IP(src=VICTIM4, dst=to4) / udp,
        "IPv4 of the receiver": ether / IP(src=to4, dst=to4) / udp,
        "IPv4 of the node": ether / IP(src=node4, dst=to4) / udp,
        "IPv4 fragment": ether / IP(src=VICTIM4, dst=to4, frag=100, proto=17) / Raw(b"fragment"),
        "IPv6 of a neighbour": ether / IPv6(src=VICTIM6, dst=to6) / udp,
        "IPv6 of the node": ether / IPv6(src=node6, dst=to6) / udp,
        "foreign link-local address": ether / IPv6(src="fe80::99", dst=to6) / udp,
        "unspecified IPv4": ether / IP(src="0.0.0.0", dst=to4) / udp,
        "unspecified IPv6": ether / IPv6(src="::", dst=to6) / udp,
        "MAC of a neighbour": pods.ether(source=OTHER_MAC) / IP(src=pods.ip4, dst=to4) / udp,
        "MAC of a neighbour, IPv6": pods.ether(source=OTHER_MAC) / IPv6(src=pods.ip6, dst=to6) / udp,
        "ARP for a neighbour": pods.ether(ALL) / ARP(op=2, hwsrc=pods.mac, psrc=VICTIM4, pdst=to4),
        "ARP for the node": pods.ether(ALL) / ARP(op=2, hwsrc=pods.mac, psrc=node4, pdst=to4),
        "ARP with another MAC": pods.ether(ALL) / ARP(op=2, hwsrc=OTHER_MAC, psrc=pods.ip4, pdst=to4),
        "ARP probe with another MAC": pods.ether(ALL) / ARP(op=1, hwsrc=OTHER_MAC, psrc="0.0.0.0", pdst=VICTIM4),
        "ARP of other sizes": Ether(src=pods.mac, dst=ALL, type=0x0806) / Raw(bytes(pods_arp)),
        "NA for a neighbour": ether / from_pod6 / na,
        "NA for a neighbour, behind an option": ether / from_pod6 / IPv6ExtHdrDestOpt(nh=58) / na,
        "NA from a neighbour": ether / IPv6(src=VICTIM6, dst=to6, hlim=255) / na,
        "NA from a neighbour's address": ether / IPv6(src=VICTIM6, dst=to6, hlim=255) / pods_na,
        "router advertisement": ether / IPv6(src=pods.link_local, dst="ff02::1", hlim=255) / ICMPv6ND_RA(),
        "redirect": ether / from_pod6 / ICMPv6ND_Redirect(tgt=pods.ip6, dst=VICTIM6),
        "VLAN tag": ether / Dot1Q(vlan=5) / IP(src=pods.ip4, dst=to4) / udp,
        "priority tag": ether / Dot1Q(vlan=0) / IP(src=VICTIM4, dst=to4) / udp,
        "another protocol": Ether(src=pods.mac, dst=pods.receiver_mac, type=0x88B5) / Raw(bytes(46)),
        "DHCP server": pods.ether(ALL) / IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=67, dport=68) / BOOTP(),
    }


def permitted(pods: Pods) -> dict[str, Packet]:
    """Returns the frames of a pod's normal traffic, by name."""
    dhcp = BOOTP(chaddr=bytes.fromhex(pods.mac.replace(":", ""))) / DHCP(options=[("message-type", "discover"), "end"])
    target = pods.ip6
    return {
        "IPv4": pods.ether() / IP(src=pods.ip4, dst=pods.receiver4) / ICMP(),
        "IPv6": pods.ether() / IPv6(src=pods.ip6, dst=pods.receiver6) / UDP(sport=1, dport=2),
        "IPv4 multicast": pods.ether("01:00:5e:00:00:fb") / IP(src=pods.ip4, dst="224.0.0.251") / UDP(),
        "link-local": pods.ether()
        / IPv6(src=pods.link_local, dst=pods.receiver6, hlim=255)
        / ICMPv6ND_NS(tgt=pods.receiver6),
        "DHCP": pods.ether(ALL) / IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=68, dport=67) / dhcp,
        "ARP": pods.ether(ALL) / ARP(hwsrc=pods.mac, psrc=pods.ip4, pdst=pods.receiver4),
        "ARP probe": pods.ether(ALL) / ARP(hwsrc=pods.mac, psrc="0.0.0.0", pdst=pods.ip4),
        "gratuitous ARP": pods.ether(ALL) / ARP(op=2, hwsrc=pods.mac, psrc=pods.ip4, pdst=pods.ip4),
        "NA": pods.ether() / IPv6(src=pods.ip6, dst=pods.receiver6, hlim=255) / ICMPv6ND_NA(tgt=target),
        "NS": pods.ether() / IPv6(src=pods.ip6, dst=pods.receiver6, hlim=255) / ICMPv6ND_NS(tgt=pods.receiver6),
        "DAD": pods.ether("33:33:ff:00:00:01")
        / IPv6(src="::", dst="ff02::1:ff00:1", hlim=255)
        / ICMPv6ND_NS(tgt=target),
        "MLD": pods.ether("33:33:00:00:00:16")
        / IPv6(src="::", dst="ff02::16", hlim=1)
        / IPv6ExtHdrHopByHop(nh=58)
        / ICMPv6MLReport2(),
    }


@pytest.fixture
def bridge(dual_network) -> Network:
    """A dual-stack network of bridge without multicast snooping, which would drop frames to groups without members."""
    network: Network = dual_network
    network.host.ip("link", "add", "cni0", "type", "bridge", "mcast_snooping", "0")
    return network


def test_bridge_drops_forged_frames(bridge, new_sandbox):
    """A pod with networkPolicy sends none of the forged frames, and all of the permitted ones."""
    pods = Pods(bridge.having(networkPolicy=True, bridgeNetfilter=True), new_sandbox(), new_sandbox())
    assert [name for name, frame in forgeries(pods).items() if pods.arrives(frame)] == []
    assert [name for name, frame in permitted(pods).items() if not pods.arrives(frame)] == []


def test_the_frames_arrive_without_a_guard(bridge, new_sandbox):
    """A pod of a network without networkPolicy sends all of these frames, although the bridge has a guarded port."""
    guarded = bridge.having(networkPolicy=True, bridgeNetfilter=True)
    guarded.add(new_sandbox())
    for key in ("iptables", "ip6tables"):  # br_netfilter drops some as malformed
        bridge.host.set_sysctl(f"net/bridge/bridge-nf-call-{key}", "0")
    pods = Pods(bridge, new_sandbox(), new_sandbox())
    frames = {**forgeries(pods), **permitted(pods)}
    assert [name for name, frame in frames.items() if not pods.arrives(frame)] == []


def test_pods_communicate_through_the_bridge(bridge, new_sandbox):
    """Pods with networkPolicy reach each other and the node in both IP versions, also with DAD."""
    network = bridge.having(networkPolicy=True, bridgeNetfilter=True, enabledad=True)
    pods = Pods(network, new_sandbox(), new_sandbox(), guards_both=True)
    for target in (pods.receiver4, pods.receiver6, *(ip["gateway"] for ip in pods.result["ips"])):
        assert reaches(pods.sender, target)
    for target in (pods.ip4, pods.ip6):
        assert reaches(network.host, target)
    network.check(pods.sender, pods.result)


@pytest.mark.needs("vlan_filtering")
def test_vlan_of_a_guarded_port(bridge, new_sandbox):
    """A pod with networkPolicy in a VLAN of the bridge reaches another one there."""
    network = bridge.having(networkPolicy=True, bridgeNetfilter=True, vlan=100, isGateway=None, isDefaultGateway=None)
    pods = Pods(network, new_sandbox(), new_sandbox())
    for target in (pods.receiver4, pods.receiver6):
        assert reaches(pods.sender, target)
    assert not pods.arrives(forgeries(pods)["IPv4 of a neighbour"])


class RoutedPods(Pods):
    """Two pods of ptp: a packet arrives with another link-layer header and TTL, so its content identifies it."""

    def ether(self, destination: str = "", source: str = "") -> Packet:
        """Returns the start of a frame to the gateway."""
        return super().ether(destination or self.gateway_mac, source)

    def is_same(self, received: bytes, sent: bytes) -> bool:
        """Returns whether a frame has the content of the one that was sent."""
        return received[-6:] == sent[-6:]


@pytest.mark.parametrize("is_guarded", [True, False])
def test_ptp_drops_forged_packets(routed, new_sandbox, is_guarded):
    """A pod of ptp sends packets with its addresses only, if and only if the network has networkPolicy."""
    for version in ("all", "default"):
        routed.host.set_sysctl(f"net/ipv4/conf/{version}/rp_filter", "0")
        routed.host.set_sysctl(f"net/ipv4/conf/{version}/accept_local", "1")
    pods = RoutedPods(routed.having(networkPolicy=is_guarded), new_sandbox(), new_sandbox())
    udp = UDP(sport=1, dport=2) / Raw(b"forged")
    frames = {
        "neighbour": IP(src="10.23.0.99", dst=pods.receiver4) / udp,
        "node": IP(src=pods.result["ips"][0]["gateway"], dst=pods.receiver4) / udp,
        "neighbour, IPv6": IPv6(src="fd00:23::99", dst=pods.receiver6) / udp,
    }
    arrived = [name for name, packet in frames.items() if pods.arrives(pods.ether() / packet)]
    assert arrived == ([] if is_guarded else list(frames))
    for source, target in ((pods.ip4, pods.receiver4), (pods.ip6, pods.receiver6)):
        packet = (IP if ":" not in source else IPv6)(src=source, dst=target) / udp
        assert pods.arrives(pods.ether() / packet)
        assert reaches(pods.sender, target)
    assert reaches(routed.host, pods.ip6)


@pytest.mark.parametrize("fixture", ["bridge", "routed"])
def test_check_finds_a_lost_guard_and_repair_restores_it(fixture, request, new_sandbox):
    """CHECK reports a flushed chain and a deleted element; ADD of another pod restores the former for all."""
    network = request.getfixturevalue(fixture).having(networkPolicy=True)
    network = network.having(bridgeNetfilter=True) if fixture == "bridge" else network
    one, two = new_sandbox(), new_sandbox()
    result = network.add(one)
    family, port = ("bridge", host_end(result)) if fixture == "bridge" else ("inet", result["interfaces"][0]["name"])
    network.check(one, result)
    network.host.run("nft", "flush", "chain", family, "podwire_guard", "guard")
    assert "of chain podwire_guard guard is missing" in network.check_error(one, result)
    network.add(two)
    network.check(one, result)
    network.host.run("nft", "delete", "element", family, "podwire_guard", "ports", f'{{ "{port}" }}')
    assert f'set podwire_guard ports has no element of "{port}"' in network.check_error(one, result)


def test_repair_removes_nothing_of_a_running_pod(bridge, sandbox):
    """A repair that was too late removes what a deleted pod has left, but neither guard nor record of a running one."""
    network = bridge.having(networkPolicy=True, bridgeNetfilter=True)
    result = network.add(sandbox)
    args = CmdArgs("DEL", sandbox.name, "", "eth0", "", (), {})
    net_conf = conf.parse(json.dumps(network.config).encode())
    with network.host.entered():
        options.remove_rules(args, net_conf)
        network.check(sandbox, result)
        network.host.ip("link", "del", host_end(result))
        options.remove_rules(args, net_conf)
        options.remove_rules(args, net_conf)
    assert policy_node.files() == []
    assert host_end(result) not in network.host.run("nft", "list", "ruleset")


def test_dhcp_of_a_guarded_port(host, new_sandbox, sandbox, tmp_path):
    """A lease of dhcp is acquired and released for a pod with networkPolicy, which reaches the network."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server()
        node.start_daemon()
        network = node.network("bridge", networkPolicy=True, bridgeNetfilter=True)
        result = network.add(sandbox)
        assert reaches(sandbox, SERVER)
        network.check(sandbox, result)
        network.delete(sandbox, result)
        assert eventually(lambda: node.list_leases() == []), node.list_leases()
        assert policy_node.files() == []
