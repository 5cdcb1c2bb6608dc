"""Bytes that dhcp's clients and daemon receive: changed at random as by the fuzzers, and as long as a datagram can be.

One rule: a parser returns a value or raises Malformed, and nothing else.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from random import Random

import pytest

from ipam.dhcp import frame, gob, options, packet, packet6, router_advertisement, rpc_result
from ipam.dhcp.client4 import Timing
from ipam.dhcp.client6 import Identity
from ipam.dhcp.frame import Icmp6
from ipam.dhcp.ipv6_client import Ipv6Client
from ipam.dhcp.packet import BOOTREPLY, Message
from ipam.dhcp.packet6 import Association, LeasedAddress
from ipam.dhcp.rpc import Connection
from tests.fuzz import mutation
from tests.unit.test_dhcp_gob import ARRAY, LIST, MAP, OPAQUE, RECURSIVE, STRANGE, STRANGE_VALUE, message
from tests.unit.test_dhcp_rpc import ALLOCATE, CONNECT, RELEASE, REPLIES

CASES = 300
MALFORMED = (packet.Malformed, gob.MalformedGob)
LIMIT_S = 5.0  # it takes milliseconds; with the square of the size minutes
MAC = b"\2\0\0\0\0\1"
V4, V6, ALL_NODES = IPv4Address("192.0.2.1"), IPv6Address("fe80::1"), IPv6Address("ff02::1")
OPTIONS = {1: b"\xff\xff\xff\0", 3: V4.packed, 15: b"a.b", 33: b"\x0a\0\0\0" + V4.packed, 51: b"\0\0\1\0", 53: b"\5"}
OPTIONS |= {6: V4.packed, 26: b"\5\xdc", 56: b"no", 119: b"\1a\0\1b\xc0\0", 121: b"\x18\x0a\1\2" + V4.packed}
# A router's advertisement with a prefix, an MTU, name servers and search domains.
BODY = b"\x40\x80\7\x08" + bytes(8) + b"\3\4\x40\xc0" + b"\0\0\x1c\x20\0\0\x0e\x10\0\0\0\0" + bytes.fromhex("20010db8")
BODY += bytes(12) + b"\5\1\0\0\0\0\5\xdc" + b"\x19\3\0\0\0\0\2\x58" + V6.packed + b"\x1f\2\0\0\0\0\2\x58\1a\0\1b\0\0\0"
LEASED = Association(b"\1\2\3\4", (LeasedAddress(V6, 100.0, 200.0),), 50.0, 80.0)
MESSAGE6 = packet6.encode(packet6.Message(packet6.REPLY, 1, b"\0\4x", b"\0\3y", (LEASED,), search=("a.b",)))
MESSAGE4 = packet.encode(Message(BOOTREPLY, 7, MAC, OPTIONS, yiaddr=V4))
OVERLOADED = MESSAGE4[:44] + b"\1\4\xff\xff\0\0\xff".ljust(64, b"\0") + b"\3\4\x0a\0\0\1".ljust(128, b"\0")
OVERLOADED += MESSAGE4[236:240] + b"\x34\1\3" + MESSAGE4[240:]
UDP4 = frame.build_udp4(MAC, MAC, V4, V4, 67, 68, MESSAGE4)
UDP6 = frame.build_udp6(MAC, MAC, V6, V6, 547, 546, MESSAGE6)
ICMP6 = frame.build_icmp6(MAC, MAC, V6, V6, 134, 0, BODY)
OPTION_READERS = (
    *(options.message_type, options.server_identifier, options.message_text, options.routers, options.dns),
    *(options.interface_mtu, options.routes),
)


def read_options(sent: Mapping[int, bytes]) -> None:
    """Reads all options; only the mask and the lease time may be Malformed."""
    for read in OPTION_READERS:
        read(sent)
    for read_or_fail in (options.subnet_prefix, options.lease_times):
        with suppress(*MALFORMED):
            read_or_fail(sent)


def read_message4(data: bytes) -> None:
    decoded = packet.decode(data)
    assert packet.decode(packet.encode(decoded)) == decoded
    read_options(decoded.options)


def read_message6(data: bytes) -> None:
    decoded = packet6.decode(data)
    assert packet6.decode(packet6.encode(decoded)) == decoded


def read_frame(data: bytes) -> None:
    for parse in (frame.parse_udp4, frame.parse_udp6, frame.parse_icmp6):
        for is_ready in (True, False):
            with suppress(*MALFORMED):
                parse(data, checksum_is_ready=is_ready)


def read_client_frame(data: bytes) -> None:
    client = Ipv6Client(Identity(b"\0\4x", b"\1\2\3\4"), "auto", Timing())
    client.use(MAC, V6)
    client.start(0.0)
    client.receive(data, 1.0, checksum_is_ready=False)


def read_advertisement(data: bytes) -> None:
    parsed = router_advertisement.parse(Icmp6(MAC, V6, ALL_NODES, 134, 0, data), 0.0)
    assert max(len(parsed.prefixes), len(parsed.search)) <= 16


def read_gob(data: bytes) -> None:
    decoder = gob.Decoder()
    decoder.feed(data)
    while (value := decoder.decode()) is not None:
        with suppress(*MALFORMED):
            rpc_result.from_struct(value)


def answer_calls(data: bytes) -> None:
    connection = Connection()
    for call in connection.receive(CONNECT + data):
        assert connection.reply(call, None)


OTHER_TYPES = STRANGE + MAP + ARRAY + OPAQUE + STRANGE_VALUE
LISTS_OF_LISTS = LIST + RECURSIVE + message("ff82 01 02 01 00 00 00")
PARSERS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "frame": (read_frame, [UDP4, UDP6, ICMP6]),
    "frame of the IPv6 client": (read_client_frame, [UDP6, ICMP6]),
    "DHCPv4 message": (read_message4, [MESSAGE4, OVERLOADED]),
    "DHCPv4 options": (lambda data: read_options(dict.fromkeys(OPTIONS, data)), list(OPTIONS.values())),
    "DHCPv6 message": (read_message6, [MESSAGE6]),
    "router advertisement": (read_advertisement, [BODY]),
    "gob": (read_gob, [ALLOCATE, REPLIES, OTHER_TYPES, LISTS_OF_LISTS]),
    "calls of the daemon": (answer_calls, [ALLOCATE, RELEASE]),
}


@pytest.mark.parametrize("name", PARSERS)
def test_changed_and_truncated_bytes_are_a_value_or_malformed(name):
    """Valid bytes that were changed at random, or cut anywhere, give a value or Malformed, and nothing else."""
    parse, samples = PARSERS[name]
    for sample in samples:
        parse(sample)
        for number in range(CASES):
            with suppress(*MALFORMED):
                parse(mutation.mutate_bytes(Random(number), sample))
        for size in range(len(sample)):
            with suppress(*MALFORMED):
                parse(sample[:size])


# Parts that fill a datagram, with the bytes before them.
EMPTY_OPTIONS = b"".join(bytes((number, 0)) for number in range(1, 52))
SEARCH6 = b"\0\x18\0\6" + b"\1a\0" * 2
DATAGRAMS = {
    "DHCPv4 message": (MESSAGE4[:240], [b"\0", b"\1\0", b"\1\1x", b"\1\xff" + b"x" * 255, EMPTY_OPTIONS]),
    "DHCPv6 message": (b"\7\1\2\3", [b"\0\3\0\x0c" + bytes(12), SEARCH6, b"\xfd\xe8\0\0", b"\0\x0d\0\2\0\0"]),
    "router advertisement": (BODY[:12], [BODY[12:44], b"\x1f\2\0\0\0\0\2\x58\1a\0\1a\0\0\0", b"\1\1" * 4]),
}
OPTION_PARTS = [b"\0", b"\x0a\0\0\1", b"\xc0\0", b"\1a\0", b"\1a", b"\x20\1\2\3\4\1\2\3\4", b"a."]
LONG = [
    *((name, head, part, 65535) for name, (head, parts) in DATAGRAMS.items() for part in parts),
    *(("DHCPv4 options", b"", part, 1 << 14) for part in OPTION_PARTS),  # which only split options can be
]


@pytest.mark.parametrize(
    ("name", "head", "part", "size"), LONG, ids=[f"{case[0]}-{case[2][:8].hex()}" for case in LONG]
)
def test_longest_bytes_are_read_in_milliseconds(name, head, part, size):
    """The longest datagram or option that repeats a part is read in time that does not grow with its square."""
    data = head + part * ((size - len(head)) // len(part) // 4 * 4)
    began = time.process_time()
    with suppress(*MALFORMED):
        PARSERS[name][0](data)
    assert time.process_time() - began < LIMIT_S
