"""Hostile DHCP packets: random changes of all parsed bytes, and of answers to an IPv6 client in each of its states."""

import gc
import json
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address
from random import Random

import pytest

from ipam.dhcp import frame, lease6, packet6
from ipam.dhcp.address6 import is_host_address
from ipam.dhcp.client4 import Timing
from ipam.dhcp.client6 import Identity
from ipam.dhcp.ipv6_client import Ipv6Client
from ipam.dhcp.packet6 import Association, LeasedAddress, Message, StatusCode
from ipam.dhcp.router_client import MODES
from tests.fuzz import mutation
from tests.unit.test_dhcp_any_bytes import MALFORMED, PARSERS

NIGHTLY, SAMPLE, WARM_UP = 500_000, 10_000, 2_000  # packets
GROWTH_MAX_BYTES = 32 << 10
MAC, SERVER_MAC = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"
LINK_LOCAL, ROUTER, ADDRESS = (IPv6Address(text) for text in ("fe80::ff:fe00:1", "fe80::1", "2001:db8:1::7"))
DUID, IAID, SERVER = b"\0\4" + bytes(16), b"\1\2\3\4", b"\0\3server"
TIMES = (0, 1, 600, 7200, 0xFFFFFFFF)


def run(read: Callable[[int], str], *, nightly: bool) -> Counter[str]:
    """Calls `read` with the number of each packet, other ones each night; returns how often each outcome came."""

    def count(start: int, number: int) -> Counter[str]:
        return Counter(map(read, range(start, start + number)))

    first = int(time.strftime("%Y%m%d")) * 10_000_000 if nightly else 0
    count(first, WARM_UP)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        outcomes = count(first + WARM_UP, SAMPLE)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if nightly:
        outcomes += count(first + WARM_UP + SAMPLE, NIGHTLY - SAMPLE)  # untraced, which is much faster
    print(f"packets from {first}: {dict(outcomes)}, grown by {after - before} bytes")
    assert after - before < GROWTH_MAX_BYTES
    return outcomes


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", PARSERS)
def test_hostile_bytes_are_values_or_malformed(name, nightly):
    """Changed bytes are a value or Malformed, and reading them does not let the memory grow."""
    parse, samples = PARSERS[name]

    def read_changed(number):
        random = Random(number)
        try:
            parse(mutation.mutate_bytes(random, random.choice(samples)))
        except MALFORMED:
            return "malformed"
        return "value"

    assert run(read_changed, nightly=nightly)["value"] > SAMPLE // 50


def router_body(random):
    """Returns a router advertisement with prefixes, an MTU, name servers and a search list."""
    options = []
    for number in range(random.randrange(3)):
        times = random.choice(TIMES), random.choice(TIMES)
        network = IPv6Address(f"2001:db8:{number + 1}::").packed
        options.append(struct.pack("!BBBBIII16s", 3, 4, 64, random.choice((0, 0x40, 0x80, 0xC0)), *times, 0, network))
    options.append(struct.pack("!BBHI", 5, 1, 0, random.choice((0, 1280, 1400, 9000))))
    options.append(struct.pack("!BBHI16s", 25, 3, 0, 600, ADDRESS.packed))
    options.append(struct.pack("!BBHI24s", 31, 4, 0, 600, b"\3eng\7example\3org\0"))
    random.shuffle(options)
    header = struct.pack("!BBHII", 64, random.choice((0, 0x40, 0x80, 0xC0)), random.choice((0, 5, 1800)), 0, 0)
    return header + b"".join(options)


def advertisement(random, body):
    return frame.build_icmp6(SERVER_MAC, MAC, ROUTER, random.choice((LINK_LOCAL, IPv6Address("ff02::1"))), 134, 0, body)


def reply(random, request):
    """Returns a server's answer to the last message of a client, or to none."""
    preferred_s, valid_s, renewal_s, rebinding_s = (float(random.choice(TIMES)) for _ in range(4))
    leased = LeasedAddress(random.choice((ADDRESS, ADDRESS + 1, IPv6Address("ff02::1"))), preferred_s, valid_s)
    status = StatusCode(random.choice((0, 0, 0, 0, 1, 2, 3, 4, 5)), "text")
    association = Association(IAID, (leased,), renewal_s, rebinding_s, status)
    kind = random.choice((packet6.ADVERTISE, packet6.REPLY, packet6.REPLY))
    rest = {"dns_servers": (ADDRESS,), "search": ("example.org",), "rapid_commit": random.random() < 0.5}
    return Message(kind, request.xid if request else 1, DUID, SERVER, (association,), preference=255, **rest)


def flip(random, data):
    """Returns data with one to three other bytes, which keeps most lengths."""
    changed = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        changed[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0xFF, random.randrange(256)))
    return bytes(changed)


def change(random, request):
    """Returns a frame: valid, or with a changed message."""
    body, message = router_body(random), packet6.encode(reply(random, request))
    alter = random.choice((mutation.mutate_bytes, flip, flip, lambda _, data: data))
    if random.random() < 0.5:
        return advertisement(random, alter(random, body)[:60_000])
    return frame.build_udp6(SERVER_MAC, MAC, ROUTER, LINK_LOCAL, 547, 546, alter(random, message)[:60_000])


class Campaign:
    """A client that gets changed frames; now and then another one begins."""

    def begin(self, random):
        self.client = Ipv6Client(Identity(DUID, IAID), random.choice(MODES), Timing())
        self.client.use(MAC, LINK_LOCAL)
        self.now, self.request = 100.0, None
        self.client.start(self.now)
        self.collect()

    def collect(self):
        """Reads what the client sends."""
        for content in self.client.take_outgoing():
            if content[20] == 17:
                self.request = packet6.decode(frame.parse_udp6(content).payload)

    def read(self, number):
        """Passes a changed frame to the client; returns what the client made of it."""
        random = Random(number)
        if number % 20 == 0:
            self.begin(random)
        elif random.random() < 0.6:
            self.now = min(max(self.now, self.client.deadline), 1e9)
            self.client.expire(self.now)
            self.collect()
        try:
            event = self.client.receive(change(random, self.request), self.now, checksum_is_ready=random.random() < 0.5)
        except MALFORMED:
            return "malformed"
        self.collect()
        if self.client.lease is not None:
            self.check(self.client.lease)
        return event.value if event else "ignored"

    def check(self, lease):
        """A lease is a host's address, with times that are in order, and its file is read as it was written."""
        assert is_host_address(lease.address.ip)
        assert lease.lifetime_s > 0
        assert lease.mtu == 0 or lease.mtu >= 1280
        if lease.grant is not None:
            assert lease.grant.renewal_s <= lease.grant.rebinding_s
        written = json.loads(json.dumps(lease6.to_json(lease)))
        assert lease6.from_json(written).configuration == lease.configuration


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_hostile_packets_of_ipv6(nightly):
    """Each changed packet is Malformed, ignored or a usable lease, and the memory does not grow."""
    outcomes = run(Campaign().read, nightly=nightly)
    assert min(outcomes[name] for name in ("malformed", "ignored", "granted")) > SAMPLE // 50
    assert outcomes["lost"] > 0
