"""Ethernet frames with UDP and ICMPv6 (ipam.dhcp.frame), compared with scapy's."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import ICMPv6Unknown, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from ipam.dhcp import frame
from ipam.dhcp.frame import Datagram, Datagram6, Icmp6
from ipam.dhcp.packet import Malformed

MAC, SERVER_MAC = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"
CLIENT, SERVER = IPv4Address("192.0.2.9"), IPv4Address("192.0.2.1")
CLIENT6, SERVER6 = IPv6Address("fe80::9"), IPv6Address("fe80::1")
PORTS = st.integers(0, 65535)
ADDRESSES4 = st.integers(0, 2**32 - 1).map(IPv4Address)
ADDRESSES6 = st.integers(0, 2**128 - 1).map(IPv6Address)
PAYLOADS = st.binary(max_size=300)
# Without the addresses, scapy would look them up on the network, for seconds.
ETHERNET4, ETHERNET6 = (Ether(src=SERVER_MAC.hex(":"), dst=MAC.hex(":"), type=kind) for kind in (0x800, 0x86DD))
# Offsets in a frame.
IP_AT, UDP4, UDP6 = 14, 34, 54


def udp4(payload=b"payload", **scapy):
    """Returns a frame with IPv4 and UDP; keyword arguments change the IPv4 header, whose checksum is right."""
    raw = frame.build_udp4(SERVER_MAC, MAC, SERVER, CLIENT, 67, 68, payload)
    if not scapy:
        return raw
    return with_ip(bytes(Ether(raw)[UDP]), **scapy)


def with_ip(payload, **scapy):
    header = IP(**{"src": str(SERVER), "dst": str(CLIENT), "proto": 17, "flags": "DF", **scapy})
    return bytes(ETHERNET4 / header / Raw(payload))


def udp6(payload=b"payload"):
    return frame.build_udp6(SERVER_MAC, MAC, SERVER6, CLIENT6, 547, 546, payload)


def icmp6(body=b"\0\0\0\0"):
    return frame.build_icmp6(SERVER_MAC, MAC, SERVER6, CLIENT6, 133, 0, body)


def changed(data, offset, content):
    return data[:offset] + content + data[offset + len(content) :]


@given(ADDRESSES4, ADDRESSES4, PORTS, PORTS, PAYLOADS)
def test_udp_over_ipv4(source, destination, source_port, destination_port, payload):
    """A built frame has scapy's lengths and checksums, and is parsed into its parts."""
    data = frame.build_udp4(SERVER_MAC, MAC, source, destination, source_port, destination_port, payload)
    header = IP(src=str(source), dst=str(destination), flags="DF", id=0, ttl=64)
    assert bytes(ETHERNET4 / header / UDP(sport=source_port, dport=destination_port) / Raw(payload)) == data
    expected = Datagram(SERVER_MAC, source, destination, source_port, destination_port, payload)
    assert frame.parse_udp4(data) == expected


@given(ADDRESSES6, ADDRESSES6, PORTS, PORTS, PAYLOADS)
def test_udp_over_ipv6(source, destination, source_port, destination_port, payload):
    """The same over IPv6."""
    data = frame.build_udp6(SERVER_MAC, MAC, source, destination, source_port, destination_port, payload)
    pure = IPv6(src=str(source), dst=str(destination), hlim=64) / UDP(sport=source_port, dport=destination_port)
    assert bytes(ETHERNET6 / pure / Raw(payload)) == data
    expected = Datagram6(SERVER_MAC, source, destination, source_port, destination_port, payload)
    assert frame.parse_udp6(data) == expected


@given(ADDRESSES6, ADDRESSES6, st.integers(0, 255), st.integers(0, 255), PAYLOADS)
def test_icmpv6(source, destination, message_type, code, body):
    """A built ICMPv6 message has scapy's checksum, and is parsed into its parts."""
    data = frame.build_icmp6(SERVER_MAC, MAC, source, destination, message_type, code, body)
    pure = IPv6(src=str(source), dst=str(destination), hlim=255)
    built = bytes(ETHERNET6 / pure / ICMPv6Unknown(type=message_type, code=code, msgbody=body))
    assert data[IP_AT:] == built[IP_AT:]
    assert frame.parse_icmp6(data) == Icmp6(SERVER_MAC, source, destination, message_type, code, body)


def test_checksum_of_zero_is_sent_as_ones():
    """A UDP checksum that is 0 is sent as 0xffff, since 0 means that there is none, and is accepted."""
    for build, parse, at in ((udp4, frame.parse_udp4, UDP4 + 6), (udp6, frame.parse_udp6, UDP6 + 6)):
        checksum = int.from_bytes(build(bytes(2))[at : at + 2], "big")
        data = build(checksum.to_bytes(2, "big"))  # it adds the checksum's complement, so that the sum is 0
        assert data[at : at + 2] == b"\xff\xff"
        assert parse(data).payload == checksum.to_bytes(2, "big")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(udp4(b"x") + bytes(17), id="padding"),
        pytest.param(udp4(b"x", options=b"\1" * 8), id="IP options"),
        pytest.param(udp4(b"x", options=b"\1" * 40), id="the most IP options"),
        pytest.param(changed(udp4(b"x"), UDP4 + 6, b"\0\0"), id="no checksum"),
        pytest.param(udp4(b"x", ttl=1, flags=0, tos=0x10), id="another TTL, fragments allowed, a type of service"),
        pytest.param(with_ip(udp4(b"x")[UDP4:] + b"more"), id="bytes after the datagram"),
    ],
)
def test_unusual_frame_is_parsed(data):
    """Padding is cut, IPv4 options are skipped, and a missing UDP checksum is accepted."""
    assert frame.parse_udp4(data) == Datagram(SERVER_MAC, SERVER, CLIENT, 67, 68, b"x")


