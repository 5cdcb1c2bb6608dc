"""Router advertisements: bytes (ipam.dhcp.router_advertisement, also as scapy has them), the client (router_client)."""

from ipaddress import IPv6Address, IPv6Network

import pytest
from scapy.layers import inet6
from scapy.layers.l2 import Ether

from ipam.dhcp.address6 import NO_ADDRESS
from ipam.dhcp.frame import Icmp6, parse_icmp6
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet import Malformed
from ipam.dhcp.router_advertisement import Prefix, RouterAdvertisement, parse, solicitation_frame
from ipam.dhcp.router_client import Event, RouterClient, State, choose_way, merged
from process.values import replace

ROUTER, OTHER, THIRD = (IPv6Address(f"fe80::{number}") for number in (1, 2, 3))
NETWORK = IPv6Network("2001:db8:1::/64")
PREFIX = Prefix(NETWORK, True, True, 7200.0, 3600.0)
MAC, LINK_LOCAL, ALL_NODES = b"\2\0\0\0\0\1", IPv6Address("fe80::ff:fe00:1"), IPv6Address("ff02::1")
HEADER = bytes((64, 0, 7, 8)) + bytes(8)  # router lifetime 0x708 = 1800 s
ADVERTISED = RouterAdvertisement(ROUTER, 0.0, 1800.0, mtu=1400, prefixes=(PREFIX,))


class Search:
    """A router client, the time, and the times of its solicitations."""

    def __init__(self):
        self.client = RouterClient()
        self.now = 0.0
        self.sent = []

    def start(self, **limits):
        self.client.start(self.now, **limits)
        return self._collect(None)

    def resume(self, advertisement=ADVERTISED):
        self.client.resume(advertisement, self.now)
        return self._collect(None)

    def wait(self):
        """Passes the time until the deadline."""
        self.now = max(self.now, self.client.deadline)
        return self._collect(self.client.expire(self.now))

    def wait_for(self, event, limit=60):
        while self.wait() is not event:
            limit -= 1
            assert limit

    def answer(self, advertisement=ADVERTISED, **changes):
        received = replace(advertisement, received_s=self.now, **changes)
        return self._collect(self.client.receive(received, self.now))

    def _collect(self, event):
        if self.client.take_solicitation():
            self.sent.append(self.now)
        return event


@pytest.fixture
def search():
    new = Search()
    new.start()
    return new


@pytest.fixture
def bound(search):
    assert search.answer() is Event.ADVERTISED
    return search


def test_first_answer(search):
    """The first advertisement ends the search; the client stops to listen."""
    assert (search.sent, search.client.state) == ([0.0], State.SEARCHING)
    search.now = 0.5
    assert search.answer() is Event.ADVERTISED
    assert search.client.advertisement == replace(ADVERTISED, received_s=0.5)
    assert search.client.listening_until < search.now
    assert search.answer(mtu=1300) is None
    assert search.client.advertisement.mtu == 1400


def test_silence(search):
    """Solicitations are sent about 0, 1 and 5 s after the start; the search ends 4 s later, and is repeated rarely."""
    search.wait_for(Event.SILENT)
    assert [round(sent) for sent in search.sent] == [0, 1, 5]
    assert 9 <= search.now <= 9.9
    assert (search.client.state, search.client.advertisement) == (State.WAITING, None)
    pauses = []
    for _ in range(9):
        silent = search.now
        search.wait()
        pauses.append(search.now - silent)
        search.wait_for(Event.SILENT)
    assert 54 <= pauses[0] <= 60
    assert 3240 <= pauses[-1] <= 3600
    search.wait()
    assert search.answer() is Event.ADVERTISED


def test_limited_search():
    """The search ends when the ADD's time does."""
    search = Search()
    search.start(give_up_at=3.0)
    search.wait_for(Event.SILENT)
    assert search.now == 3


