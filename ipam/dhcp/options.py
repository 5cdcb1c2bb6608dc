"""DHCPv4 options: their names in configurations, and the values of the options that podwire understands.

One rule: a malformed option is treated like a missing one, so that one mistake of a server does not cost the lease.
Only the subnet mask and the lease time raise Malformed: there is no safe substitute for them.

The functions on received options get the mapping of packet.Message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Interface

from cni.result import DNS, Route
from ipam.dhcp import domain
from ipam.dhcp.packet import MESSAGE_TYPE, Malformed
from process.values import dataclass

# Numbers of options (RFC 2132; RFC 3397: DOMAIN_SEARCH; RFC 3442: CLASSLESS_ROUTES; RFC 3004: USER_CLASS).
SUBNET_MASK, ROUTERS, DNS_SERVERS, HOST_NAME, DOMAIN_NAME, INTERFACE_MTU = 1, 3, 6, 12, 15, 26
STATIC_ROUTES, NTP_SERVERS = 33, 42
REQUESTED_ADDRESS, LEASE_TIME, SERVER_ID, PARAMETER_REQUEST_LIST = 50, 51, 54, 55
MESSAGE, MAX_MESSAGE_SIZE = 56, 57
RENEWAL_TIME, REBINDING_TIME, VENDOR_CLASS, CLIENT_ID, USER_CLASS = 58, 59, 60, 61, 77
DOMAIN_SEARCH, CLASSLESS_ROUTES = 119, 121

# Values of MESSAGE_TYPE.
DISCOVER, OFFER, REQUEST, DECLINE, ACK, NAK, RELEASE = 1, 2, 3, 4, 5, 6, 7

NAMES = {
    # The names of the reference plugin.
    "dhcp-client-identifier": CLIENT_ID,
    "subnet-mask": SUBNET_MASK,
    "routers": ROUTERS,
    "host-name": HOST_NAME,
    "user-class": USER_CLASS,
    "vendor-class-identifier": VENDOR_CLASS,
    # Further names, as in dhcp-options(5).
    "domain-name-servers": DNS_SERVERS,
    "domain-name": DOMAIN_NAME,
    "domain-search": DOMAIN_SEARCH,
    "interface-mtu": INTERFACE_MTU,
    "classless-static-routes": CLASSLESS_ROUTES,
    "static-routes": STATIC_ROUTES,
    "ntp-servers": NTP_SERVERS,
}

INFINITE_S = float("inf")
DEFAULT_LEASE_S = 3600.0  # the reference plugin's, for an ACK without a lease time
SCOPE_LINK = 253  # RT_SCOPE_LINK (linux/rtnetlink.h)
# RFC 2132, section 5.1, has 68, but then no renewal would fit into a packet; each host must accept 576 (RFC 791).
MTU_MIN = 576

INFINITE_FIELD = 0xFFFFFFFF  # a time of a DHCP packet or a router advertisement
_NUMBER_MAX = 255
_MESSAGE_MAX_CHARACTERS = 255
_ESCAPES = {
    "\\": r"\\",
    '"': r"\"",
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
}

Options = Mapping[int, bytes]


@dataclass(frozen=True)
class LeaseTimes:
    """The times of a lease, in seconds after the request, or INFINITE_S; `renewal_s` is T1, `rebinding_s` T2."""

    lifetime_s: float
    renewal_s: float
    rebinding_s: float


def to_seconds(field: int) -> float:
    """Returns a time of a packet; the greatest number is INFINITE_S (RFC 2131, 3.3; RFC 8415, 7.7; RFC 4861, 4.6.2)."""
    return INFINITE_S if field == INFINITE_FIELD else float(field)


def option_number(text: str) -> int:
    """Returns the number of an option in a configuration, a name or a number from 0 to 255.

    Raises ValueError with the reference plugin's text.
    """
    if text in NAMES:
        return NAMES[text]
    problem = "" if text else "invalid syntax"
    number = 0
    for character in text:  # as strconv.ParseUint does: the first problem is reported
        if character not in "0123456789":
            problem = "invalid syntax"
            break
        number = 10 * number + int(character)
        if number > _NUMBER_MAX:
            problem = "value out of range"
            break
    if problem:
        quoted = _quote(text)
        raise ValueError(
            f"Can not parse option {quoted}: Can not parse option: strconv.ParseUint: parsing {quoted}: {problem}"
        )
    return number


def is_host_address(address: IPv4Address) -> bool:
    """Returns whether an address can be that of a host on a network: not unspecified, loopback, multicast, reserved."""
    return not (address.packed[0] in (0, 127) or address.packed[0] >= 224)


def message_type(options: Options) -> int | None:
    """Returns the type of a message (DISCOVER, ...), None if it is missing or malformed."""
    content = options.get(MESSAGE_TYPE, b"")
    return content[0] if len(content) == 1 else None


def server_identifier(options: Options) -> IPv4Address | None:
    """Returns the server's address, None if it is missing or malformed, or if no host can have it."""
    content = options.get(SERVER_ID, b"")
    addresses = _host_addresses(content)
    return addresses[0] if len(content) == 4 and addresses else None


