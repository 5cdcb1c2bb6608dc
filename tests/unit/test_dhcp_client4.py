"""The DHCPv4 client's state machine: messages and times in, messages, deadlines and events out."""

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from ipam.dhcp import options
from ipam.dhcp.client4 import Client, Event, Identity, State, Timing
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet import BOOTREPLY, MESSAGE_TYPE, Message

MAC, CLIENT_ID = bytes.fromhex("020000000001"), b"\0pod"
ADDRESS, SERVER, OTHER = IPv4Address("10.25.0.7"), IPv4Address("10.25.0.1"), IPv4Address("10.25.0.2")


class Exchange:
    """A client at a time of its choice, and the server's answers."""

    def __init__(self) -> None:
        self.client = Client(Identity(MAC, CLIENT_ID, requested=(3, 1)), Timing())
        self.now = 1000.0
        self.last = Message(BOOTREPLY, 0, MAC, {})  # that the client has sent

    def sent(self) -> list[int]:
        """Returns the types of the messages that the client sends."""
        outgoing = self.client.take_outgoing()
        if outgoing:
            self.last = outgoing[-1].message
        return [each.message.options[MESSAGE_TYPE][0] for each in outgoing]

    def pass_deadline(self) -> Event | None:
        """Lets the time of the client's deadline come."""
        self.now = self.client.deadline
        return self.client.expire(self.now)

    def pass_deadlines(self) -> Event:
        """Lets time pass until something has happened."""
        while (event := self.pass_deadline()) is None:
            self.sent()
        return event

    def answer(self, kind: int, *, server: IPv4Address = SERVER, yiaddr: IPv4Address = ADDRESS, **changes) -> Message:
        """Returns an answer to the last message; `changes` are of its fields, options by `o` and number."""
        contents = {
            MESSAGE_TYPE: bytes([kind]),
            options.SERVER_ID: server.packed,
            options.SUBNET_MASK: b"\xff\xff\xff\0",
            options.LEASE_TIME: (1000).to_bytes(4, "big"),
            options.ROUTERS: SERVER.packed,
        }
        fields = {key: value for key, value in changes.items() if not key[1:].isdigit()}
        contents |= {int(key[1:]): value for key, value in changes.items() if key[1:].isdigit()}
        contents = {number: value for number, value in contents.items() if value is not None}
        message = Message(BOOTREPLY, self.last.xid, MAC, contents, yiaddr=yiaddr)
        return replace(message, **fields)

    def receive(self, *arguments, **changes) -> Event | None:
        """Passes an answer to the client."""
        return self.client.receive(self.answer(*arguments, **changes), self.now)


@pytest.fixture
def exchange() -> Exchange:
    """A client that has sent DISCOVER."""
    exchange = Exchange()
    exchange.client.start(exchange.now)
    assert exchange.sent() == [options.DISCOVER]
    return exchange


@pytest.fixture
def requesting(exchange: Exchange) -> Exchange:
    """A client that has sent REQUEST."""
    assert exchange.receive(options.OFFER) is None
    assert exchange.sent() == [options.REQUEST]
    return exchange


@pytest.fixture
def bound(requesting: Exchange) -> Exchange:
    """A client with a lease of 1,000 seconds."""
    assert requesting.receive(options.ACK) is Event.GRANTED
    return requesting


@pytest.fixture
def renewing(bound: Exchange) -> Exchange:
    """A client that has sent REQUEST at T1."""
    bound.pass_deadline()
    assert bound.sent() == [options.REQUEST]
    return bound


def test_lease_is_acquired(requesting):
    """DISCOVER, OFFER, REQUEST for the offer of its server, ACK: the lease counts from the REQUEST."""
    chosen = requesting.last.options
    assert (chosen[options.REQUESTED_ADDRESS], chosen[options.SERVER_ID]) == (ADDRESS.packed, SERVER.packed)
    assert chosen[options.CLIENT_ID] == CLIENT_ID
    assert list(chosen[options.PARAMETER_REQUEST_LIST]) == [3, 1]
    requested_at, requesting.now = requesting.now, requesting.now + 0.5
    assert requesting.receive(options.ACK) is Event.GRANTED
    lease = requesting.client.lease
    assert (str(lease.address), lease.server, lease.gateway) == ("10.25.0.7/24", SERVER, SERVER)
    assert (lease.granted_s, lease.expires_at) == (requested_at, requested_at + 1000)
    assert requesting.client.state is State.BOUND
    assert requesting.client.listening_until < requesting.now