def test_router_without_lifetime(search):
    """A router that is no gateway is accepted a second later; a gateway is preferred meanwhile."""
    assert search.answer(lifetime_s=0.0) is None
    assert search.wait() is Event.ADVERTISED
    assert (search.now, search.client.advertisement.lifetime_s) == (1, 0)
    again = Search()
    again.start()
    again.answer(lifetime_s=0.0)
    again.now = 0.5
    assert again.answer(router=OTHER) is Event.ADVERTISED
    assert again.client.advertisement == replace(ADVERTISED, received_s=0.5, router=OTHER)


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        ({}, 540, 600),
        ({"lifetime_s": 9000.0, "prefixes": ()}, 1620, 1800),
        ({"lifetime_s": 3.0}, 3, 3),
        ({"lifetime_s": 30.0}, 9, 10),
        ({"prefixes": (replace(PREFIX, valid_s=600.0, preferred_s=300.0),)}, 90, 100),
        ({"prefixes": (replace(PREFIX, valid_s=INFINITE_S, preferred_s=INFINITE_S),)}, 540, 600),
        ({"prefixes": (replace(PREFIX, preferred_s=0.0),)}, 540, 600),
    ],
)
def test_refresh_time(search, changes, least, most):
    """The client acts again after a third of the shortest lifetime, within 4 s and half an hour."""
    search.answer(**changes)
    assert least <= search.client.deadline <= most


def test_refresh(bound):
    """A refresh extends the times by one solicitation and one answer."""
    assert bound.wait() is None
    assert (len(bound.sent), bound.client.state) == (2, State.REFRESHING)
    bound.now += 0.1
    assert bound.answer() is Event.ADVERTISED
    assert bound.client.advertisement == replace(ADVERTISED, received_s=bound.now)
    assert bound.now + 540 <= bound.client.deadline <= bound.now + 600


def test_silent_refresh(bound):
    """Without answers the client tries more and more often; the gateway and the prefix expire at their times."""
    bound.wait_for(Event.ADVERTISED)
    assert 1800 <= bound.now <= 1810
    assert bound.client.advertisement == replace(ADVERTISED, lifetime_s=0.0)
    assert len(bound.sent) > 10
    bound.wait_for(Event.ADVERTISED)
    assert 3600 <= bound.now <= 3610
    assert bound.client.advertisement.prefixes == (replace(PREFIX, preferred_s=0.0),)
    bound.wait_for(Event.ADVERTISED)
    assert 7200 <= bound.now <= 7210
    assert bound.client.advertisement.prefixes == ()
    sent = len(bound.sent)
    while bound.now < 40000:
        assert bound.wait() is None
    assert len(bound.sent) - sent < 90


@pytest.mark.parametrize(
    ("answers", "router"),
    [
        pytest.param([{"router": OTHER}, {}], ROUTER, id="the present router answers last"),
        pytest.param([{"router": OTHER}, {"router": THIRD, "lifetime_s": 0.0}], OTHER, id="it is silent"),
        pytest.param([{"router": OTHER, "lifetime_s": 0.0}], None, id="the other one is no gateway"),
        pytest.param([{"lifetime_s": 0.0}, {"router": OTHER}], OTHER, id="it resigns"),
        pytest.param([{"router": OTHER}, {"lifetime_s": 0.0}], OTHER, id="it resigns after another's answer"),
    ],
)
def test_other_router(bound, answers, router):
    """Another gateway replaces the present one only if that is silent at a refresh, or is no longer a gateway."""
    bound.wait()
    events = [bound.answer(**changes) for changes in answers]
    assert events[0] is None
    while bound.client.state is State.REFRESHING:
        events.append(bound.wait())
    assert bound.client.advertisement.router == (router or ROUTER)
    assert (Event.ADVERTISED in events) is (router is not None)


@pytest.mark.parametrize(("now", "event"), [(10.0, None), (700.0, None), (1900.0, Event.ADVERTISED)])
def test_stored_advertisement(now, event):
    """A stored advertisement is refreshed at its time; if it has expired, that is reported at once."""
    search = Search()
    search.now = now
    search.resume()
    assert search.sent == []
    assert search.wait() is event
    assert search.now == (now if now > 600 else pytest.approx(570, abs=31))
    assert len(search.sent) == 1


