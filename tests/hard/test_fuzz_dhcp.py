"""Hostile DHCP packets: random changes of frames, messages and options, read as the daemon reads them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from random import Random

import pytest

from ipam.dhcp import frame, options, packet
from ipam.dhcp.packet import Malformed, Message
from tests.fuzz import mutation, packets

MAC, SERVER_MAC, SERVER, CLIENT = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2", IPv4Address("192.0.2.1"), IPv4Address("192.0.2.9")
SEARCH = b"\3eng\5apple\3com\0\tmarketing\xc0\4"
TIMES = {51: b"\0\0\x0e\x10", 58: b"\0\0\7\x08", 59: b"\0\0\x0c\x4e"}
NETWORK = {1: b"\xff\xff\xff\0", 3: SERVER.packed, 26: b"\5\xdc", 33: b"\x0a\0\0\0" + SERVER.packed}
NAMES = {6: SERVER.packed * 2, 15: b"example.org", 119: SEARCH, 121: b"\x16\x0a\1\4" + SERVER.packed + bytes(5)}
REPLY = Message(2, 7, MAC, {53: b"\5", 54: SERVER.packed, **TIMES, **NETWORK, **NAMES, 56: b"text"}, yiaddr=CLIENT)
OFFER = Message(2, 7, MAC, {53: b"\2", 54: SERVER.packed, 51: TIMES[51], 1: NETWORK[1], 61: b"x" * 300})
OVERLOADED = packet.encode(OFFER)[:44] + b"\1\4\xff\xff\0\0\xff".ljust(64, b"\0") + bytes((3, 4, *SERVER.packed))
OVERLOADED = OVERLOADED.ljust(236, b"\0") + packet.encode(OFFER)[236:240] + b"\x34\1\3" + packet.encode(OFFER)[240:]
PAYLOADS = (packet.encode(REPLY), packet.encode(OFFER), OVERLOADED)
ROUTER_ADVERTISEMENT = b"\x40\xc0\7\x08" + bytes(8) + b"\3\4\x40\xc0" + bytes(12) + bytes(16)
FRAME6 = (SERVER_MAC, MAC, IPv6Address("fe80::1"), IPv6Address("fe80::2"))
READERS = (
    *(options.message_type, options.server_identifier, options.message_text, options.routers, options.dns),
    *(options.interface_mtu, options.routes, options.classless_routes, options.static_routes),
)


def udp4(payload):
    return frame.build_udp4(SERVER_MAC, MAC, SERVER, CLIENT, 67, 68, payload)


def change(random):
    """Returns a frame: changed itself, or a valid one with a changed message, or with changed options."""
    payload = random.choice(PAYLOADS)
    match random.randrange(6):
        case 0:
            return mutation.mutate_bytes(random, udp4(payload))
        case 1:
            return mutation.mutate_bytes(random, frame.build_udp6(*FRAME6, 547, 546, payload[:100]))
        case 2:
            return mutation.mutate_bytes(random, frame.build_icmp6(*FRAME6, 134, 0, ROUTER_ADVERTISEMENT))
        case 3:
            return udp4(mutation.mutate_bytes(random, payload)[:60_000])
        case 4:
            return udp4(payload[:240] + mutation.mutate_bytes(random, payload[240:])[:60_000])
    sent = dict(REPLY.options)
    for number in random.sample(sorted(sent), 3):
        sent[number] = mutation.mutate_bytes(random, sent[number])[:1_000]
    return udp4(packet.encode(Message(2, 7, MAC, sent)))


def read(data, *, checksum_is_ready):
    """Reads a frame in every way; returns how far the DHCPv4 reading came."""
    for parse in (frame.parse_udp6, frame.parse_icmp6):
        try:
            parse(data, checksum_is_ready=checksum_is_ready)
        except Malformed:
            continue
    try:
        message = packet.decode(frame.parse_udp4(data, checksum_is_ready=checksum_is_ready).payload)
    except Malformed:
        return "malformed"
    assert packet.decode(packet.encode(message)) == message
    for reader in READERS:
        reader(message.options)
    try:
        options.subnet_prefix(message.options)
        options.lease_times(message.options)
    except Malformed:
        return "message without lease"
    return "lease"


@pytest.mark.timeout(7200)
def test_hostile_packets_are_values_or_malformed(nightly):
    """Each changed packet is a value or Malformed, and reading them does not let the memory grow."""

    def read_changed(number):
        random = Random(number)
        return read(change(random), checksum_is_ready=random.random() < 0.5)

    outcomes = packets.run(read_changed, nightly=nightly)
    assert min(outcomes[name] for name in ("malformed", "message without lease", "lease")) > packets.SAMPLE // 50
