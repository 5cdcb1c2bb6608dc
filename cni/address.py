"""Addresses as text: what Go's net package accepts and prints, in both directions.

One rule: an address is a typed value once parsed; nobody below parses text again.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network

_HEX_OCTET = re.compile(r"[0-9a-fA-F]{2}")


def parse_ip(text: str) -> Address:
    """Returns the address in `text`; IPv4-mapped IPv6 counts as IPv4, zones and leading zeros are refused.

    Raises ValueError, as Go's net.ParseIP fails.
    """
    if ":" not in text:
        return IPv4Address(text)
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    address = IPv6Address(text)
    return address.ipv4_mapped or address


def parse_cidr(text: str) -> Interface:
    """Returns address and prefix of `text` ("10.1.2.5/24"), host bits kept; raises ValueError (Go: net.ParseCIDR)."""
    host, slash, prefix = text.partition("/")
    if not slash or not prefix.isascii() or not prefix.isdigit() or len(prefix) > 3:
        raise ValueError(f"{text!r} is not address/prefix")
    bits = int(prefix)
    address = parse_ip(host)
    if isinstance(address, IPv6Address):
        return IPv6Interface((address, bits))
    if ":" in host:  # an IPv4-mapped address counts its prefix from the IPv6 form
        if bits < 96:
            raise ValueError(f"{text!r} has a prefix shorter than ::ffff:0:0/96")
        bits -= 96
    return IPv4Interface((address, bits))


def parse_mac(text: str) -> bytes:
    """Returns a hardware address of 6, 8 or 20 bytes, written with ':' '-' or '.' (Go: net.ParseMAC).

    Raises ValueError.
    """
    if "." in text:
        groups = text.split(".")
        if any(len(group) != 4 for group in groups):
            raise ValueError(f"address {text}: invalid MAC address")
        octets = [half for group in groups for half in (group[:2], group[2:])]
    else:
        octets = text.split(":" if ":" in text else "-")
    if len(octets) not in (6, 8, 20) or not all(_HEX_OCTET.fullmatch(octet) for octet in octets):
        raise ValueError(f"address {text}: invalid MAC address")
    return bytes(int(octet, 16) for octet in octets)


def format_mac(mac: bytes) -> str:
    """Returns `mac` as "aa:bb:cc:dd:ee:ff"."""
    return mac.hex(":")
