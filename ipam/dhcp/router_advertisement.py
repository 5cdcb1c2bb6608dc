"""Router solicitations and advertisements (RFC 4861, RFC 8106): build a frame, parse a message.

One rule: bytes become a RouterAdvertisement or raise Malformed. Prefixes that a host must ignore are left out, as are
options that podwire does not use, among them routes to further networks (RFC 4191).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import IPv6Address, IPv6Network

from ipam.dhcp import domain
from ipam.dhcp.address6 import LINK_LOCAL, NO_ADDRESS, SLAAC_PREFIX_BITS, is_host_address, is_link_local
from ipam.dhcp.frame import Icmp6, build_icmp6
from ipam.dhcp.options import to_seconds
from ipam.dhcp.packet import Malformed
from process.values import dataclass

SOLICITATION, ADVERTISEMENT = 133, 134  # ICMPv6 types
ALL_ROUTERS = IPv6Address("ff02::2")
MTU_MIN = 1280  # RFC 8200, section 5

_ALL_ROUTERS_MAC = bytes.fromhex("333300000002")  # RFC 2464, section 7
_SOURCE_LINK_ADDRESS, _PREFIX, _MTU, _DNS_SERVERS, _DNS_SEARCH = 1, 3, 5, 25, 31  # options
_MANAGED, _OTHER = 0x80, 0x40
_ON_LINK, _AUTONOMOUS = 0x80, 0x40
_HEADER = struct.Struct("!BBHII")  # hop limit, flags, router lifetime, reachable time, retransmission timer
# Prefix length, flags, valid lifetime, preferred lifetime, reserved, prefix; without the option's type and length.
_PREFIX_CONTENT = struct.Struct("!BBIII16s")
_UNIT_BYTES = 8  # of the options' lengths
_LIST_MAX = 16  # prefixes, and name servers


@dataclass(frozen=True)
class Prefix:
    """A prefix on the link (`on_link`), for addresses that hosts form themselves (`autonomous`), or for both.

    Lifetimes are in seconds after the advertisement, INFINITE_S for ever.
    """

    network: IPv6Network
    on_link: bool
    autonomous: bool
    valid_s: float
    preferred_s: float


@dataclass(frozen=True)
class RouterAdvertisement:
    """The advertisement that arrived at `received_s` (CLOCK_BOOTTIME); `router` is the router's link-local address.

    `managed` and `other` are the flags M (addresses by DHCPv6) and O (only other settings). The router can be the
    default gateway for `lifetime_s`, which may be 0. `mtu` is 0 when it is not announced.
    """

    router: IPv6Address
    received_s: float
    lifetime_s: float
    managed: bool = False
    other: bool = False
    mtu: int = 0
    prefixes: tuple[Prefix, ...] = ()
    dns_servers: tuple[IPv6Address, ...] = ()
    search: tuple[str, ...] = ()


def solicitation_frame(mac: bytes, source: IPv6Address) -> bytes:
    """Returns a router solicitation to all routers; `source` is link-local or unspecified.

    A solicitation from the unspecified address must not have the option with the MAC address (RFC 4861, section 4.1);
    routers multicast their answer then.
    """
    option = struct.pack("!BB6s", _SOURCE_LINK_ADDRESS, 1, mac) if source != NO_ADDRESS else b""
    return build_icmp6(mac, _ALL_ROUTERS_MAC, source, ALL_ROUTERS, SOLICITATION, 0, bytes(4) + option)


def parse(message: Icmp6, now: float) -> RouterAdvertisement:
    """Returns the router advertisement in an ICMPv6 message received at `now`; raises Malformed.

    Name servers and domains with a lifetime of 0 are left out; their other lifetimes are ignored, since no runtime
    changes a container's resolv.conf later. So are link-local name servers: an address in resolv.conf needs its
    interface then, which a CNI result does not express.
    """
    if message.message_type != ADVERTISEMENT or message.code != 0:
        raise Malformed(f"the ICMPv6 message has type {message.message_type} and code {message.code}")
    if not is_link_local(message.source_ip):
        raise Malformed("the router's address is not link-local")
    if len(message.body) < _HEADER.size:
        raise Malformed("the router advertisement is truncated")
    _, flags, lifetime_s, _, _ = _HEADER.unpack_from(message.body)
    mtu = 0
    prefixes: dict[IPv6Network, Prefix] = {}
    servers: dict[IPv6Address, None] = {}
    search: dict[str, None] = {}
    for number, content in _options(message.body[_HEADER.size :]):
        if number == _MTU:
            mtu = mtu or _parse_mtu(content)
        elif number == _PREFIX and len(prefixes) < _LIST_MAX:
            prefixes.update((prefix.network, prefix) for prefix in _parse_prefix(content))
        elif number == _DNS_SERVERS and len(servers) < _LIST_MAX:
            servers.update(dict.fromkeys(_parse_dns_servers(content)))
        elif number == _DNS_SEARCH and len(search) < _LIST_MAX:
            search.update(dict.fromkeys(_parse_search(content)))
    return RouterAdvertisement(
        router=message.source_ip,
        received_s=now,
        lifetime_s=float(lifetime_s),
        managed=bool(flags & _MANAGED),
        other=bool(flags & _OTHER),
        mtu=mtu,
        prefixes=tuple(prefixes.values()),
        dns_servers=tuple(servers)[:_LIST_MAX],
        search=tuple(search)[:_LIST_MAX],
    )


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the options without their types and lengths; raises Malformed."""
    position, end = 0, len(data)
    while position < end:
        if position + 2 > end:
            raise Malformed("an option lacks its length")
        number, units = data[position], data[position + 1]
        start, position = position + 2, position + units * _UNIT_BYTES
        if not units or position > end:
            raise Malformed(f"option {number} is empty or truncated")
        yield number, data[start:position]


