"""The DHCPv6 client (ipam.dhcp.client6) acquires a lease: loss, refusals, forged messages, by hand-made messages."""

from __future__ import annotations

from ipaddress import IPv6Address
from itertools import pairwise

import pytest

from ipam.dhcp import packet6
from ipam.dhcp.client4 import Event, Timing
from ipam.dhcp.client6 import State
from ipam.dhcp.lease import INFINITE
from ipam.dhcp.lease6 import Grant
from ipam.dhcp.packet6 import Association, LeasedAddress
from tests.support.dhcp6_exchange import (
    ADDRESS,
    DUID,
    FAILURE,
    IAID,
    NAME_SERVER,
    NO_ADDRESSES,
    NO_BINDING,
    NOT_ON_LINK,
    OTHER,
    SECOND,
    SERVER,
    Exchange,
    refused,
)


@pytest.fixture
def exchange():
    new = Exchange()
    new.start()
    return new


@pytest.fixture
def bound(exchange):
    """An exchange with a lease of 200 s, granted at about 0."""
    exchange.answer(packet6.ADVERTISE, preference=255)
    assert exchange.answer() is Event.GRANTED
    return exchange


def test_four_messages(exchange):
    """SOLICIT, ADVERTISE, REQUEST and REPLY give a lease, whose time counts from the REQUEST."""
    exchange.now = 0.2
    assert exchange.answer(packet6.ADVERTISE) is None
    assert exchange.wait() is None
    requested = exchange.now
    assert requested == pytest.approx(0.5)
    exchange.now += 0.1
    assert exchange.answer() is Event.GRANTED
    solicit, request = exchange.sent
    assert (solicit.kind, solicit.server_id, solicit.associations) == (packet6.SOLICIT, b"", (Association(IAID),))
    assert solicit.requested == (23, 24, 82)
    assert (request.kind, request.server_id, request.client_id) == (packet6.REQUEST, SERVER, DUID)
    assert request.associations == (Association(IAID, (LeasedAddress(ADDRESS),)),)
    assert request.xid != solicit.xid
    lease = Grant(ADDRESS, SERVER, requested, 50.0, 80.0, 100.0, 200.0, (NAME_SERVER,), ("a.b",))
    assert (exchange.client.lease, exchange.client.state) == (lease, State.BOUND)
    assert exchange.client.listening_until < exchange.now
    assert requested + 45 <= exchange.client.deadline <= requested + 50


def test_rapid_commit():
    """A REPLY with rapid commit to a SOLICIT with rapid commit gives a lease; without the option it is ignored."""
    exchange = Exchange(rapid_commit=True)
    exchange.start()
    assert exchange.sent[0].rapid_commit
    assert exchange.answer() is None
    assert exchange.answer(rapid_commit=True) is Event.GRANTED
    assert exchange.kinds == [packet6.SOLICIT]


def test_unrequested_rapid_commit(exchange):
    """A client that does not want rapid commit ignores a REPLY to its SOLICIT."""
    assert exchange.answer(rapid_commit=True) is None
    assert exchange.client.state is State.SOLICITING


def test_best_server(exchange):
    """The client requests from the server with the highest preference among those that answer in time."""
    exchange.answer(packet6.ADVERTISE, preference=3)
    exchange.answer(packet6.ADVERTISE, preference=9, server_id=OTHER, address=SECOND)
    exchange.answer(packet6.ADVERTISE, preference=9)
    exchange.wait()
    assert exchange.sent[-1].server_id == OTHER
    assert exchange.sent[-1].associations[0].addresses[0].address == SECOND


def test_lost_solicits(exchange):
    """SOLICIT is repeated after 1, 2, 4, ... seconds, more than 1 at first, until the total time has passed."""
    times = [0.0]
    while exchange.wait() is None:
        times.append(exchange.now)
    pauses = [after - before for before, after in pairwise(times)]
    assert 1 <= pauses[0] <= 1.1
    assert all(1.9 * first <= second <= 2.1 * first for first, second in pairwise(pauses[:6]))
    assert max(pauses) <= 62 * 1.1
    assert (exchange.now, exchange.client.state, exchange.client.deadline) == (208, State.STOPPED, INFINITE)
    assert exchange.client.reason == "no DHCPv6 server answered"
    assert {message.xid for message in exchange.sent} == {exchange.sent[0].xid}
    assert [message.elapsed_s for message in exchange.sent] == times


def test_late_advertise(exchange):
    """After the first timeout the first ADVERTISE is accepted at once."""
    exchange.wait()
    exchange.answer(packet6.ADVERTISE)
    assert exchange.kinds == [packet6.SOLICIT, packet6.SOLICIT, packet6.REQUEST]


