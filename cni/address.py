"""Addresses as text: what Go's net package accepts and prints, in both directions.

One rule: an address is a typed value once parsed; nobody below parses text again.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from socket import AF_INET, AF_INET6, inet_pton

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network

_HEX_OCTET = re.compile(r"[0-9a-fA-F]{2}")
_MAPPED = bytes(10) + b"\xff\xff"  # RFC 4291: what precedes an IPv4 address in an IPv6 one
_MAPPED_BITS = 8 * len(_MAPPED)


def parse_ip(text: str) -> Address:
    """Returns the address in `text`; IPv4-mapped IPv6 counts as IPv4, zones and leading zeros are refused.

    Raises ValueError, as Go's net.ParseIP fails.
    """
    try:
        if ":" not in text:
            return IPv4Address(inet_pton(AF_INET, text))
        packed = inet_pton(AF_INET6, text)
    except OSError:
        raise ValueError(f"{text!r} is not an address") from None
    return IPv4Address(packed[len(_MAPPED) :]) if packed.startswith(_MAPPED) else IPv6Address(packed)


def parse_cidr(text: str) -> Interface:
    """Returns address and prefix of `text` ("10.1.2.5/24"), host bits kept; raises ValueError (Go: net.ParseCIDR)."""
    host, slash, prefix = text.partition("/")
    if not slash or not prefix.isascii() or not prefix.isdigit() or len(prefix) > 3:
        raise ValueError(f"{text!r} is not address/prefix")
    bits = int(prefix)
    address = parse_ip(host)
    if isinstance(address, IPv4Address) and ":" in host:  # a mapped one counts its prefix from the IPv6 form
        bits -= _MAPPED_BITS
    return with_prefix(address, bits)


def with_prefix(address: Address, bits: int) -> Interface:
    """Returns an address with a prefix, its host bits kept; raises ValueError for a prefix that its family has not.

    The standard library would print an address, and read it again, two times: so it is given the number.
    """
    return (IPv4Interface if isinstance(address, IPv4Address) else IPv6Interface)((int(address), bits))


def alone(address: Address) -> Interface:
    """Returns an address with the whole of it as its prefix ("10.1.2.5/32")."""
    return with_prefix(address, address.max_prefixlen)


def as_network(where: Address | Network) -> Network:
    """Returns a network as it is, an address as the network of nothing else."""
    if isinstance(where, IPv4Address):
        return IPv4Network((int(where), where.max_prefixlen))
    return IPv6Network((int(where), where.max_prefixlen)) if isinstance(where, IPv6Address) else where


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
