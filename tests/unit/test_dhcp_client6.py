"""The DHCPv6 client (ipam.dhcp.client6): it acquires and maintains a lease, by hand-made answers of servers."""

from ipaddress import IPv6Address
from itertools import pairwise

import pytest

from ipam.dhcp import packet6
from ipam.dhcp.client4 import Event, Timing
from ipam.dhcp.client6 import Client, Identity, State
from ipam.dhcp.lease6 import Grant
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet6 import Association, LeasedAddress, Message, StatusCode
from process.values import replace

DUID, IAID, SERVER, OTHER = b"\0\4" + bytes(16), b"\1\2\3\4", b"\0\3server", b"\0\3other"
ADDRESS, SECOND, NAME_SERVER = (IPv6Address(f"2001:db8::{part}") for part in ("7", "8", "53"))
GRANT = Grant(ADDRESS, SERVER, 0.0, 50.0, 80.0, 100.0, 200.0)
SOLICIT, ADVERTISE, REQUEST, REPLY = packet6.SOLICIT, packet6.ADVERTISE, packet6.REQUEST, packet6.REPLY
RENEW, REBIND = packet6.RENEW, packet6.REBIND
NO_ADDRESSES, NO_BINDING = StatusCode(packet6.NO_ADDRESSES, "full"), StatusCode(packet6.NO_BINDING)
NOT_ON_LINK, FAILURE = StatusCode(packet6.NOT_ON_LINK), StatusCode(packet6.UNSPECIFIED_FAILURE)


class Exchange:
    """A client, the time, and the messages it sent."""

    def __init__(self, *, rapid_commit=False, total_s=208.0, retry_max_s=62.0, now=0.0):
        timing = Timing(retry_max_s=retry_max_s, total_s=total_s)
        self.client = Client(Identity(DUID, IAID, rapid_commit), timing)
        self.total_s, self.now, self.sent = total_s, now, []

    def start(self):
        self.client.start(self.now, self.now + self.total_s)
        self._collect(None)
        return self

    def resume(self, grant=GRANT, *, same_boot=True):
        self.client.resume(grant, self.now, same_boot=same_boot)
        self._collect(None)
        return self

    def wait(self):
        """Passes the time until the deadline."""
        self.now = self.client.deadline
        return self._collect(self.client.expire(self.now))

    def wait_for(self, event, limit=100):
        while self.wait() is not event:
            limit -= 1
            assert limit

    def wait_until_sent(self, kind):
        while self.kinds[-1] != kind:
            self.wait()

    def offer(self, **changes):
        """Receives an offer that the client accepts at once."""
        return self.answer(ADVERTISE, preference=255, **changes)

    def answer(self, kind=REPLY, *, address=ADDRESS, preferred_s=100.0, valid_s=200.0, ia=None, **changes):
        """Receives a server's answer to the last message."""
        ia = ia or Association(IAID, (LeasedAddress(address, preferred_s, valid_s),), 50.0, 80.0)
        message = Message(kind, self.sent[-1].xid, DUID, SERVER, (ia,), dns_servers=(NAME_SERVER,), search=("a.b",))
        return self._collect(self.client.receive(replace(message, **changes), self.now))

    def _collect(self, event):
        self.sent += self.client.take_outgoing()
        return event

    @property
    def kinds(self):
        return [message.kind for message in self.sent]


def refused(status):
    return {"ia": Association(IAID, status=status)}


def leasing(*addresses, renewal_s=0.0, rebinding_s=0.0):
    return Association(IAID, tuple(LeasedAddress(*address) for address in addresses), renewal_s, rebinding_s)


@pytest.fixture
def exchange():
    return Exchange().start()


@pytest.fixture
def requesting(exchange):
    """An exchange that has sent REQUEST."""
    exchange.offer()
    return exchange


@pytest.fixture
def bound(requesting):
    """An exchange with a lease of 200 s, granted at about 0."""
    assert requesting.answer() is Event.GRANTED
    return requesting


def test_four_messages(exchange):
    """SOLICIT, ADVERTISE, REQUEST and REPLY give a lease, whose time counts from the REQUEST."""
    exchange.now = 0.2
    assert exchange.answer(ADVERTISE) is None
    assert exchange.wait() is None
    requested = exchange.now
    assert requested == pytest.approx(0.5)
    exchange.now += 0.1
    assert exchange.answer() is Event.GRANTED
    solicit, request = exchange.sent
    assert (solicit.kind, solicit.server_id, solicit.associations) == (SOLICIT, b"", (Association(IAID),))
    assert solicit.requested == (23, 24, 82)
    assert (request.kind, request.server_id, request.client_id) == (REQUEST, SERVER, DUID)
    assert request.associations == (leasing((ADDRESS,)),)
    assert request.xid != solicit.xid
    lease = Grant(ADDRESS, SERVER, requested, 50.0, 80.0, 100.0, 200.0, (NAME_SERVER,), ("a.b",))
    assert (exchange.client.lease, exchange.client.state) == (lease, State.BOUND)
    assert exchange.client.listening_until < exchange.now
    assert requested + 45 <= exchange.client.deadline <= requested + 50