def test_discover_is_repeated_with_growing_pauses_until_the_time_is_up(exchange):
    """The pauses double up to 62 seconds, within ten percent; after 208 seconds the client fails."""
    pauses, event = [], None
    while event is None:
        before = exchange.now
        event = exchange.pass_deadline()
        pauses.append(exchange.now - before)
        if event is None:
            assert exchange.sent() == [options.DISCOVER]
    assert event is Event.FAILED
    assert exchange.client.reason == "no more tries"
    assert exchange.now == 1208
    for pause, expected in zip(pauses[:-1], (1, 2, 4, 8, 16, 32, 62), strict=False):
        assert 0.9 * expected <= pause <= 1.1 * expected
    assert exchange.client.deadline == INFINITE_S


@pytest.mark.parametrize(
    "changes",
    [
        *({"xid": 1}, {"chaddr": bytes(6)}, {"op": 1}, {"o61": b"\0another"}, {"o54": None}, {"o53": b""}),
        *({"yiaddr": IPv4Address(address)} for address in ("127.0.0.1", "224.0.0.1", "0.0.0.0")),
        {"yiaddr": SERVER},
    ],
)
def test_forged_offers_are_ignored(changes, exchange):
    """An offer that does not answer the client, or cannot be used, is ignored; the next one is accepted."""
    exchange.receive(options.OFFER, **changes)
    assert exchange.sent() == []
    assert exchange.receive(options.OFFER) is None
    assert exchange.sent() == [options.REQUEST]


@pytest.mark.parametrize("kind", [options.ACK, options.NAK])
def test_only_the_chosen_server_can_answer_a_request(kind, requesting):
    """An answer of another server to the REQUEST is ignored."""
    assert requesting.receive(kind, server=OTHER) is None
    assert requesting.client.state is State.REQUESTING


def test_client_starts_anew_after_four_requests(requesting):
    """A server that offers and does not acknowledge gets four requests, then there is a new DISCOVER."""
    for kind in [options.REQUEST] * 3 + [options.DISCOVER]:
        requesting.pass_deadline()
        assert requesting.sent() == [kind]


def test_refused_request_waits_before_the_next_discover(requesting):
    """A NAK to a REQUEST leads to a DISCOVER at the deadline, not at once; the error of the ADD has its text."""
    assert requesting.receive(options.NAK, o56=b"not here") is None
    assert requesting.sent() == []
    requesting.pass_deadline()
    assert requesting.sent() == [options.DISCOVER]
    assert requesting.pass_deadlines() is Event.FAILED
    assert requesting.client.reason == "no more tries: the server 10.25.0.1 refused it: not here"


@pytest.mark.parametrize(
    ("changes", "reason", "sent"),
    [
        ({"o1": None}, "DHCP option Subnet Mask not found in DHCPACK", [options.RELEASE]),
        ({"o1": b"\xff\0\xff\0"}, "DHCPACK: ", [options.RELEASE]),
        ({"yiaddr": SERVER}, "DHCPACK: the address 10.25.0.1 is the server's", []),
    ],
)
def test_lease_that_cannot_be_used_is_released(changes, reason, sent, requesting):
    """With an unusable mask or address the client fails, and the server does not keep the lease."""
    assert requesting.receive(options.ACK, **changes) is Event.FAILED
    assert requesting.client.reason.startswith(reason)
    assert requesting.sent() == sent
    assert not sent or requesting.last.ciaddr == ADDRESS


def test_renewal_comes_at_t1_or_a_little_earlier(bound):
    """At half of the lease, up to a tenth earlier, a REQUEST goes to the server from the leased address."""
    bound.pass_deadline()
    assert 1450 <= bound.now <= 1500
    (outgoing,) = bound.client.take_outgoing()
    assert (outgoing.server, outgoing.source, outgoing.message.ciaddr) == (SERVER, ADDRESS, ADDRESS)
    assert not {options.SERVER_ID, options.REQUESTED_ADDRESS} & outgoing.message.options.keys()
    bound.last = outgoing.message
    assert bound.receive(options.ACK) is Event.GRANTED
    assert bound.client.lease.granted_s == bound.now