def message_text(options: Options) -> str:
    """Returns the server's message for the operator, shortened, with "?" for what is not printable; "" without one."""
    text = options.get(MESSAGE, b"").rstrip(b"\0")[: 4 * _MESSAGE_MAX_CHARACTERS].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "?" for character in text[:_MESSAGE_MAX_CHARACTERS])


def subnet_prefix(options: Options) -> int | None:
    """Returns the prefix length in the subnet mask, None without a mask; raises Malformed."""
    content = options.get(SUBNET_MASK)
    if content is None:
        return None
    hosts = int.from_bytes(content, "big") ^ 0xFFFFFFFF
    if len(content) != 4 or hosts & (hosts + 1):
        raise Malformed("the subnet mask is not a mask")
    return 32 - hosts.bit_length()


def lease_times(options: Options) -> LeaseTimes:
    """Returns the lease time, T1 and T2; raises Malformed for a lease time of 0 or of the wrong length.

    Without a lease time it is one hour, as for the reference plugin. T1 and T2 that are missing or malformed are half
    and 85 % of the lease time, and both are if they are not in order: 0 < T1 <= T2 <= lease time.
    """
    lifetime_s: float | None = DEFAULT_LEASE_S
    if LEASE_TIME in options:
        lifetime_s = _seconds(options[LEASE_TIME])
    if lifetime_s is None:
        raise Malformed("the lease time is 0 or has not 4 bytes")
    default = LeaseTimes(lifetime_s, lifetime_s * 0.5, lifetime_s * 0.85)
    renewal_s = _seconds(options.get(RENEWAL_TIME, b"")) or default.renewal_s
    rebinding_s = _seconds(options.get(REBINDING_TIME, b"")) or default.rebinding_s
    return LeaseTimes(lifetime_s, renewal_s, rebinding_s) if renewal_s <= rebinding_s <= lifetime_s else default


def routers(options: Options) -> tuple[IPv4Address, ...]:
    """Returns the routers in the server's order; addresses that no host can have are ignored."""
    return _host_addresses(options.get(ROUTERS, b""))


def dns(options: Options) -> DNS:
    """Returns the settings for name resolution in options 6, 15 and 119."""
    return DNS(tuple(map(str, dns_servers(options))), domain_name(options), domain_search(options))


def dns_servers(options: Options) -> tuple[IPv4Address, ...]:
    """Returns the name servers in the server's order; addresses that no host can have are ignored."""
    return _host_addresses(options.get(DNS_SERVERS, b""))


def domain_name(options: Options) -> str:
    """Returns the domain; "" if it is missing or no valid name. Of several names (a frequent mistake) the first."""
    words = options.get(DOMAIN_NAME, b"").rstrip(b"\0").decode("latin-1").split()
    name = words[0].removesuffix(".") if words else ""
    return name if domain.is_valid(name) else ""


