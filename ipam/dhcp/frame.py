"""Ethernet frames with UDP datagrams and ICMPv6 messages: built from a payload, and parsed with every length checked.

One rule: a parser returns a payload only if all headers are valid; otherwise it raises Malformed.

`checksum_is_ready` is false for a frame that the kernel marked as unfinished: between two namespaces of a host, the UDP
and ICMPv6 checksums are left to a network card that the frame never reaches. They are not verified then.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

from ipam.dhcp.packet import Malformed
from kernel.checksum import compute_checksum
from process.values import dataclass

ETHERTYPE_IPV4, ETHERTYPE_IPV6 = 0x0800, 0x86DD  # linux/if_ether.h
_UDP, _ICMP6 = 17, 58  # IP protocol numbers
_TTL, _UDP6_HOP_LIMIT, _ICMP6_HOP_LIMIT = 64, 64, 255
_DONT_FRAGMENT = 0x4000
_FRAGMENT = 0x3FFF  # the flag "more fragments", and the offset

_ETHERNET = struct.Struct("!6s6sH")  # destination, source, ethertype
# version and IHL, TOS, total length, identification, flags and offset, TTL, protocol, checksum, source, destination
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
# version, class and flow label; payload length, next header, hop limit, source, destination
_IPV6 = struct.Struct("!IHBB16s16s")
_UDP_HEADER = struct.Struct("!HHHH")  # source port, destination port, length, checksum
_ICMP6_HEADER = struct.Struct("!BBH")  # type, code, checksum


@dataclass(frozen=True)
class Datagram:
    """A UDP datagram over IPv4."""

    source_mac: bytes
    source_ip: IPv4Address
    destination_ip: IPv4Address
    source_port: int
    destination_port: int
    payload: bytes


@dataclass(frozen=True)
class Datagram6:
    """A UDP datagram over IPv6."""

    source_mac: bytes
    source_ip: IPv6Address
    destination_ip: IPv6Address
    source_port: int
    destination_port: int
    payload: bytes


@dataclass(frozen=True)
class Icmp6:
    """An ICMPv6 message; `body` is everything after the checksum."""

    source_mac: bytes
    source_ip: IPv6Address
    destination_ip: IPv6Address
    message_type: int
    code: int
    body: bytes


def build_udp4(
    source_mac: bytes,
    destination_mac: bytes,
    source_ip: IPv4Address,
    destination_ip: IPv4Address,
    source_port: int,
    destination_port: int,
    payload: bytes,
) -> bytes:
    """Returns a frame with a UDP datagram over IPv4, unfragmented, TTL 64."""
    udp = _udp(_pseudo_header4(source_ip, destination_ip), source_port, destination_port, payload)
    length = _IPV4.size + len(udp)
    fields = (0x45, 0, length, 0, _DONT_FRAGMENT, _TTL, _UDP)
    checksum = compute_checksum(_IPV4.pack(*fields, 0, source_ip.packed, destination_ip.packed))
    header = _IPV4.pack(*fields, checksum, source_ip.packed, destination_ip.packed)
    return _ETHERNET.pack(destination_mac, source_mac, ETHERTYPE_IPV4) + header + udp


def parse_udp4(frame: bytes, *, checksum_is_ready: bool = True) -> Datagram:
    """Returns the UDP datagram of an Ethernet frame with IPv4; raises Malformed, also for a fragment.

    IPv4 options are skipped, and the padding after the packet is cut. A UDP checksum of 0 means that there is none.
    """
    source_mac, packet = _parse_ethernet(frame, ETHERTYPE_IPV4)
    if len(packet) < _IPV4.size:
        raise Malformed("the IPv4 header is truncated")
    version, _, length, _, fragment, _, protocol, _, source, destination = _IPV4.unpack_from(packet)
    header_bytes = (version & 15) * 4
    if version >> 4 != 4 or not _IPV4.size <= header_bytes <= length <= len(packet):
        raise Malformed("the version or a length of the IPv4 header is wrong")
    if compute_checksum(packet[:header_bytes]):
        raise Malformed("the IPv4 checksum is wrong")
    if fragment & _FRAGMENT:
        raise Malformed("the packet is a fragment")
    if protocol != _UDP:
        raise Malformed(f"the packet's protocol is {protocol}")
    source_ip, destination_ip = IPv4Address(source), IPv4Address(destination)
    ports, payload = _parse_udp(
        packet[header_bytes:length], _pseudo_header4(source_ip, destination_ip), checksum_is_ready, is_optional=True
    )
    return Datagram(source_mac, source_ip, destination_ip, *ports, payload)


def build_udp6(
    source_mac: bytes,
    destination_mac: bytes,
    source_ip: IPv6Address,
    destination_ip: IPv6Address,
    source_port: int,
    destination_port: int,
    payload: bytes,
) -> bytes:
    """Returns a frame with a UDP datagram over IPv6, hop limit 64."""
    udp = _udp(_pseudo_header6(source_ip, destination_ip, _UDP), source_port, destination_port, payload)
    header = _ipv6_header(source_ip, destination_ip, len(udp), _UDP, _UDP6_HOP_LIMIT)
    return _ETHERNET.pack(destination_mac, source_mac, ETHERTYPE_IPV6) + header + udp


def parse_udp6(frame: bytes, *, checksum_is_ready: bool = True) -> Datagram6:
    """Returns the UDP datagram of an Ethernet frame with IPv6; raises Malformed, also for extension headers."""
    source_mac, source_ip, destination_ip, _, udp = _parse_ipv6(frame, _UDP)
    pseudo_header = _pseudo_header6(source_ip, destination_ip, _UDP)
    ports, payload = _parse_udp(udp, pseudo_header, checksum_is_ready, is_optional=False)
    return Datagram6(source_mac, source_ip, destination_ip, *ports, payload)


def build_icmp6(
    source_mac: bytes,
    destination_mac: bytes,
    source_ip: IPv6Address,
    destination_ip: IPv6Address,
    message_type: int,
    code: int,
    body: bytes,
) -> bytes:
    """Returns a frame with an ICMPv6 message, hop limit 255; `body` is everything after the checksum."""
    length = _ICMP6_HEADER.size + len(body)
    data = _ICMP6_HEADER.pack(message_type, code, 0) + body
    checksum = compute_checksum(_pseudo_header6(source_ip, destination_ip, _ICMP6) + struct.pack("!I", length) + data)
    header = _ipv6_header(source_ip, destination_ip, length, _ICMP6, _ICMP6_HOP_LIMIT)
    message = _ICMP6_HEADER.pack(message_type, code, checksum) + body
    return _ETHERNET.pack(destination_mac, source_mac, ETHERTYPE_IPV6) + header + message


def parse_icmp6(frame: bytes, *, checksum_is_ready: bool = True) -> Icmp6:
    """Returns the ICMPv6 message of an Ethernet frame; raises Malformed, also for extension headers.

    A hop limit below 255 is malformed: the message crossed a router (RFC 4861, section 6.1.2).
    """
    source_mac, source_ip, destination_ip, hop_limit, data = _parse_ipv6(frame, _ICMP6)
    if hop_limit != _ICMP6_HOP_LIMIT:
        raise Malformed(f"the hop limit is {hop_limit}")
    if len(data) < _ICMP6_HEADER.size:
        raise Malformed("the ICMPv6 header is truncated")
    pseudo_header = _pseudo_header6(source_ip, destination_ip, _ICMP6) + struct.pack("!I", len(data))
    if checksum_is_ready and compute_checksum(pseudo_header + data):
        raise Malformed("the ICMPv6 checksum is wrong")
    message_type, code, _ = _ICMP6_HEADER.unpack_from(data)
    return Icmp6(source_mac, source_ip, destination_ip, message_type, code, data[_ICMP6_HEADER.size :])


def _parse_ethernet(frame: bytes, ethertype: int) -> tuple[bytes, bytes]:
    """Returns the source MAC address and the content of a frame of type `ethertype`; raises Malformed."""
    if len(frame) < _ETHERNET.size:
        raise Malformed("the Ethernet header is truncated")
    _, source_mac, actual = _ETHERNET.unpack_from(frame)
    if actual != ethertype:
        raise Malformed(f"the ethertype is {actual:#06x}")
    return source_mac, frame[_ETHERNET.size :]


def _parse_ipv6(frame: bytes, next_header: int) -> tuple[bytes, IPv6Address, IPv6Address, int, bytes]:
    """Returns source MAC address, source, destination, hop limit and payload; raises Malformed."""
    source_mac, packet = _parse_ethernet(frame, ETHERTYPE_IPV6)
    if len(packet) < _IPV6.size:
        raise Malformed("the IPv6 header is truncated")
    first, length, actual, hop_limit, source, destination = _IPV6.unpack_from(packet)
    if first >> 28 != 6 or _IPV6.size + length > len(packet):
        raise Malformed("the version or the length of the IPv6 header is wrong")
    if actual != next_header:
        raise Malformed(f"the next header is {actual}")
    payload = packet[_IPV6.size : _IPV6.size + length]
    return source_mac, IPv6Address(source), IPv6Address(destination), hop_limit, payload


def _parse_udp(
    data: bytes, pseudo_header: bytes, checksum_is_ready: bool, *, is_optional: bool
) -> tuple[tuple[int, int], bytes]:
    """Returns the two ports and the payload of a datagram; raises Malformed. `is_optional`: of the checksum."""
    if len(data) < _UDP_HEADER.size:
        raise Malformed("the UDP header is truncated")
    source_port, destination_port, length, checksum = _UDP_HEADER.unpack_from(data)
    if not _UDP_HEADER.size <= length <= len(data):
        raise Malformed("the length of the UDP header is wrong")
    data = data[:length]
    is_verified = checksum_is_ready and not (is_optional and checksum == 0)
    if is_verified and (checksum == 0 or compute_checksum(pseudo_header + struct.pack("!I", length) + data)):
        raise Malformed("the UDP checksum is wrong")
    return (source_port, destination_port), data[_UDP_HEADER.size :]


def _udp(pseudo_header: bytes, source_port: int, destination_port: int, payload: bytes) -> bytes:
    """Returns a UDP header with its payload; a checksum of 0 is sent as 0xffff, since 0 means none."""
    fields = (source_port, destination_port, _UDP_HEADER.size + len(payload))
    checksum = compute_checksum(pseudo_header + struct.pack("!I", fields[2]) + _UDP_HEADER.pack(*fields, 0) + payload)
    return _UDP_HEADER.pack(*fields, checksum or 0xFFFF) + payload


def _ipv6_header(source: IPv6Address, destination: IPv6Address, length: int, protocol: int, hop_limit: int) -> bytes:
    return _IPV6.pack(6 << 28, length, protocol, hop_limit, source.packed, destination.packed)


def _pseudo_header4(source: IPv4Address, destination: IPv4Address) -> bytes:
    """Returns the pseudo-header of UDP without the length, which follows; its order does not change the checksum."""
    return source.packed + destination.packed + struct.pack("!I", _UDP)


def _pseudo_header6(source: IPv6Address, destination: IPv6Address, protocol: int) -> bytes:
    """Returns the pseudo-header without the length, which follows; its order does not change the checksum."""
    return source.packed + destination.packed + struct.pack("!I", protocol)
