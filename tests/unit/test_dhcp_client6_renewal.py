"""The DHCPv6 client (ipam.dhcp.client6) maintains a lease: renewal, expiry, another boot, release, decline."""

from __future__ import annotations

import pytest

from ipam.dhcp import packet6
from ipam.dhcp.client4 import Event
from ipam.dhcp.client6 import State
from ipam.dhcp.lease import INFINITE
from ipam.dhcp.packet6 import Association, LeasedAddress
from process.values import replace
from tests.support.dhcp6_exchange import (
    ADDRESS,
    DUID,
    FAILURE,
    GRANT,
    IAID,
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


def test_renewal(bound):
    """RENEW at T1 names the server and extends the lease; the answer of another server is ignored."""
    bound.wait()
    renew = bound.sent[-1]
    assert (renew.kind, renew.server_id) == (packet6.RENEW, SERVER)
    assert renew.associations[0].addresses == (LeasedAddress(ADDRESS),)
    assert bound.answer(server_id=OTHER) is None
    assert bound.answer(valid_s=300.0) is Event.GRANTED
    assert (bound.client.lease.lifetime_s, bound.client.lease.granted_s) == (300.0, bound.now)


def test_rebinding_and_expiry(bound):
    """RENEW is repeated until T2, REBIND without a server until the lease expires; then the client solicits."""
    started = bound.client.lease.granted_s
    while (event := bound.wait()) is None:
        end = started + (80 if bound.sent[-1].kind == packet6.RENEW else 200)
        assert bound.now < end
        assert bound.client.deadline <= end
        assert bound.client.listening_until <= bound.now + 10
    assert (event, bound.now, bound.client.lease) == (Event.LOST, started + 200, None)
    kinds = bound.kinds[2:]
    assert kinds == [*sorted(kinds[:-1]), packet6.SOLICIT]
    assert kinds.count(packet6.RENEW) >= 2
    assert kinds.count(packet6.REBIND) >= 2
    assert all(message.server_id == b"" for message in bound.sent if message.kind == packet6.REBIND)
    assert "expired" in bound.client.reason


def test_rebinding_to_another_server(bound):
    """Any server can extend a lease by its answer to REBIND."""
    while bound.kinds[-1] != packet6.REBIND:
        bound.wait()
    assert bound.answer(server_id=OTHER) is Event.GRANTED
    assert bound.client.lease.server == OTHER


def test_short_lease_is_renewed_despite_loss():
    """A lease of 10 s is requested at least three times before it expires."""
    exchange = Exchange()
    exchange.resume(replace(GRANT, renewal_s=5.0, rebinding_s=8.0, preferred_s=10.0, lifetime_s=10.0))
    exchange.wait_for(Event.LOST)
    assert exchange.now == 10
    assert len(exchange.sent) >= 4


def test_infinite_lease(exchange):
    """A lease without an end has no deadline."""
    exchange.answer(packet6.ADVERTISE, preference=255)
    leased = LeasedAddress(ADDRESS, INFINITE, INFINITE)
    assert exchange.answer(ia=Association(IAID, (leased,), INFINITE, INFINITE)) is Event.GRANTED
    assert exchange.client.deadline == INFINITE


@pytest.mark.parametrize(
    ("renewal_s", "rebinding_s", "preferred_s", "valid_s", "expected"),
    [
        (0.0, 0.0, 100.0, 200.0, (50.0, 80.0)),
        (0.0, 0.0, INFINITE, INFINITE, (INFINITE, INFINITE)),
        (0.0, 0.0, 0.0, 200.0, (100.0, 160.0)),
        (90.0, 0.0, 100.0, 200.0, (50.0, 80.0)),
        (50.0, 300.0, 100.0, 200.0, (50.0, 80.0)),
        (150.0, 200.0, 100.0, 200.0, (150.0, 200.0)),
    ],
)
def test_renewal_times(exchange, renewal_s, rebinding_s, preferred_s, valid_s, expected):
    """T1 and T2 that the server leaves out, or that are not in order, follow from the preferred lifetime."""
    exchange.answer(packet6.ADVERTISE, preference=255)
    leased = LeasedAddress(ADDRESS, preferred_s, valid_s)
    exchange.answer(ia=Association(IAID, (leased,), renewal_s, rebinding_s))
    assert (exchange.client.lease.renewal_s, exchange.client.lease.rebinding_s) == expected


@pytest.mark.parametrize("kind", [packet6.RENEW, packet6.REBIND])
def test_no_binding(bound, kind):
    """A server without the binding is asked for the same address by REQUEST; the lease stays meanwhile."""
    while bound.kinds[-1] != kind:
        bound.wait()
    assert bound.answer(**refused(NO_BINDING)) is None
    request = bound.sent[-1]
    assert (request.kind, request.server_id) == (packet6.REQUEST, SERVER)
    assert request.associations[0].addresses == (LeasedAddress(ADDRESS),)
    assert bound.client.lease is not None
    assert bound.answer(address=SECOND) is Event.GRANTED
    assert bound.client.lease.address == SECOND


@pytest.mark.parametrize("status", [NO_ADDRESSES, NOT_ON_LINK])
def test_no_binding_and_refusal(bound, status):
    """The lease is lost when the server refuses the REQUEST after NoBinding."""
    bound.wait()
    bound.answer(**refused(NO_BINDING))
    assert bound.answer(**refused(status)) is Event.LOST
    assert (bound.client.lease, bound.kinds[-1]) == (None, packet6.SOLICIT)


def test_no_binding_and_silence(bound):
    """The lease is lost at its end, at the latest, when the server does not answer the REQUEST after NoBinding."""
    while bound.kinds[-1] != packet6.REBIND or bound.now < 100:
        bound.wait()
    bound.answer(**refused(NO_BINDING))
    bound.wait_for(Event.LOST)
    assert bound.now <= 201
    assert bound.kinds[2:].count(packet6.REQUEST) <= 8


@pytest.mark.parametrize("changes", [refused(NO_ADDRESSES), refused(FAILURE), {"status": FAILURE}])
def test_failed_renewal_keeps_the_lease(bound, changes):
    """A server that cannot renew now does not end the lease."""
    bound.wait()
    assert bound.answer(**changes) is None
    assert (bound.client.state, bound.client.lease.address) == (State.RENEWING, ADDRESS)


def test_removed_address(bound):
    """An address whose lifetime the server sets to 0 is lost; with another address in the REPLY it is replaced."""
    bound.wait()
    gone, new = LeasedAddress(ADDRESS, 0.0, 0.0), LeasedAddress(SECOND, 100.0, 200.0)
    assert bound.answer(ia=Association(IAID, (gone, new))) is Event.GRANTED
    assert bound.client.lease.address == SECOND
    bound.wait()
    assert bound.answer(address=SECOND, preferred_s=0.0, valid_s=0.0) is Event.LOST


def test_present_address_is_preferred(bound):
    """The present address stays as long as the server leaves it."""
    bound.wait()
    addresses = LeasedAddress(SECOND, 100.0, 200.0), LeasedAddress(ADDRESS, 100.0, 200.0)
    bound.answer(ia=Association(IAID, addresses))
    assert bound.client.lease.address == ADDRESS


def test_lease_of_this_boot():
    """A stored lease of this boot is maintained without a message, by its times."""
    exchange = Exchange()
    exchange.now = 20.0
    exchange.resume()
    assert (exchange.sent, exchange.client.state) == ([], State.BOUND)
    assert 45 <= exchange.client.deadline <= 50


@pytest.mark.parametrize(("now", "kind", "event"), [(60, packet6.RENEW, None), (90, packet6.REBIND, None)])
def test_overdue_lease(now, kind, event):
    """A stored lease whose T1 or T2 has passed is renewed or rebound at once."""
    exchange = Exchange()
    exchange.now = float(now)
    exchange.resume()
    assert exchange.wait() is event
    assert (exchange.now, exchange.kinds) == (now, [kind])


@pytest.mark.parametrize("lifetime_s", [200.0, 0.0])
def test_expired_lease(lifetime_s):
    """A stored lease that has expired, or was lost, is confirmed by a server; without an answer it is lost."""
    for is_answered in (False, True):
        exchange = Exchange()
        exchange.now = 200.0
        exchange.resume(replace(GRANT, lifetime_s=lifetime_s))
        assert (exchange.client.state, exchange.kinds) == (State.CONFIRMING, [packet6.REBIND])
        if is_answered:
            assert exchange.answer() is Event.GRANTED
        else:
            exchange.wait_for(Event.LOST)
            assert 210 <= exchange.now <= 211


def test_lease_of_another_boot():
    """A lease of another boot is confirmed by a server's answer to REBIND, whatever its times are."""
    exchange = Exchange()
    exchange.now = 5000.0
    exchange.resume(same_boot=False)
    assert (exchange.kinds, exchange.sent[0].server_id) == ([packet6.REBIND], b"")
    exchange.wait()
    assert exchange.answer(server_id=OTHER) is Event.GRANTED


def test_unconfirmed_lease_without_binding():
    """A server that does not know the lease of another boot is asked for its address."""
    exchange = Exchange()
    exchange.now = 5000.0
    exchange.resume(same_boot=False)
    exchange.answer(**refused(NO_BINDING))
    assert exchange.kinds == [packet6.REBIND, packet6.REQUEST]
    assert exchange.answer() is Event.GRANTED


def test_release(bound):
    """RELEASE names the server, the client and the address; a client without a lease sends nothing."""
    (message,) = bound.client.release()
    assert (message.kind, message.server_id, message.client_id) == (packet6.RELEASE, SERVER, DUID)
    assert message.associations == (Association(IAID, (LeasedAddress(ADDRESS),)),)
    assert (bound.client.state, bound.client.deadline, bound.client.lease) == (State.STOPPED, INFINITE, None)
    assert bound.client.release() == []


def test_answer_to_a_decline(bound):
    """The answers to DECLINE are ignored."""
    bound.client.decline(bound.now)
    bound.sent += bound.client.take_outgoing()
    assert bound.answer() is None
    assert bound.answer(packet6.ADVERTISE, preference=255) is None
    assert bound.kinds[-1] == packet6.DECLINE


def test_decline(bound):
    """DECLINE names the address; ten seconds later the client solicits again."""
    declined = bound.now
    bound.client.decline(declined)
    assert bound.client.lease is None
    assert bound.wait() is None
    assert bound.now == declined + 10
    assert bound.kinds[-2:] == [packet6.DECLINE, packet6.SOLICIT]
    bound.answer(packet6.ADVERTISE, preference=255, address=SECOND)
    assert bound.answer(address=SECOND) is Event.GRANTED