MALFORMED4 = {
    "another ethertype": changed(udp4(), 12, b"\x86\xdd"),
    "a VLAN tag": udp4()[:12] + b"\x81\0\0\5" + udp4()[12:],
    "version 6": changed(udp4(), IP_AT, b"\x65"),
    "a header of 16 bytes": udp4(ihl=4),
    "a header longer than the packet": udp4(b"", ihl=15),
    "a length below the header": udp4(len=19),
    "a length without UDP header": udp4(len=27),
    "a length above the frame": udp4(len=36),
    "TCP": udp4(proto=6),
    "the first fragment": udp4(flags="MF"),
    "another fragment": udp4(flags=0, frag=1),
    "a UDP length of 7": changed(udp4(), UDP4 + 4, b"\0\7"),
    "a UDP length of 0": changed(udp4(), UDP4 + 4, bytes(4)),
    "a UDP length above the packet": changed(udp4(), UDP4 + 4, b"\0\x10\0\0"),
    "a UDP length in the padding": changed(udp4() + bytes(9), UDP4 + 4, b"\0\x10\0\0"),
}
MALFORMED6 = {
    "IPv4": udp4(),
    "version 4": changed(udp6(), IP_AT, b"\x40"),
    "a length above the frame": changed(udp6(), 18, b"\0\x10"),
    "a length of 0": changed(udp6(), 18, b"\0\0"),
    "an extension header": changed(udp6(), 20, b"\0"),
    "ICMPv6": icmp6(),
    "no checksum": changed(udp6(), UDP6 + 6, b"\0\0"),
    "a UDP length of 7": changed(udp6(), UDP6 + 4, b"\0\7"),
    "a UDP length above the packet": changed(udp6(), UDP6 + 4, b"\0\x10"),
}
MALFORMED_ICMP = {
    "crossed a router": changed(icmp6(), 21, b"\xfe"),
    "UDP": udp6(),
    "three bytes": changed(icmp6(), 18, b"\0\3"),
}
MALFORMED = [
    pytest.param(parse, data, id=f"{parse.__name__}, {name}")
    for parse, frames in (
        (frame.parse_udp4, MALFORMED4),
        (frame.parse_udp6, MALFORMED6),
        (frame.parse_icmp6, MALFORMED_ICMP),
    )
    for name, data in frames.items()
]


@pytest.mark.parametrize(("parse", "data"), MALFORMED)
def test_malformed_frame(parse, data):
    """A wrong length or header is Malformed; over IPv6 the UDP checksum is mandatory, the hop limit of ICMPv6 255."""
    with pytest.raises(Malformed):
        parse(data)


def test_incomplete_checksums_are_not_verified():
    """A checksum that the kernel left to the network card is not verified; the IP checksum always is."""
    bad = changed(udp4(), UDP4 + 6, b"\0\1")
    assert frame.parse_udp4(bad, checksum_is_ready=False).payload == b"payload"
    bad6 = changed(udp6(), UDP6 + 6, b"\0\1")
    assert frame.parse_udp6(bad6, checksum_is_ready=False).payload == b"payload"
    assert frame.parse_icmp6(changed(icmp6(), UDP6 + 2, b"\0\0"), checksum_is_ready=False).body == bytes(4)
    with pytest.raises(Malformed):
        frame.parse_udp4(changed(udp4(), 24, b"\0\0"), checksum_is_ready=False)


FRAMES = [(udp4(), frame.parse_udp4), (udp6(), frame.parse_udp6), (icmp6(), frame.parse_icmp6)]


@pytest.mark.parametrize(("data", "parse"), FRAMES, ids=["UDP over IPv4", "UDP over IPv6", "ICMPv6"])
def test_every_truncated_frame_is_malformed(data, parse):
    """A frame cut anywhere is Malformed, with a complete checksum and without."""
    for size in range(len(data)):
        for checksum_is_ready in (True, False):
            with pytest.raises(Malformed):
                parse(data[:size], checksum_is_ready=checksum_is_ready)


@pytest.mark.parametrize(("data", "parse"), FRAMES, ids=["UDP over IPv4", "UDP over IPv6", "ICMPv6"])
def test_changed_bits_are_noticed(data, parse):
    """A changed bit after the Ethernet header gives Malformed, except in fields that no checksum contains."""
    expected = parse(data)
    for bit in range(IP_AT * 8, len(data) * 8):
        number = int.from_bytes(data, "big") ^ 1 << (len(data) * 8 - 1 - bit)
        try:
            parsed = parse(number.to_bytes(len(data), "big"))
        except Malformed:
            continue
        assert parsed == expected  # the traffic class, flow label and hop limit of IPv6
        assert bit // 8 in (14, 15, 16, 17, 21)
