"""Neighbour solicitations of IPv6 (RFC 4861), also without a source (is an address used? RFC 4862), and answers."""

from __future__ import annotations

import struct

from kernel.checksum import compute_checksum

ETH_P_IPV6 = 0x86DD  # linux/if_ether.h
_ICMP6, _HOP_LIMIT, _SOLICITATION, _ADVERTISEMENT = 58, 255, 135, 136
_HEADER_BYTES, _TARGET_OFFSET, _TARGET_LINK_ADDRESS = 40, 8, 2
_SOURCE_LINK_ADDRESS = 1


def build_probe(address: bytes) -> bytes:
    """Returns a neighbour solicitation for an address, from the unspecified address, with its IPv6 header."""
    return _solicitation(bytes(16), address, b"")


def build_request(mac: bytes, sender: bytes, address: bytes) -> bytes:
    """Returns a neighbour solicitation of the host with an address and a MAC address for another address."""
    return _solicitation(sender, address, bytes((_SOURCE_LINK_ADDRESS, 1)) + mac)


def _solicitation(sender: bytes, address: bytes, option: bytes) -> bytes:
    body = struct.pack(">BBHI", _SOLICITATION, 0, 0, 0) + address + option
    destination = solicited_node(address)
    pseudo = sender + destination + struct.pack(">II", len(body), _ICMP6)
    checksum = compute_checksum(pseudo + body)
    body = body[:2] + checksum.to_bytes(2, "big") + body[4:]
    return struct.pack(">IHBB", 6 << 28, len(body), _ICMP6, _HOP_LIMIT) + sender + destination + body


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