def test_lost_requests(exchange):
    """REQUEST is sent ten times; then the client solicits again."""
    exchange.answer(packet6.ADVERTISE, preference=255)
    while exchange.kinds[-1] == packet6.REQUEST:
        exchange.wait()
    assert exchange.kinds == [packet6.SOLICIT] + [packet6.REQUEST] * 10 + [packet6.SOLICIT]


@pytest.mark.parametrize(
    "changes",
    [
        {"xid": 1 << 25},
        {"client_id": b"\0\4other"},
        {"client_id": b""},
        {"server_id": OTHER},
        {"server_id": b""},
        {"kind": packet6.ADVERTISE},
        {"kind": packet6.REQUEST},
        {"associations": ()},
        {"associations": (Association(b"abcd", (LeasedAddress(ADDRESS, 1.0, 1.0),)),)},
        {"ia": Association(IAID)},
        {"ia": Association(IAID, (LeasedAddress(ADDRESS, 1.0, 1.0),), 9.0, 8.0)},
        {"ia": Association(IAID, (LeasedAddress(ADDRESS, 1.0, 1.0, NO_ADDRESSES),))},
        {"valid_s": 0.0, "preferred_s": 0.0},
        {"valid_s": 10.0, "preferred_s": 11.0},
        {"address": IPv6Address("fe80::1")},
        {"address": IPv6Address("ff02::1")},
        {"address": IPv6Address("::1")},
        {"status": FAILURE},
        refused(NO_BINDING),
    ],
)
def test_ignored_replies(exchange, changes):
    """A REPLY that is forged or unusable changes nothing; the right one still counts."""
    exchange.answer(packet6.ADVERTISE, preference=255)
    deadline = exchange.client.deadline
    assert exchange.answer(**changes) is None
    assert (exchange.client.state, exchange.client.deadline, exchange.client.lease) == (
        State.REQUESTING,
        deadline,
        None,
    )
    assert exchange.answer() is Event.GRANTED


def test_late_reply(bound):
    """A bound or stopped client ignores all messages."""
    assert bound.answer() is None
    bound.client.release()
    assert bound.answer() is None


@pytest.mark.parametrize("kind", [packet6.ADVERTISE, packet6.REPLY])
@pytest.mark.parametrize("change", ["status", "ia"])
def test_no_addresses(exchange, kind, change):
    """A server without addresses is not flooded, and the error repeats its words."""
    if kind == packet6.REPLY:
        exchange.answer(packet6.ADVERTISE, preference=255)
    assert exchange.answer(kind, **({"status": NO_ADDRESSES} if change == "status" else refused(NO_ADDRESSES))) is None
    sent = len(exchange.sent)
    assert exchange.now < exchange.client.deadline
    exchange.wait()
    assert exchange.kinds[sent:] == [packet6.SOLICIT]
    exchange.wait_for(Event.FAILED)
    assert len(exchange.sent) < 12
    assert exchange.client.reason == "the DHCPv6 server refused it, NoAddrsAvail: full"


def test_refused_request_then_another_server(exchange):
    """After a refused REQUEST the client accepts another server's offer."""
    exchange.answer(packet6.ADVERTISE, preference=255)
    exchange.answer(status=NOT_ON_LINK)
    exchange.wait()
    exchange.answer(packet6.ADVERTISE, preference=255, server_id=OTHER)
    assert exchange.answer(server_id=OTHER) is Event.GRANTED


@pytest.mark.parametrize(("announced", "longest"), [(60, 60), (59, 3600), (86401, 3600), (7200, 7200)])
def test_sol_max_rt(announced, longest):
    """The server's SOL_MAX_RT limits the pauses between SOLICITs, if it is in its range."""
    exchange = Exchange(timing=Timing(retry_max_s=3600.0, total_s=1e6))
    exchange.start()
    exchange.answer(packet6.ADVERTISE, sol_max_rt_s=announced, **refused(NO_ADDRESSES))
    for _ in range(20):
        exchange.wait()
    before = exchange.now
    exchange.wait()
    assert longest <= exchange.now - before <= longest * 1.1


def test_transactions_differ():
    """Each exchange has another transaction ID, of at most 24 bits."""
    xids = set()
    for _ in range(20):
        exchange = Exchange()
        exchange.start()
        xids.add(exchange.sent[0].xid)
    assert len(xids) > 15
    assert max(xids) < 1 << 24


def test_expire_before_the_deadline(exchange):
    """Nothing happens before the deadline."""
    assert exchange.client.expire(exchange.client.deadline - 0.01) is None
    assert exchange.client.take_outgoing() == []
