"""Packet sockets (kernel.packet_socket) on a veth pair: accepted frames, checksums, deleted interfaces."""

import errno
import os
import select
import socket
from functools import partial
from ipaddress import IPv4Address, IPv6Address

import pytest

from ipam.dhcp import frame, packet
from kernel.packet_socket import PacketSocket, dhcp4_filter, dhcp6_filter, router_advertisement_filter
from tests.support.errors import error_of
from tests.support.netstate import shown

WAIT_S = 20.0
LARGEST = 16384  # bytes
MAC, OTHER_MAC, SERVER_MAC, BROADCAST = b"\2\0\0\0\0\1", b"\2\0\0\0\0\7", b"\2\0\0\0\0\2", b"\xff" * 6
SERVER, CLIENT = IPv4Address("192.0.2.1"), IPv4Address("192.0.2.9")
SERVER6, CLIENT6 = IPv6Address("fe80::1"), IPv6Address("fe80::2")
ALL_NODES, ALL_NODES_MAC = IPv6Address("ff02::1"), b"\x33\x33\0\0\0\1"
TAG = b"\x81\0"  # the ethertype of a VLAN tag


def reply(chaddr=MAC, op=packet.BOOTREPLY, text=b""):
    return packet.encode(packet.Message(op, 7, chaddr, {packet.MESSAGE_TYPE: b"\5", 56: text} if text else {}))


def dhcp4(payload=None, *, to=MAC, port=68):
    return frame.build_udp4(SERVER_MAC, to, SERVER, CLIENT, 67, port, reply() if payload is None else payload)


def dhcp6(*, to=MAC, port=546):
    return frame.build_udp6(SERVER_MAC, to, SERVER6, CLIENT6, 547, port, b"\2\0\0\7")


def icmp6(message_type=134):
    return frame.build_icmp6(SERVER_MAC, ALL_NODES_MAC, SERVER6, ALL_NODES, message_type, 0, bytes(12))


def tagged(data, vlan):
    return data[:12] + TAG + vlan.to_bytes(2, "big") + data[12:]


def changed(data, offset, value):
    """Returns a frame with one byte replaced."""
    return data[:offset] + bytes((value,)) + data[offset + 1 :]


