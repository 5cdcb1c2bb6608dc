"""Router solicitations and advertisements as bytes (ipam.dhcp.router_advertisement), also as scapy has them."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network

import pytest
from scapy.layers import inet6
from scapy.layers.l2 import Ether

from ipam.dhcp.address6 import NO_ADDRESS
from ipam.dhcp.frame import Icmp6, parse_icmp6
from ipam.dhcp.lease import INFINITE
from ipam.dhcp.packet import Malformed
from ipam.dhcp.router_advertisement import Prefix, RouterAdvertisement, parse, solicitation_frame
from process.values import replace

MAC, ROUTER = b"\2\0\0\0\0\1", IPv6Address("fe80::1")
LINK_LOCAL, ALL_NODES = IPv6Address("fe80::ff:fe00:1"), IPv6Address("ff02::1")
HEADER = bytes((64, 0, 7, 8)) + bytes(8)  # router lifetime 0x708 = 1800 s
NETWORK = IPv6Network("2001:db8:1::/64")
PREFIX = Prefix(NETWORK, True, True, 7200.0, 3600.0)


def message(body=HEADER, **changes):
    return replace(Icmp6(MAC, ROUTER, ALL_NODES, 134, 0, body), **changes)


def option(number, content):
    return bytes((number, (len(content) + 2) // 8)) + content


def prefix_option(network="2001:db8:1::", bits=64, flags=0xC0, valid=7200, preferred=3600):
    times = valid.to_bytes(4, "big") + preferred.to_bytes(4, "big") + bytes(4)
    return option(3, bytes((bits, flags)) + times + IPv6Address(network).packed)


def prefixes(*options):
    return parse(message(HEADER + b"".join(options)), 5.0).prefixes


def test_advertisement_of_scapy():
    """An advertisement that scapy wrote is read whole."""
    body = (
        inet6.ICMPv6ND_RA(M=1, O=1, routerlifetime=1800)
        / inet6.ICMPv6NDOptSrcLLAddr(lladdr="02:00:00:00:00:02")
        / inet6.ICMPv6NDOptMTU(mtu=1400)
        / inet6.ICMPv6NDOptPrefixInfo(prefix="2001:db8:1::", prefixlen=64, validlifetime=7200, preferredlifetime=3600)
        / inet6.ICMPv6NDOptRDNSS(lifetime=600, dns=["2001:db8::53", "fe80::53", "2001:db8::54"])
        / inet6.ICMPv6NDOptDNSSL(lifetime=600, searchlist=["example.org.", "b.example."])
        / inet6.ICMPv6NDOptRouteInfo(prefix="2001:db8:9::", plen=64)
    )
    packet = Ether(src=MAC) / inet6.IPv6(src="fe80::1", dst="ff02::1", hlim=255) / body
    assert parse(parse_icmp6(bytes(packet)), 5.0) == RouterAdvertisement(
        router=ROUTER,
        received_s=5.0,
        lifetime_s=1800.0,
        managed=True,
        other=True,
        mtu=1400,
        prefixes=(PREFIX,),
        dns_servers=(IPv6Address("2001:db8::53"), IPv6Address("2001:db8::54")),
        search=("example.org", "b.example"),
    )


@pytest.mark.parametrize(("source", "has_mac"), [(LINK_LOCAL, True), (NO_ADDRESS, False)])
def test_solicitation(source, has_mac):
    """A solicitation is read by scapy; it has no MAC address if it has no source address."""
    packet = Ether(solicitation_frame(MAC, source))
    assert packet.dst == "33:33:00:00:00:02"
    assert (packet[inet6.IPv6].src, packet[inet6.IPv6].dst, packet[inet6.IPv6].hlim) == (str(source), "ff02::2", 255)
    assert inet6.ICMPv6ND_RS in packet
    assert (inet6.ICMPv6NDOptSrcLLAddr in packet) is has_mac


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"message_type": 133}, "type 133"),
        ({"code": 1}, "code 1"),
        ({"source_ip": IPv6Address("2001:db8::1")}, "not link-local"),
        ({"body": HEADER[:-1]}, "is truncated"),
        ({"body": HEADER + b"\1"}, "lacks its length"),
        ({"body": HEADER + b"\1\0" + bytes(6)}, "option 1 is empty"),
        ({"body": HEADER + b"\3\4" + bytes(29)}, "option 3 is empty or truncated"),
    ],
)
def test_malformed(changes, reason):
    """A message that is no valid advertisement is malformed."""
    with pytest.raises(Malformed, match=reason):
        parse(message(**changes), 0.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, PREFIX),
        ({"flags": 0x80}, replace(PREFIX, autonomous=False)),
        ({"flags": 0x40}, replace(PREFIX, on_link=False)),
        ({"network": "2001:db8:1::77"}, PREFIX),
        ({"bits": 48}, Prefix(IPv6Network("2001:db8:1::/48"), True, False, 7200.0, 3600.0)),
        ({"valid": 2**32 - 1, "preferred": 2**32 - 1}, Prefix(NETWORK, True, True, INFINITE, INFINITE)),
        ({"flags": 0}, None),
        ({"bits": 48, "flags": 0x40}, None),
        ({"preferred": 7201}, None),
        *(({"bits": bits}, None) for bits in (0, 129)),
        *(({"network": network, "bits": bits}, None) for network, bits in (("::", 1), ("fe80::", 64), ("fe00::", 7))),
        ({"network": "ff02::"}, None),
    ],
)
def test_prefixes(changes, expected):
    """Prefixes that a host must ignore are left out; only those of 64 bits are for autoconfiguration."""
    assert prefixes(prefix_option(**changes)) == ((expected,) if expected else ())


@pytest.mark.parametrize(
    "ignored",
    [
        *(option(5, bytes(4) + b"\4\xff"), option(5, bytes(14)), option(3, bytes(6)), option(200, bytes(6))),
        option(25, bytes(2) + b"\0\0\2\x58"),
        option(25, bytes(6) + IPv6Address("2001:db8::53").packed),
        option(25, bytes(2) + b"\0\0\2\x58" + bytes(24)),
        option(31, bytes(2) + b"\0\0\2\x58" + bytes(8)),
        option(31, bytes(6) + b"\1a\0" + bytes(5)),
        option(31, bytes(2) + b"\0\0\2\x58" + b"\7abcdefg"),
    ],
)
def test_ignored_options(ignored):
    """An option that is malformed, unknown, or whose lifetime is 0 changes nothing."""
    plain = parse(message(HEADER), 0.0)
    assert parse(message(HEADER + ignored), 0.0) == plain
    assert (plain.mtu, plain.dns_servers, plain.search) == (0, (), ())