def test_renewal_without_mask_keeps_the_prefix(renewing):
    """A renewing server may leave out the mask and its identifier."""
    assert renewing.receive(options.ACK, o1=None, o54=None) is Event.GRANTED
    assert (str(renewing.client.lease.address), renewing.client.lease.server) == ("10.25.0.7/24", SERVER)


def test_renewal_that_cannot_be_used_is_ignored(renewing):
    """An ACK with a wrong mask changes nothing: the lease stays until a server renews it properly, or it expires."""
    lease = renewing.client.lease
    assert renewing.receive(options.ACK, o1=b"\x01\x02\x03\x04") is None
    assert (renewing.client.lease, renewing.client.state) == (lease, State.RENEWING)


def test_lease_is_rebound_and_then_lost(bound):
    """From T2 on the requests go to all servers; when the lease expires, it is lost, and DISCOVER follows."""
    targets = []
    while (event := bound.pass_deadline()) is None:
        targets += [(bound.now, each.server) for each in bound.client.take_outgoing()]
    assert (event, bound.now, bound.client.lease) == (Event.LOST, 2000, None)
    assert all((server is None) == (time >= 1850) for time, server in targets)
    assert 3 <= len(targets) <= 12
    assert bound.client.state is State.SELECTING
    bound.now += 10_000
    assert bound.client.expire(bound.now) is None, "it tries for ever"


def test_infinite_lease_is_never_renewed(requesting):
    """A lease of 0xffffffff seconds has no deadline."""
    assert requesting.receive(options.ACK, o51=b"\xff" * 4) is Event.GRANTED
    assert requesting.client.deadline == INFINITE_S


def test_stored_lease_that_is_overdue_is_renewed_at_once(bound):
    """A lease whose T1 passed while no client ran is renewed immediately."""
    again = Exchange()
    again.now = 1700.0
    again.client.resume(bound.client.lease, again.now, same_boot=True)
    assert again.client.deadline == again.now
    assert again.pass_deadline() is None
    assert again.sent() == [options.REQUEST]


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("answer", [options.ACK, options.NAK, None])
def test_stored_lease_that_may_have_expired_is_confirmed(answer, same_boot, bound):
    """All servers are asked for a lease of another boot, and an expired one: a renewal may not have been stored."""
    again = Exchange()
    again.now = 2001.0
    granted_s = bound.client.lease.granted_s if same_boot else -INFINITE_S
    again.client.resume(replace(bound.client.lease, granted_s=granted_s), again.now, same_boot=same_boot)
    assert again.sent() == [options.REQUEST]
    assert again.last.options[options.REQUESTED_ADDRESS] == ADDRESS.packed
    assert options.SERVER_ID not in again.last.options
    event = again.receive(answer) if answer else again.pass_deadlines()
    assert event is (Event.GRANTED if answer == options.ACK else Event.LOST)
    assert again.now < 2020


def test_declined_address(bound):
    """DECLINE names the address and the server; DISCOVER comes ten seconds later, and is repeated without an end."""
    bound.client.decline(bound.now)
    assert bound.sent() == [options.DECLINE]
    assert bound.last.options[options.REQUESTED_ADDRESS] == ADDRESS.packed
    assert bound.last.options[options.SERVER_ID] == SERVER.packed
    assert bound.client.deadline == bound.now + 10
    until = bound.now + 2 * Timing().total_s
    while bound.now < until:
        assert bound.pass_deadline() is None
        assert bound.sent() == [options.DISCOVER]


@pytest.mark.parametrize("stage", ["requesting", "bound"])
def test_release(stage, request):
    """RELEASE goes to the server from the leased or requested address, with the identifier that acquired it."""
    client = request.getfixturevalue(stage).client
    (outgoing,) = client.release()
    assert (outgoing.server, outgoing.source, outgoing.message.ciaddr) == (SERVER, ADDRESS, ADDRESS)
    assert outgoing.message.options[options.CLIENT_ID] == CLIENT_ID
    assert client.release() == []
    assert client.deadline == INFINITE_S


def test_transaction_ids_are_random():
    """Each exchange has another transaction ID."""
    clients = [Exchange() for _ in range(50)]
    for each in clients:
        each.client.start(0.0)
        each.sent()
    assert len({each.last.xid for each in clients}) == 50