def test_missing_prefix_is_not_withdrawn():
    """A prefix that an advertisement does not mention stays until its lifetime ends."""
    after = replace(ADVERTISED, received_s=1000.0, prefixes=())
    assert merged(ADVERTISED, after).prefixes == (replace(PREFIX, valid_s=6200.0, preferred_s=2600.0),)
    assert merged(ADVERTISED, replace(after, received_s=7200.0)).prefixes == ()


@pytest.mark.parametrize(
    ("before_s", "announced_s", "expected_s"),
    [
        (100000, 90000, 90000),
        (100000, 10, 7200),
        (7000, 10, 6900),
        (7000, 6950, 6950),
        (7000, 0, 6900),
        (60, 8000, 8000),
    ],
)
def test_two_hours(before_s, announced_s, expected_s):
    """A short lifetime does not end an address at once (RFC 4862, section 5.5.3)."""
    before = replace(ADVERTISED, prefixes=(replace(PREFIX, valid_s=float(before_s), preferred_s=10.0),))
    announced = replace(PREFIX, valid_s=float(announced_s), preferred_s=0.0)
    after = merged(before, replace(ADVERTISED, received_s=100.0 if before_s > 100 else 1.0, prefixes=(announced,)))
    assert after.prefixes == (replace(announced, valid_s=float(expected_s)),)


def test_prefix_that_is_only_on_link_is_withdrawn_at_once():
    """A lifetime of 0 ends a prefix that is only on the link."""
    before = replace(ADVERTISED, prefixes=(replace(PREFIX, autonomous=False),))
    withdrawn = replace(PREFIX, autonomous=False, valid_s=0.0, preferred_s=0.0)
    assert merged(before, replace(ADVERTISED, received_s=5.0, prefixes=(withdrawn,))).prefixes == ()


def test_choice_of_the_way():
    """The router's flag M chooses for "auto"; without a router it is DHCPv6."""
    managed = replace(ADVERTISED, managed=True)
    cases = ("auto", None), ("auto", managed), ("auto", ADVERTISED), ("dhcp", ADVERTISED), ("slaac", managed)
    assert [choose_way(*case) for case in cases] == ["dhcp", "dhcp", "slaac", "dhcp", "slaac"]


def test_stop(bound):
    """A stopped client has no deadline and ignores advertisements."""
    bound.client.stop()
    assert bound.client.deadline == INFINITE_S
    assert bound.answer() is None


def message(body=HEADER, **changes):
    return replace(Icmp6(MAC, ROUTER, ALL_NODES, 134, 0, body), **changes)


