"""The DHCPv6 client (ipam.dhcp.client6): loss, refusals, forged messages, renewal and expiry, by hand-made messages."""

from __future__ import annotations

from ipaddress import IPv6Address
from itertools import pairwise

import pytest

from ipam.dhcp import packet6
from ipam.dhcp.client4 import Event, Timing
from ipam.dhcp.client6 import Client, Identity, State
from ipam.dhcp.lease import INFINITE
from ipam.dhcp.lease6 import Grant
from ipam.dhcp.packet6 import Association, LeasedAddress, Message, Status
from process.values import replace

DUID, IAID, SERVER, OTHER = b"\0\4" + bytes(16), b"\1\2\3\4", b"\0\3server", b"\0\3other"
ADDRESS, SECOND = IPv6Address("2001:db8::7"), IPv6Address("2001:db8::8")
NAME_SERVER = IPv6Address("2001:db8::53")
GRANT = Grant(ADDRESS, SERVER, 0.0, 50.0, 80.0, 100.0, 200.0)
NO_ADDRESSES, NO_BINDING = Status(packet6.NO_ADDRESSES, "full"), Status(packet6.NO_BINDING)
NOT_ON_LINK, FAILURE = Status(packet6.NOT_ON_LINK), Status(packet6.UNSPECIFIED_FAILURE)

DEFAULT_TIMING = Timing()


class Exchange:
    """A client, the time, and the messages it sent."""

    def __init__(self, *, rapid_commit=False, timing=DEFAULT_TIMING):
        self.client = Client(Identity(DUID, IAID, rapid_commit), timing)
        self.timing = timing
        self.now = 0.0
        self.sent = []

    def start(self):
        self.client.start(self.now, self.now + self.timing.total_s)
        return self._collect(None)

    def resume(self, grant=GRANT, *, same_boot=True):
        self.client.resume(grant, self.now, same_boot=same_boot)
        return self._collect(None)

    def wait(self):
        """Passes the time until the deadline."""
        self.now = self.client.deadline
        return self._collect(self.client.expire(self.now))

    def wait_for(self, event, limit=100):
        while self.wait() is not event:
            limit -= 1
            assert limit

    def answer(self, kind=packet6.REPLY, **changes):
        """Receives a server's answer to the last message."""
        return self._collect(self.client.receive(self.reply(kind, **changes), self.now))

    def reply(self, kind=packet6.REPLY, *, address=ADDRESS, preferred_s=100.0, valid_s=200.0, ia=None, **changes):
        leased = (LeasedAddress(address, preferred_s, valid_s),)
        ia = ia or Association(IAID, leased, 50.0, 80.0)
        message = Message(kind, self.sent[-1].xid, DUID, SERVER, (ia,), dns_servers=(NAME_SERVER,), search=("a.b",))
        return replace(message, **changes)

    def _collect(self, event):
        self.sent += self.client.take_outgoing()
        return event

    @property
    def kinds(self):
        return [message.kind for message in self.sent]


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


def refused(status):
    return {"ia": Association(IAID, status=status)}


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


def test_expired_lease():
    """A stored lease that has expired is lost at once."""
    exchange = Exchange()
    exchange.now = 200.0
    exchange.resume()
    assert exchange.wait() is Event.LOST


def test_lease_of_another_boot():
    """A lease of another boot is confirmed by a server's answer to REBIND, whatever its times are."""
    exchange = Exchange()
    exchange.now = 5000.0
    exchange.resume(same_boot=False)
    assert (exchange.kinds, exchange.sent[0].server_id) == ([packet6.REBIND], b"")
    exchange.wait()
    assert exchange.answer(server_id=OTHER) is Event.GRANTED


def test_unconfirmed_lease():
    """A lease of another boot is lost after ten seconds without an answer."""
    exchange = Exchange()
    exchange.resume(same_boot=False)
    exchange.wait_for(Event.LOST)
    assert exchange.now == 10
    assert exchange.kinds[-1] == packet6.SOLICIT


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
