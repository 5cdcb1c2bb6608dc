"""DHCPv4 messages as bytes (ipam.dhcp.packet), also as scapy reads and writes them."""

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP

from ipam.dhcp.packet import BOOTREPLY, BOOTREQUEST, Malformed, Message, decode, encode

MAC = b"\2\0\0\0\0\1"
COOKIE = b"\x63\x82\x53\x63"
SNAME, COOKIE_AT, OPTIONS = 44, 236, 240
ADDRESSES = st.integers(0, 2**32 - 1).map(IPv4Address)
OPTION_NUMBERS = st.integers(1, 254).filter(lambda number: number != 52)
MESSAGES = st.builds(
    Message,
    op=st.sampled_from((BOOTREQUEST, BOOTREPLY)),
    xid=st.integers(0, 2**32 - 1),
    chaddr=st.binary(min_size=6, max_size=6),
    options=st.dictionaries(OPTION_NUMBERS, st.binary(max_size=700), max_size=8),
    secs=st.integers(0, 0xFFFF),
    broadcast=st.booleans(),
    **dict.fromkeys(("ciaddr", "yiaddr", "siaddr", "giaddr"), ADDRESSES),
)


def message(**values):
    return Message(**{"op": BOOTREPLY, "xid": 7, "chaddr": MAC, "options": {}, **values})


def data(options=b"\xff", file=b"", sname=b""):
    """Returns a reply with the bytes of its three fields for options."""
    return encode(message())[:SNAME] + sname.ljust(64, b"\0") + file.ljust(128, b"\0") + COOKIE + options


def option(number, content):
    return bytes((number, len(content))) + content


@given(MESSAGES)
def test_round_trip(original):
    """An encoded message is decoded to the same, its options in the encoder's order, and scapy reads the same."""
    decoded = decode(encode(original))
    assert decoded == original
    assert list(decoded.options) == sorted(original.options, key=lambda number: number != 53)
    read = BOOTP(encode(original))
    assert (read.op, read.htype, read.hlen, read.hops, read.xid) == (original.op, 1, 6, 0, original.xid)
    assert (read.secs, int(read.flags)) == (original.secs, 0x8000 * original.broadcast)
    for name in ("ciaddr", "yiaddr", "siaddr", "giaddr"):
        assert IPv4Address(getattr(read, name)) == getattr(original, name)
    assert read.chaddr == original.chaddr.ljust(16, b"\0")
    assert (read.sname, read.file) == (bytes(64), bytes(128))


def test_scapy_writes_what_is_decoded():
    """A reply that scapy writes is decoded."""
    listed = [("message-type", "ack"), ("server_id", "192.0.2.1"), ("router", "192.0.2.1", "192.0.2.2"), "end", "pad"]
    raw = BOOTP(op=2, xid=9, yiaddr="192.0.2.9", chaddr=MAC, flags="B") / DHCP(options=listed)
    assert decode(bytes(raw)) == message(
        xid=9,
        yiaddr=IPv4Address("192.0.2.9"),
        broadcast=True,
        options={53: b"\5", 54: b"\xc0\0\2\1", 3: b"\xc0\0\2\1\xc0\0\2\2"},
    )


def test_bytes_of_a_message():
    """The bytes of a message are those of RFC 2131: option 53 first, the end option, 300 bytes in all."""
    encoded = encode(message(op=1, xid=0x01020304, secs=258, broadcast=True, options={12: b"pod", 80: b"", 53: b"\1"}))
    assert encoded[:12] == bytes.fromhex("01010600 01020304 0102 8000")
    assert encoded[OPTIONS:] == (option(53, b"\1") + option(12, b"pod") + option(80, b"") + b"\xff").ljust(60, b"\0")
    assert (encoded[COOKIE_AT:OPTIONS], len(encoded)) == (COOKIE, 300)


def test_values_that_do_not_fit():
    """A content of more than 255 bytes becomes several options; pad and end are not sent; the time has a maximum."""
    content = bytes(range(256)) * 2
    encoded = encode(message(options={61: content, 60: b"x" * 255, 0: b"x", 255: b"z"}))
    parts = (option(61, content[:255]), option(61, content[255:510]), option(61, content[510:]), option(60, b"x" * 255))
    assert encoded[OPTIONS:] == b"".join(parts) + b"\xff"
    assert decode(encode(message(secs=70000))).secs == 65535


PARTS = {
    "no option": ({}, {}),
    "empty": ({"options": b""}, {}),
    "without an end": ({"options": option(1, b"a")}, {1: b"a"}),
    "pads": ({"options": b"\0\0" + option(1, b"a") + b"\0" + option(2, b"") + b"\xff"}, {1: b"a", 2: b""}),
    "after the end": ({"options": option(1, b"a") + b"\xff" + option(2, b"b") + b"\3"}, {1: b"a"}),
    "repeated": ({"options": option(1, b"a") + option(2, b"b") + option(1, b"c")}, {1: b"ac", 2: b"b"}),
    "not overloaded": ({"options": option(1, b"a"), "file": option(2, b"b"), "sname": option(3, b"c")}, {1: b"a"}),
    "file": ({"options": option(52, b"\1") + option(1, b"a"), "file": option(1, b"b"), "sname": b"\3"}, {1: b"ab"}),
    "sname": ({"options": option(52, b"\2") + option(1, b"a"), "file": b"\3", "sname": option(1, b"b")}, {1: b"ab"}),
    "both, file first": (
        {
            "options": option(52, b"\3") + option(1, b"a") + b"\xff",
            "file": option(1, b"b") + b"\xff" + option(4, b"x"),
            "sname": b"\0" + option(1, b"c") + option(5, b""),
        },
        {1: b"abc", 5: b""},
    ),
    "overloaded again": ({"options": option(52, b"\1"), "file": option(52, b"\3"), "sname": option(1, b"b")}, {}),
    "invalid overload in file": ({"options": option(52, b"\1"), "file": option(52, b"xyz")}, {}),
    "file is full": ({"options": option(52, b"\1"), "file": option(1, b"x" * 126)}, {1: b"x" * 126}),
}


@pytest.mark.parametrize("name", PARTS)
def test_options_are_collected(name):
    """Options are collected from their fields, parts of a repeated option in the order of RFC 3396."""
    fields, expected = PARTS[name]
    assert dict(decode(data(**fields)).options) == expected


MALFORMED = {
    "nothing": b"",
    "short": data()[: OPTIONS - 1],
    "cookie": data()[:COOKIE_AT] + b"\x63\x82\x53\x64\xff",
    "op 0": b"\0" + data()[1:],
    "op 3": b"\3" + data()[1:],
    "hlen 16": data()[:2] + b"\x10" + data()[3:],
    "hlen 0": data()[:2] + b"\0" + data()[3:],
    "no length": data(b"\1"),
    "no content": data(b"\1\1"),
    "truncated": data(option(1, b"abc")[:-1]),
    "truncated in file": data(option(52, b"\1"), file=option(1, b"x" * 127)[:128]),
    "truncated in sname": data(option(52, b"\2"), sname=option(1, b"x" * 62) + b"\3"),
    "overload 0": data(option(52, b"\0")),
    "overload 4": data(option(52, b"\4")),
    "empty overload": data(option(52, b"")),
    "two overloads": data(option(52, b"\1") + option(52, b"\2")),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_message_is_refused(name):
    """Each violation of the protocol is Malformed."""
    with pytest.raises(Malformed):
        decode(MALFORMED[name])