def _parse_mtu(content: bytes) -> int:
    """Returns the MTU; 0 if the option is malformed, or below the minimum of IPv6."""
    mtu = int.from_bytes(content[2:6], "big")
    return mtu if len(content) == 6 and mtu >= MTU_MIN else 0


def _parse_prefix(content: bytes) -> Iterator[Prefix]:
    """Yields the prefix of an option, unless a host must ignore it (RFC 4861, section 6.3.4; RFC 4862, 5.5.3).

    Prefixes of ::, which have no hosts, are ignored, too: ::/0 would make the whole Internet a part of the link.
    """
    if len(content) != _PREFIX_CONTENT.size:
        return
    bits, flags, valid, preferred, _, packed = _PREFIX_CONTENT.unpack(content)
    if not 0 < bits <= 128 or preferred > valid:
        return
    number = int.from_bytes(packed, "big") >> (128 - bits) << (128 - bits)
    network = IPv6Network((number, bits))
    if not is_host_address(network.network_address) or network.overlaps(LINK_LOCAL):
        return
    autonomous = bool(flags & _AUTONOMOUS) and bits == SLAAC_PREFIX_BITS
    if autonomous or flags & _ON_LINK:
        yield Prefix(network, bool(flags & _ON_LINK), autonomous, to_seconds(valid), to_seconds(preferred))


def _parse_dns_servers(content: bytes) -> tuple[IPv6Address, ...]:
    addresses = content[6:]
    if not _lifetime(content) or not addresses or len(addresses) % 16:
        return ()
    servers = (IPv6Address(addresses[start : start + 16]) for start in range(0, len(addresses), 16))
    return tuple(server for server in servers if is_host_address(server))


def _parse_search(content: bytes) -> tuple[str, ...]:
    """Returns the domains of an option, which is padded with zeros; the last name ends with one, too."""
    names = content[6:].rstrip(b"\0")
    is_terminated = 0 < len(names) < len(content) - 6
    return domain.decode_list(names + b"\0") if is_terminated and _lifetime(content) else ()


def _lifetime(content: bytes) -> int:
    """Returns the lifetime in an option of RFC 8106, 0 if it is truncated."""
    return int.from_bytes(content[2:6], "big") if len(content) >= 6 else 0