@pytest.mark.parametrize(("is_requested", "is_confirmed"), [(True, True), (True, False), (False, True)])
def test_rapid_commit(is_requested, is_confirmed):
    """A REPLY to a SOLICIT gives a lease if both messages have the option for rapid commit, and else is ignored."""
    exchange = Exchange(rapid_commit=is_requested).start()
    assert exchange.sent[0].rapid_commit is is_requested
    is_granted = exchange.answer(rapid_commit=is_confirmed) is Event.GRANTED
    assert is_granted is (exchange.client.state is State.BOUND) is (is_requested and is_confirmed)
    assert exchange.kinds == [SOLICIT]


def test_best_server(exchange):
    """The client requests from the server with the highest preference among those that answer in time."""
    exchange.answer(ADVERTISE, preference=3)
    exchange.answer(ADVERTISE, preference=9, server_id=OTHER, address=SECOND)
    exchange.answer(ADVERTISE, preference=9)
    exchange.wait()
    assert exchange.sent[-1].server_id == OTHER
    assert exchange.sent[-1].associations[0].addresses[0].address == SECOND


def test_lost_solicits(exchange):
    """SOLICIT is repeated after 1, 2, 4, ... seconds, more than 1 at first, until the total time has passed."""
    times = [0.0]
    assert exchange.client.expire(exchange.client.deadline - 0.01) is None
    while exchange.wait() is None:
        times.append(exchange.now)
    pauses = [after - before for before, after in pairwise(times)]
    assert 1 <= pauses[0] <= 1.1
    assert all(1.9 * first <= second <= 2.1 * first for first, second in pairwise(pauses[:6]))
    assert max(pauses) <= 62 * 1.1
    assert (exchange.now, exchange.client.state, exchange.client.deadline) == (208, State.STOPPED, INFINITE_S)
    assert exchange.client.reason == "no DHCPv6 server answered"
    assert {message.xid for message in exchange.sent} == {exchange.sent[0].xid}
    assert [message.elapsed_s for message in exchange.sent] == times


def test_lost_requests(exchange):
    """After the first timeout the first ADVERTISE is accepted at once; REQUEST is sent ten times, then SOLICIT."""
    exchange.wait()
    exchange.answer(ADVERTISE)
    exchange.wait_until_sent(SOLICIT)
    assert exchange.kinds == [SOLICIT, SOLICIT] + [REQUEST] * 10 + [SOLICIT]


@pytest.mark.parametrize(
    "changes",
    [
        *({"xid": 1 << 25}, {"client_id": b"\0\4other"}, {"client_id": b""}, {"server_id": OTHER}, {"server_id": b""}),
        *({"kind": ADVERTISE}, {"kind": REQUEST}, {"associations": ()}, {"ia": Association(IAID)}),
        {"associations": (Association(b"abcd", (LeasedAddress(ADDRESS, 1.0, 1.0),)),)},
        {"ia": leasing((ADDRESS, 1.0, 1.0), renewal_s=9.0, rebinding_s=8.0)},
        {"ia": leasing((ADDRESS, 1.0, 1.0, NO_ADDRESSES))},
        *({"valid_s": 0.0, "preferred_s": 0.0}, {"valid_s": 10.0, "preferred_s": 11.0}),
        *({"address": IPv6Address(address)} for address in ("fe80::1", "ff02::1", "::1")),
        *({"status": FAILURE}, refused(NO_BINDING)),
    ],
)
def test_ignored_replies(requesting, changes):
    """A REPLY that is forged or unusable changes nothing; the right one still counts."""
    client = requesting.client
    before = State.REQUESTING, client.deadline, None
    assert requesting.answer(**changes) is None
    assert (client.state, client.deadline, client.lease) == before
    assert requesting.answer() is Event.GRANTED


@pytest.mark.parametrize("kind", [ADVERTISE, REPLY])
@pytest.mark.parametrize("changes", [{"status": NO_ADDRESSES}, refused(NO_ADDRESSES)], ids=["message", "association"])
def test_no_addresses(exchange, kind, changes):
    """A server without addresses is not flooded, and the error repeats its words."""
    if kind == REPLY:
        exchange.offer()
    assert exchange.answer(kind, **changes) is None
    sent = len(exchange.sent)
    exchange.wait()
    assert exchange.now > 0
    assert exchange.kinds[sent:] == [SOLICIT]
    exchange.wait_for(Event.FAILED)
    assert len(exchange.sent) < 12
    assert exchange.client.reason == "the DHCPv6 server refused it, NoAddrsAvail: full"