def domain_search(options: Options) -> tuple[str, ...]:
    """Returns the search domains (RFC 3397), at most 64; none if one of them is malformed or no valid name."""
    return domain.decode_list(options.get(DOMAIN_SEARCH, b""))


def interface_mtu(options: Options) -> int:
    """Returns the MTU in bytes; 0 if it is missing, malformed or below MTU_MIN."""
    content = options.get(INTERFACE_MTU, b"")
    mtu = int.from_bytes(content, "big") if len(content) == 2 else 0
    return mtu if mtu >= MTU_MIN else 0


def routes(options: Options) -> tuple[Route, ...]:
    """Returns the routes of a lease, without priority: option 121 replaces options 33 and 3 (RFC 3442)."""
    classless = classless_routes(options)
    if classless is not None:
        return classless
    default = tuple(Route(IPv4Interface("0.0.0.0/0"), router) for router in routers(options)[:1])
    return static_routes(options) + default


def classless_routes(options: Options) -> tuple[Route, ...] | None:
    """Returns the routes of option 121; None if it is missing or malformed, also for one malformed route.

    Host bits of a destination are cut. A router 0.0.0.0 stays, with scope link, as the reference plugin returns it.
    A route is left out if no host can have the router's address.
    """
    data = options.get(CLASSLESS_ROUTES, b"")
    try:
        return tuple(_read_classless(data)) if data else None
    except Malformed:
        return None


def static_routes(options: Options) -> tuple[Route, ...]:
    """Returns the routes of option 33 with the masks of their classes, host bits cut; none if it is malformed.

    A route is left out if its destination has no class, or is the default route, which RFC 2132 forbids, and if no host
    can have the router's address.
    """
    content = options.get(STATIC_ROUTES, b"")
    if len(content) % 8:
        return ()
    entries = ((number, IPv4Address(router)) for number, router in struct.iter_unpack("!I4s", content))
    return tuple(
        Route(_destination(number, _class_bits(number)), router)
        for number, router in entries
        if is_host_address(router) and _class_bits(number) and number >> 24
    )


def _class_bits(destination: int) -> int:
    """Returns the prefix length of an address's class A, B or C, 0 for other classes."""
    first = destination >> 24
    return 8 if first < 128 else 16 if first < 192 else 24 if first < 224 else 0


def _read_classless(data: bytes) -> Iterator[Route]:
    """Yields routes: prefix length, the significant bytes of the destination, router (RFC 3442)."""
    position, end = 0, len(data)
    while position < end:
        bits = data[position]
        start = position + 1
        middle = start + (bits + 7) // 8
        position = middle + 4
        if bits > 32 or position > end:
            raise Malformed("a classless route has a wrong prefix length or is truncated")
        destination = _destination(int.from_bytes(data[start:middle].ljust(4, b"\0"), "big"), bits)
        router = IPv4Address(data[middle:position])
        if int(router) == 0:
            yield Route(destination, router, scope=SCOPE_LINK)
        elif is_host_address(router):
            yield Route(destination, router)


def _destination(number: int, bits: int) -> IPv4Interface:
    return IPv4Interface((number >> (32 - bits) << (32 - bits), bits))


def _host_addresses(content: bytes) -> tuple[IPv4Address, ...]:
    """Returns the addresses in an option that a host can have; none if its length is wrong."""
    if len(content) % 4:
        return ()
    addresses = (IPv4Address(content[start : start + 4]) for start in range(0, len(content), 4))
    return tuple(address for address in addresses if is_host_address(address))


def _seconds(content: bytes) -> float | None:
    """Returns a time, None for 0 and for a wrong length; 0xffffffff is infinite (RFC 2131, section 3.3)."""
    seconds = int.from_bytes(content, "big") if len(content) == 4 else 0
    return to_seconds(seconds) if seconds else None


def _quote(text: str) -> str:
    """Returns a text as Go's %q prints it."""
    return f'"{"".join(map(_escape, text))}"'


def _escape(character: str) -> str:
    number = ord(character)
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return f"\\x{number:02x}" if number < 0x80 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
