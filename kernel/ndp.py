"""Duplicate address detection of IPv6 (RFC 4862): a neighbour solicitation without a source, and its answers."""

from __future__ import annotations

import struct

ETH_P_IPV6 = 0x86DD  # linux/if_ether.h
_ICMP6, _HOP_LIMIT, _SOLICITATION, _ADVERTISEMENT = 58, 255, 135, 136
_HEADER_BYTES, _TARGET_OFFSET, _TARGET_LINK_ADDRESS = 40, 8, 2


def build_probe(address: bytes) -> bytes:
    """Returns a neighbour solicitation for an address, from the unspecified address, with its IPv6 header."""
    body = struct.pack(">BBHI", _SOLICITATION, 0, 0, 0) + address
    destination = solicited_node(address)
    pseudo = bytes(16) + destination + struct.pack(">II", len(body), _ICMP6)
    checksum = _checksum(pseudo + body)
    body = body[:2] + checksum.to_bytes(2, "big") + body[4:]
    return struct.pack(">IHBB", 6 << 28, len(body), _ICMP6, _HOP_LIMIT) + bytes(16) + destination + body


def solicited_node(address: bytes) -> bytes:
    """Returns the multicast group that the owner of an address listens to."""
    return bytes.fromhex("ff0200000000000000000001ff") + address[-3:]


def multicast_mac(group: bytes) -> bytes:
    """Returns the MAC address of a multicast group (RFC 2464)."""
    return b"\x33\x33" + group[-4:]


def find_owner(packet: bytes, address: bytes) -> bytes | None:
    """Returns the MAC address that a neighbour advertisement gives for an address, None for other packets."""
    if len(packet) < _HEADER_BYTES + 24 or packet[6] != _ICMP6 or packet[_HEADER_BYTES] != _ADVERTISEMENT:
        return None
    target = packet[_HEADER_BYTES + _TARGET_OFFSET : _HEADER_BYTES + _TARGET_OFFSET + 16]
    option = packet[_HEADER_BYTES + 24 : _HEADER_BYTES + 32]
    if target != address or len(option) < 8 or option[0] != _TARGET_LINK_ADDRESS:
        return None
    return option[2:8]


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