def test_refused_request_then_another_server(requesting):
    """After a refused REQUEST the client accepts another server's offer."""
    requesting.answer(status=NOT_ON_LINK)
    requesting.wait()
    requesting.offer(server_id=OTHER)
    assert requesting.answer(server_id=OTHER) is Event.GRANTED


@pytest.mark.parametrize(("announced", "longest"), [(60, 60), (59, 3600), (86401, 3600), (7200, 7200)])
def test_sol_max_rt(announced, longest):
    """The server's SOL_MAX_RT limits the pauses between SOLICITs, if it is in its range."""
    exchange = Exchange(retry_max_s=3600.0, total_s=1e6).start()
    exchange.answer(ADVERTISE, sol_max_rt_s=announced, **refused(NO_ADDRESSES))
    for _ in range(20):
        exchange.wait()
    before = exchange.now
    exchange.wait()
    assert longest <= exchange.now - before <= longest * 1.1


def test_transactions_differ():
    """Each exchange has another transaction ID, of at most 24 bits."""
    xids = {Exchange().start().sent[0].xid for _ in range(20)}
    assert len(xids) > 15
    assert max(xids) < 1 << 24


def test_renewal(bound):
    """RENEW at T1 names the server and extends the lease; any server can do so by its answer to REBIND."""
    bound.wait()
    renew = bound.sent[-1]
    assert (renew.kind, renew.server_id) == (RENEW, SERVER)
    assert renew.associations[0].addresses == (LeasedAddress(ADDRESS),)
    assert bound.answer(server_id=OTHER) is None
    assert bound.answer(valid_s=300.0) is Event.GRANTED
    assert (bound.client.lease.lifetime_s, bound.client.lease.granted_s) == (300.0, bound.now)
    bound.wait_until_sent(REBIND)
    assert bound.answer(server_id=OTHER) is Event.GRANTED
    assert bound.client.lease.server == OTHER


def test_rebinding_and_expiry(bound):
    """RENEW is repeated until T2, REBIND without a server until the lease expires; then the client solicits."""
    started = bound.client.lease.granted_s
    while (event := bound.wait()) is None:
        end = started + (80 if bound.sent[-1].kind == RENEW else 200)
        assert bound.now < end
        assert bound.client.deadline <= end
        assert bound.client.listening_until <= bound.now + 10
    assert (event, bound.now, bound.client.lease) == (Event.LOST, started + 200, None)
    kinds = bound.kinds[2:]
    assert kinds == [*sorted(kinds[:-1]), SOLICIT]
    assert min(kinds.count(RENEW), kinds.count(REBIND)) >= 2
    assert all(message.server_id == b"" for message in bound.sent if message.kind == REBIND)
    assert "expired" in bound.client.reason


def test_short_lease_is_renewed_despite_loss():
    """A lease of 10 s is requested at least three times before it expires."""
    short = replace(GRANT, renewal_s=5.0, rebinding_s=8.0, preferred_s=10.0, lifetime_s=10.0)
    exchange = Exchange().resume(short)
    exchange.wait_for(Event.LOST)
    assert exchange.now == 10
    assert len(exchange.sent) >= 4


@pytest.mark.parametrize(
    ("renewal_s", "rebinding_s", "preferred_s", "valid_s", "expected"),
    [
        (0.0, 0.0, 100.0, 200.0, (50.0, 80.0)),
        (0.0, 0.0, INFINITE_S, INFINITE_S, (INFINITE_S, INFINITE_S)),
        (0.0, 0.0, 0.0, 200.0, (100.0, 160.0)),
        (90.0, 0.0, 100.0, 200.0, (50.0, 80.0)),
        (50.0, 300.0, 100.0, 200.0, (50.0, 80.0)),
        (150.0, 200.0, 100.0, 200.0, (150.0, 200.0)),
    ],
)
def test_renewal_times(requesting, renewal_s, rebinding_s, preferred_s, valid_s, expected):
    """T1 and T2 that the server leaves out, or that are not in order, follow from the preferred lifetime."""
    requesting.answer(ia=leasing((ADDRESS, preferred_s, valid_s), renewal_s=renewal_s, rebinding_s=rebinding_s))
    assert (requesting.client.lease.renewal_s, requesting.client.lease.rebinding_s) == expected
    assert (requesting.client.deadline == INFINITE_S) is (valid_s == INFINITE_S)