def option(number, content):
    return bytes((number, (len(content) + 2) // 8)) + content


def prefix_option(network="2001:db8:1::", bits=64, flags=0xC0, valid=7200, preferred=3600):
    times = valid.to_bytes(4, "big") + preferred.to_bytes(4, "big") + bytes(4)
    return option(3, bytes((bits, flags)) + times + IPv6Address(network).packed)


def test_advertisement_of_scapy():
    """An advertisement that scapy wrote is read whole."""
    body = (
        inet6.ICMPv6ND_RA(M=1, O=1, routerlifetime=1800)
        / inet6.ICMPv6NDOptSrcLLAddr(lladdr="02:00:00:00:00:02")
        / inet6.ICMPv6NDOptMTU(mtu=1400)
        / inet6.ICMPv6NDOptPrefixInfo(prefix="2001:db8:1::", prefixlen=64, validlifetime=7200, preferredlifetime=3600)
        / inet6.ICMPv6NDOptRDNSS(lifetime=600, dns=["2001:db8::53", "fe80::53", "2001:db8::54"])
        / inet6.ICMPv6NDOptDNSSL(lifetime=600, searchlist=["example.org.", "b.example."])
        / inet6.ICMPv6NDOptRouteInfo(prefix="2001:db8:9::", plen=64)
    )
    packet = Ether(src=MAC) / inet6.IPv6(src="fe80::1", dst="ff02::1", hlim=255) / body
    assert parse(parse_icmp6(bytes(packet)), 5.0) == RouterAdvertisement(
        router=ROUTER,
        received_s=5.0,
        lifetime_s=1800.0,
        managed=True,
        other=True,
        mtu=1400,
        prefixes=(PREFIX,),
        dns_servers=(IPv6Address("2001:db8::53"), IPv6Address("2001:db8::54")),
        search=("example.org", "b.example"),
    )


@pytest.mark.parametrize(("source", "has_mac"), [(LINK_LOCAL, True), (NO_ADDRESS, False)])
def test_solicitation(source, has_mac):
    """A solicitation is read by scapy; it has no MAC address if it has no source address."""
    packet = Ether(solicitation_frame(MAC, source))
    assert packet.dst == "33:33:00:00:00:02"
    assert (packet[inet6.IPv6].src, packet[inet6.IPv6].dst, packet[inet6.IPv6].hlim) == (str(source), "ff02::2", 255)
    assert inet6.ICMPv6ND_RS in packet
    assert (inet6.ICMPv6NDOptSrcLLAddr in packet) is has_mac


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"message_type": 133}, "type 133"),
        ({"code": 1}, "code 1"),
        ({"source_ip": IPv6Address("2001:db8::1")}, "not link-local"),
        ({"body": HEADER[:-1]}, "is truncated"),
        ({"body": HEADER + b"\1"}, "lacks its length"),
        ({"body": HEADER + b"\1\0" + bytes(6)}, "option 1 is empty"),
        ({"body": HEADER + b"\3\4" + bytes(29)}, "option 3 is empty or truncated"),
    ],
)
def test_malformed(changes, reason):
    """A message that is no valid advertisement is malformed."""
    with pytest.raises(Malformed, match=reason):
        parse(message(**changes), 0.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, PREFIX),
        ({"flags": 0x80}, replace(PREFIX, autonomous=False)),
        ({"flags": 0x40}, replace(PREFIX, on_link=False)),
        ({"network": "2001:db8:1::77"}, PREFIX),
        ({"bits": 48}, Prefix(IPv6Network("2001:db8:1::/48"), True, False, 7200.0, 3600.0)),
        ({"valid": 2**32 - 1, "preferred": 2**32 - 1}, Prefix(NETWORK, True, True, INFINITE_S, INFINITE_S)),
        ({"flags": 0}, None),
        ({"bits": 48, "flags": 0x40}, None),
        ({"preferred": 7201}, None),
        *(({"bits": bits}, None) for bits in (0, 129)),
        *(({"network": network, "bits": bits}, None) for network, bits in (("::", 1), ("fe80::", 64), ("fe00::", 7))),
        ({"network": "ff02::"}, None),
    ],
)
def test_prefixes(changes, expected):
    """Prefixes that a host must ignore are left out; only those of 64 bits are for autoconfiguration."""
    advertisement = parse(message(HEADER + prefix_option(**changes)), 5.0)
    assert advertisement.prefixes == ((expected,) if expected else ())


@pytest.mark.parametrize(
    "ignored",
    [
        *(option(5, bytes(4) + b"\4\xff"), option(5, bytes(14)), option(3, bytes(6)), option(200, bytes(6))),
        option(25, bytes(2) + b"\0\0\2\x58"),
        option(25, bytes(6) + IPv6Address("2001:db8::53").packed),
        option(25, bytes(2) + b"\0\0\2\x58" + bytes(24)),
        option(31, bytes(2) + b"\0\0\2\x58" + bytes(8)),
        option(31, bytes(6) + b"\1a\0" + bytes(5)),
        option(31, bytes(2) + b"\0\0\2\x58" + b"\7abcdefg"),
    ],
)
def test_ignored_options(ignored):
    """An option that is malformed, unknown, or whose lifetime is 0 changes nothing."""
    plain = parse(message(HEADER), 0.0)
    assert parse(message(HEADER + ignored), 0.0) == plain
    assert (plain.mtu, plain.dns_servers, plain.search) == (0, (), ())