def with_options(data, options):
    """Returns a frame with options in its IPv4 header; its checksum is wrong."""
    header = bytes((0x45 + len(options) // 4,)) + data[15:34] + options
    return data[:14] + header + data[34:]


@pytest.fixture
def veth(host, sandbox):
    """A veth pair between a host (h0) and a pod (eth0, MAC), both up, with a large MTU and without IPv6."""
    for namespace in (host, sandbox):
        namespace.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")  # its own messages would be read as well
    host.ip("link", "add", "h0", "mtu", "30000", "type", "veth", "peer", "name", "eth0", "netns", sandbox.name)
    sandbox.ip("link", "set", "eth0", "address", MAC.hex(":"), "mtu", "30000", "up")
    host.ip("link", "set", "h0", "address", SERVER_MAC.hex(":"), "up")
    return host, sandbox


@pytest.fixture
def wire(veth):
    """A socket at the host's end, which sends any frame."""
    with veth[0].entered():
        new_socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with new_socket:
        with veth[0].entered():
            new_socket.bind(("h0", 0))
        yield new_socket


def opened(namespace, packet_filter, name="eth0"):
    with namespace.entered():
        return PacketSocket(shown(namespace, name)["ifindex"], packet_filter)


def errno_of(function, *arguments):
    return error_of(partial(function, *arguments), OSError).errno


def received(packets, last):
    """Returns the frames that arrive until the frame `last`, without it."""
    frames: list[bytes] = []
    while True:
        assert select.select([packets], [], [], WAIT_S)[0], f"received only {frames}"
        item = packets.receive()
        assert item is not None
        if item[0] == last:
            assert packets.receive() is None
            return frames
        frames.append(item[0])


ACCEPTED4 = {
    "unicast": dhcp4(),
    "broadcast": dhcp4(to=BROADCAST),
    "IP options": with_options(dhcp4(), b"\1" * 8),
    "the most IP options": with_options(dhcp4(), b"\1" * 40),
    "VLAN 0, a priority": dhcp4(),
    "the largest": dhcp4(reply(text=b"x" * 3000).ljust(LARGEST - 42, b"\0")),
}
REJECTED4 = {
    "another port": dhcp4(port=67),
    "a request": dhcp4(reply(op=packet.BOOTREQUEST)),
    "another client": dhcp4(reply(chaddr=OTHER_MAC)),
    "another client, by the last byte": dhcp4(reply(chaddr=MAC[:5] + b"\2")),
    "another client, by the first byte": dhcp4(reply(chaddr=b"\3" + MAC[1:])),
    "another MAC address": dhcp4(to=OTHER_MAC),
    "TCP": changed(dhcp4(), 23, 6),
    "the first fragment": changed(dhcp4(), 20, 0x20),
    "another fragment": changed(dhcp4(), 21, 1),
    "a VLAN": tagged(dhcp4(), 5),
    "a VLAN, broadcast": tagged(dhcp4(to=BROADCAST), 4094),
    "two tags": tagged(tagged(dhcp4(), 5), 6),
    "two tags, the outer a priority": tagged(tagged(dhcp4(), 5), 0),
    "IPv6": dhcp6(),
    "ARP": changed(dhcp4(), 13, 6),
    "truncated before chaddr ends": dhcp4()[: 14 + 20 + 8 + 28 + 5],
    "truncated to the Ethernet header": dhcp4()[:14],
    "too large": dhcp4(reply().ljust(LARGEST - 41, b"\0")),
}


def test_filter_of_dhcpv4(veth, wire):
    """A DHCPv4 socket reads the replies to its client in the untagged network, whole, and nothing else."""
    with opened(veth[1], dhcp4_filter(MAC)) as packets:
        for data in REJECTED4.values():
            wire.send(data)
        for name, data in ACCEPTED4.items():
            wire.send(tagged(data, 0xE000) if name.startswith("VLAN") else data)
        wire.send(last := dhcp4(reply(text=b"last")))
        assert received(packets, last) == list(ACCEPTED4.values())


def test_filter_without_a_mac_address(veth, wire):
    """Without a MAC address the filter accepts replies to all clients."""
    with opened(veth[1], dhcp4_filter()) as packets:
        wire.send(expected := dhcp4(reply(chaddr=OTHER_MAC), to=BROADCAST))
        wire.send(dhcp4(reply(op=packet.BOOTREQUEST)))
        wire.send(last := dhcp4())
        assert received(packets, last) == [expected]


REJECTED6 = (dhcp6(port=547), dhcp6(to=OTHER_MAC), tagged(dhcp6(), 5), changed(dhcp6(), 20, 6), icmp6(), dhcp4())
OTHER_ICMP6 = (icmp6(133), changed(icmp6(), 21, 254), tagged(icmp6(), 5), dhcp6(), changed(icmp6(), 20, 17))


@pytest.mark.parametrize(
    ("new_filter", "rejected", "accepted"),
    [
        (dhcp6_filter, (*REJECTED6, dhcp6()[:57]), dhcp6()),
        (router_advertisement_filter, OTHER_ICMP6, icmp6()),
    ],
)
@pytest.mark.every_case
def test_filters_of_ipv6(veth, wire, new_filter, rejected, accepted):
    """A socket reads datagrams to port 546 only, another router advertisements that did not cross a router."""
    with opened(veth[1], new_filter()) as packets:
        for data in (*rejected, accepted):
            wire.send(data)
        assert received(packets, accepted) == []


def test_frames_before_the_socket_are_not_read(veth, wire):
    """A socket under a flood of other frames reads none of them, since it has its filter before it is bound."""
    other = dhcp4(reply(chaddr=OTHER_MAC))
    index = shown(veth[1], "eth0")["ifindex"]
    with veth[1].entered():
        for _ in range(50):
            wire.send(other)
            with PacketSocket(index, dhcp4_filter(MAC)) as packets:
                wire.send(other)
                assert packets.receive() is None


def test_partial_checksum_is_recognised(veth, wire):
    """A datagram of a UDP socket in another namespace has an incomplete checksum, and the socket says so."""
    host, sandbox = veth
    host.ip("address", "add", f"{SERVER}/24", "dev", "h0")
    with opened(sandbox, dhcp4_filter(MAC)) as packets:
        with host.entered():
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"h0")
            server.bind((str(SERVER), 67))
            server.sendto(reply(), ("255.255.255.255", 68))
        assert select.select([packets], [], [], WAIT_S)[0]
        data, checksum_is_ready = packets.receive()
        assert checksum_is_ready is False
        with pytest.raises(packet.Malformed, match="UDP checksum"):
            frame.parse_udp4(data)
        datagram = frame.parse_udp4(data, checksum_is_ready=checksum_is_ready)
        assert (datagram.source_ip, datagram.source_port, datagram.payload) == (SERVER, 67, reply())
        wire.send(dhcp4())
        assert select.select([packets], [], [], WAIT_S)[0]
        data, checksum_is_ready = packets.receive()
        assert (checksum_is_ready, frame.parse_udp4(data, checksum_is_ready=True).payload) == (True, reply())


def test_sent_frames(veth):
    """A sent frame is a valid datagram for a UDP socket, and is not read by the socket that sent it."""
    host, sandbox = veth
    host.ip("address", "add", f"{SERVER}/24", "dev", "h0")
    request = reply(op=packet.BOOTREQUEST)
    with opened(sandbox, dhcp4_filter()) as client, host.entered():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.settimeout(WAIT_S)
            server.bind(("", 67))
            client.send(
                frame.build_udp4(MAC, BROADCAST, IPv4Address(0), IPv4Address("255.255.255.255"), 68, 67, request)
            )
            assert server.recvfrom(1 << 16) == (request, ("0.0.0.0", 68))
        client.send(frame.build_udp4(MAC, SERVER_MAC, SERVER, CLIENT, 67, 68, reply()))
        assert client.receive() is None


def test_oversize_frame_is_not_sent(veth):
    """A frame above the MTU is an OSError."""
    with opened(veth[1], dhcp4_filter()) as packets:
        assert errno_of(packets.send, bytes(12) + b"\x08\0" + bytes(30001)) == errno.EMSGSIZE


def test_interface_is_deleted(veth):
    """When the interface is deleted, the socket becomes readable and fails, and sending fails."""
    with opened(veth[1], dhcp4_filter()) as packets:
        assert packets.receive() is None
        veth[0].ip("link", "delete", "h0")
        assert select.select([packets], [], [], WAIT_S)[0]
        assert errno_of(packets.receive) == errno.ENETDOWN
        assert errno_of(packets.send, dhcp4()) == errno.ENXIO


def test_interface_is_set_down_and_up(veth, wire):
    """When the interface goes down, the socket fails once, and works again when it is up."""
    with opened(veth[1], dhcp4_filter()) as packets:
        veth[1].ip("link", "set", "eth0", "down")
        assert select.select([packets], [], [], WAIT_S)[0]
        assert errno_of(packets.receive) == errno.ENETDOWN
        assert packets.receive() is None
        assert errno_of(packets.send, dhcp4()) == errno.ENETDOWN
        veth[1].ip("link", "set", "eth0", "up")
        wire.send(last := dhcp4())
        assert received(packets, last) == []


def test_missing_interface(sandbox):
    """A missing interface is an OSError, and no socket stays open."""
    with sandbox.entered():
        before = os.listdir("/proc/self/fd")
        assert errno_of(PacketSocket, 12345, dhcp4_filter()) == errno.ENXIO
        assert os.listdir("/proc/self/fd") == before


def test_interface_is_renamed_meanwhile(veth, monkeypatch):
    """A name that belongs to another interface after the bind is refused."""
    monkeypatch.setattr(socket, "if_nametoindex", lambda _: 12345)
    assert errno_of(opened, veth[1], dhcp4_filter()) == errno.ENODEV
