"""Addresses as text: what Go's net package accepts and prints, in both directions.

An address is a typed value once parsed; code below never parses text again.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import NamedTuple

Address = IPv4Address | IPv6Address
Cidr = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network


class _Family(NamedTuple):
    """The classes of an address family, which share the interface used here, and its netmasks by prefix length."""

    width: int
    address: type[Address]
    interface: type[Cidr]
    network: type[Network]
    masks: tuple[Address, ...]


_V4 = _Family(32, IPv4Address, IPv4Interface, IPv4Network, tuple(IPv4Network((0, n)).netmask for n in range(33)))
_V6 = _Family(128, IPv6Address, IPv6Interface, IPv6Network, tuple(IPv6Network((0, n)).netmask for n in range(129)))
_EMBEDDED = range(1 << 16, 1 << 48)  # these may end in an IPv4 address, which libc shows as such
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


def parse_cidr(text: str) -> Cidr:
    """Returns address and prefix of `text` ("10.1.2.5/24"), host bits kept; raises ValueError (Go: net.ParseCIDR)."""
    host, slash, prefix = text.partition("/")
    if not slash or not prefix.isascii() or not prefix.isdigit() or len(prefix) > 3:
        raise ValueError(f"{text!r} is not address/prefix")
    bits = int(prefix)
    address = parse_ip(host)
    if isinstance(address, IPv4Address) and ":" in host:  # a mapped one counts its prefix from the IPv6 form
        bits -= _MAPPED_BITS
    return with_prefix(address, bits)


def with_prefix(address: Address, bits: int) -> Cidr:
    """Returns an address with a prefix, its host bits kept; raises ValueError for a prefix out of range.

    Equivalent to the standard library's constructor without its checks and copies. Networks of one or two addresses and
    invalid prefixes are left to that constructor.
    """
    family, value = _V4 if isinstance(address, IPv4Address) else _V6, int(address)
    if not 0 <= bits < family.width - 1:
        return family.interface((value, bits))
    netmask = family.masks[bits]
    network = object.__new__(family.network)
    shared = {"netmask": netmask, "_prefixlen": bits}
    network.__dict__.update(shared, network_address=family.address(value & int(netmask)))
    interface = object.__new__(family.interface)
    family.address.__init__(interface, value)  # type: ignore[arg-type] # the two are of one family
    interface.__dict__.update(shared, network=network)
    return interface


def format_ip(address: Address | Cidr) -> str:
    """Returns an address as text; equals str(), but converts IPv6 in C, which is faster."""
    if not isinstance(address, IPv6Address) or int(address) in _EMBEDDED:
        return str(address)
    text = inet_ntop(AF_INET6, address.packed)
    return f"{text}/{address.network.prefixlen}" if isinstance(address, IPv6Interface) else text


def host_cidr(address: Address) -> Cidr:
    """Returns an address with a full-length prefix ("10.1.2.5/32")."""
    return with_prefix(address, address.max_prefixlen)


def as_network(where: Address | Network) -> Network:
    """Returns a network unchanged, and an address as the network that holds only this address."""
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