@pytest.mark.parametrize("kind", [RENEW, REBIND])
def test_no_binding(bound, kind):
    """A server without the binding is asked for the same address by REQUEST; the lease stays meanwhile."""
    bound.wait_until_sent(kind)
    assert bound.answer(**refused(NO_BINDING)) is None
    request = bound.sent[-1]
    assert (request.kind, request.server_id) == (REQUEST, SERVER)
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
    assert (bound.client.lease, bound.kinds[-1]) == (None, SOLICIT)


def test_no_binding_and_silence(bound):
    """The lease is lost at its end, at the latest, when the server does not answer the REQUEST after NoBinding."""
    while bound.kinds[-1] != REBIND or bound.now < 100:
        bound.wait()
    bound.answer(**refused(NO_BINDING))
    bound.wait_for(Event.LOST)
    assert bound.now <= 201
    assert bound.kinds[2:].count(REQUEST) <= 8


@pytest.mark.parametrize("changes", [refused(NO_ADDRESSES), refused(FAILURE), {"status": FAILURE}])
def test_failed_renewal_keeps_the_lease(bound, changes):
    """A server that cannot renew now does not end the lease."""
    bound.wait()
    assert bound.answer(**changes) is None
    assert (bound.client.state, bound.client.lease.address) == (State.RENEWING, ADDRESS)


def test_addresses_of_a_renewal(bound):
    """The present address stays while the server leaves it; when its lifetime is 0, it is replaced, or lost."""
    for first_s, expected in ((100.0, ADDRESS), (0.0, SECOND)):
        bound.wait()
        assert bound.answer(ia=leasing((SECOND, 100.0, 200.0), (ADDRESS, first_s, 2 * first_s))) is Event.GRANTED
        assert bound.client.lease.address == expected
    bound.wait()
    assert bound.answer(address=SECOND, preferred_s=0.0, valid_s=0.0) is Event.LOST


@pytest.mark.parametrize(("now", "acts_at", "kind"), [(20.0, 50, RENEW), (60.0, 60, RENEW), (90.0, 90, REBIND)])
def test_lease_of_this_boot(now, acts_at, kind):
    """A stored lease of this boot is maintained by its times, at once if T1 or T2 has passed."""
    exchange = Exchange(now=now).resume()
    assert (exchange.sent, exchange.client.state) == ([], State.BOUND)
    assert exchange.wait() is None
    assert acts_at * 0.9 <= exchange.now <= acts_at
    assert exchange.kinds == [kind]


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize("lifetime_s", [200.0, 0.0])
def test_expired_lease(lifetime_s, is_answered):
    """A stored lease that has expired, or was lost, is confirmed by a server; without an answer it is lost."""
    exchange = Exchange(now=200.0).resume(replace(GRANT, lifetime_s=lifetime_s))
    assert (exchange.client.state, exchange.kinds) == (State.CONFIRMING, [REBIND])
    if is_answered:
        assert exchange.answer() is Event.GRANTED
    else:
        exchange.wait_for(Event.LOST)
        assert 210 <= exchange.now <= 211


def test_lease_of_another_boot():
    """A lease of another boot is confirmed by REBIND; a server that does not know it is asked for its address."""
    exchange, refusing = (Exchange(now=5000.0).resume(same_boot=False) for _ in range(2))
    assert (exchange.kinds, exchange.sent[0].server_id) == ([REBIND], b"")
    exchange.wait()
    assert exchange.answer(server_id=OTHER) is Event.GRANTED
    refusing.answer(**refused(NO_BINDING))
    assert refusing.kinds == [REBIND, REQUEST]
    assert refusing.answer() is Event.GRANTED


@pytest.mark.parametrize("stage", ["requesting", "bound"])
def test_release(stage, request):
    """RELEASE names server, client and the leased or requested address; answers after it are ignored."""
    exchange = request.getfixturevalue(stage)
    (message,) = exchange.client.release()
    assert (message.kind, message.server_id, message.client_id) == (packet6.RELEASE, SERVER, DUID)
    assert message.associations == (leasing((ADDRESS,)),)
    assert (exchange.client.state, exchange.client.deadline, exchange.client.lease) == (State.STOPPED, INFINITE_S, None)
    assert (exchange.client.release(), exchange.answer()) == ([], None)


def test_decline(bound):
    """Answers to a bound client and to DECLINE are ignored; ten seconds later the client solicits again."""
    assert bound.answer() is None
    declined = bound.now
    bound.client.decline(declined)
    bound.sent += bound.client.take_outgoing()
    assert (bound.answer(), bound.offer(), bound.client.lease, bound.kinds[-1]) == (None, None, None, packet6.DECLINE)
    assert bound.wait() is None
    assert bound.now == declined + 10
    assert bound.kinds[-2:] == [packet6.DECLINE, SOLICIT]
    bound.offer(address=SECOND)
    assert bound.answer(address=SECOND) is Event.GRANTED
