"""The DHCPv4 client of one interface as a state machine (RFC 2131 section 4.4), without I/O.

One rule: it neither sends nor sleeps. The caller passes the time (seconds of CLOCK_BOOTTIME) and received messages,
sends what `take_outgoing` returns, and calls `expire` at `deadline`.

    start -> SELECTING -> REQUESTING -> BOUND -> RENEWING -> REBINDING -> (lease lost) SELECTING ...
    resume with a lease of this boot -> BOUND;  resume with one of another boot -> REBOOTING
"""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv4Address
from typing import NamedTuple

from ipam.dhcp import options
from ipam.dhcp.lease import Lease, UnusableLeaseError, lease_from_ack
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet import BOOTREPLY, BOOTREQUEST, MESSAGE_TYPE, NO_ADDRESS, Message
from ipam.dhcp.randomness import random_fraction, random_integer
from process.values import dataclass

_XID_BYTES = 4
_MAX_MESSAGE_BYTES = 1500  # option 57, as the reference's
_REQUESTS = 4  # tries of REQUEST before the client starts anew with DISCOVER
_MIN_RETRY_S = 60.0  # RFC 2131 section 4.4.5: between two requests while renewing or rebinding
_MIN_RETRIES = 20  # for leases shorter than _MIN_RETRIES minutes: that part of the lease instead
_DECLINED_PAUSE_S = 10.0
_RENEWAL_SPREAD = 0.1  # renewals come up to this part before T1, so that pods started together do not renew together


class State(Enum):
    """The states of RFC 2131, figure 5; STOPPED has no deadline."""

    STOPPED = "stopped"
    SELECTING = "acquiring"
    REQUESTING = "requesting"
    REBOOTING = "confirming"
    BOUND = "bound"
    RENEWING = "renewing"
    REBINDING = "rebinding"


class Event(Enum):
    """A change that the caller acts on."""

    GRANTED = "granted"  # `lease` is a new or renewed lease
    LOST = "lost"  # `lease` is None: it expired, or a server refused it; the client tries to get another
    FAILED = "failed"  # no lease in the time allowed; the client has stopped


class Timing(NamedTuple):
    """Limits in seconds (the daemon's flags): for one answer, between two tries, and for all tries of an ADD."""

    answer_s: float = 10.0
    retry_max_s: float = 62.0
    total_s: float = 208.0


@dataclass(frozen=True)
class Identity:
    """The client as servers see it: MAC address (6 bytes), client identifier, options to send and to request.

    `broadcast` asks servers to broadcast their answers.
    """

    mac: bytes
    client_id: bytes
    provided: tuple[tuple[int, bytes], ...] = ()
    requested: tuple[int, ...] = ()
    broadcast: bool = False


class Outgoing(NamedTuple):
    """A message to send: to `server` from the leased address, or (None) to all servers from `source`."""

    message: Message
    server: IPv4Address | None = None
    source: IPv4Address = NO_ADDRESS


class Client:
    """The state of one client: `deadline` is when to call `expire`; answers can arrive until `listening_until`."""

    def __init__(self, identity: Identity, timing: Timing) -> None:
        self.identity = identity
        self.state = State.STOPPED
        self.lease: Lease | None = None
        self.deadline = INFINITE_S
        self.listening_until = -INFINITE_S
        self.reason = ""  # of the last LOST or FAILED
        self._timing = timing
        self._outgoing: list[Outgoing] = []
        self._give_up_at = INFINITE_S
        self._xid = 0
        self._begun = 0.0
        self._sent = 0.0
        self._tries = 0
        self._offered = NO_ADDRESS
        self._server = NO_ADDRESS
        self._refusal = ""  # the last one of this ADD

    @property
    def claimed(self) -> IPv4Address | None:
        """The address that a server has granted or, if the answer to a REQUEST is under way, may have granted."""
        if self.lease is not None:
            return self.lease.address.ip
        return self._offered if self.state is State.REQUESTING else None

    def take_outgoing(self) -> list[Outgoing]:
        """Returns the messages to send now, and forgets them."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def start(self, now: float) -> None:
        """Begins to acquire a lease; FAILED follows if there is none in the total time."""
        self._give_up_at, self._refusal = now + self._timing.total_s, ""
        self._discover(now)

    def resume(self, lease: Lease, now: float, *, same_boot: bool) -> None:
        """Continues with a stored lease: maintains one of this boot, asks the servers to confirm another one.

        Also asks for one that has expired: a renewal that could not be stored may have prolonged it.
        """
        self.lease = lease
        if same_boot and now < lease.expires_at:
            self._bind(now)
            return
        self._begin_exchange(State.REBOOTING, now)
        self._offered, self._server = lease.address.ip, NO_ADDRESS
        self._request(now)

    def expire(self, now: float) -> Event | None:
        """Acts on a passed deadline; does nothing before it."""
        if now < self.deadline:
            return None
        if self.state is State.SELECTING:
            return self._discover_again(now)
        if self.state in (State.REQUESTING, State.REBOOTING):
            return self._request_again(now)
        return self._maintain(now)

    def receive(self, message: Message, now: float) -> Event | None:
        """Acts on a server's message, which may be forged; ignores one that is not an answer to the last request."""
        kind = options.message_type(message.options)
        if not self._is_answer(message) or now > self.listening_until:
            return None
        server = options.server_identifier(message.options)
        if self.state is State.SELECTING:
            is_usable = options.is_host_address(message.yiaddr) and message.yiaddr != server
            if kind == options.OFFER and server and is_usable:
                self._begin_request(message.yiaddr, server, now)
            return None
        if self.state is State.REQUESTING and server != self._server:
            return None
        if kind == options.NAK:
            return self._refused(message, now)
        return self._granted(message, now) if kind == options.ACK else None

    def release(self) -> list[Outgoing]:
        """Stops, and returns the message that releases the claimed address, if there is one."""
        address, server = self.claimed, self.lease.server if self.lease else self._server
        self.lease = None
        self._stop()
        if address is None:
            return []
        self._xid = random_integer(_XID_BYTES)
        return [self._release(address, server)]

    def decline(self, now: float) -> None:
        """Refuses the lease, since another host uses its address; tries again after ten seconds (RFC 2131 3.1.5)."""
        lease, self.lease = self.lease, None
        self._begin_exchange(State.SELECTING, now)
        self.deadline, self.listening_until = now + _DECLINED_PAUSE_S, -INFINITE_S
        if lease is not None:
            declined = {options.REQUESTED_ADDRESS: lease.address.ip.packed, options.SERVER_ID: lease.server.packed}
            self._outgoing.append(Outgoing(_message(self.identity, options.DECLINE, self._xid, options_=declined)))

    def _is_answer(self, message: Message) -> bool:
        """Returns whether a message answers this client's exchange (RFC 2131 section 4.1, RFC 6842)."""
        listens = self.state not in (State.STOPPED, State.BOUND)
        echoed = message.options.get(options.CLIENT_ID, self.identity.client_id)
        return (
            listens
            and message.op == BOOTREPLY
            and message.xid == self._xid
            and message.chaddr == self.identity.mac
            and echoed == self.identity.client_id
        )

    def _begin_exchange(self, state: State, now: float) -> None:
        self.state = state
        self._xid = random_integer(_XID_BYTES)
        self._begun = now
        self._tries = 0

    def _discover(self, now: float) -> None:
        self._begin_exchange(State.SELECTING, now)
        self._send_discover(now)

    def _send_discover(self, now: float) -> None:
        message = self._message(options.DISCOVER, now, self._requested_options())
        self._send(Outgoing(message), now)
        self._retry_later(now)

    def _discover_again(self, now: float) -> Event | None:
        if now >= self._give_up_at:
            self._stop()
            self.reason = f"no more tries: {self._refusal}" if self._refusal else "no more tries"
            return Event.FAILED
        self._send_discover(now)
        return None

    def _begin_request(self, address: IPv4Address, server: IPv4Address, now: float) -> None:
        self.state, self._tries = State.REQUESTING, 0
        self._offered, self._server = address, server
        self._request(now)

    def _request(self, now: float) -> None:
        """Sends a REQUEST for the offered address (with its server), or for the stored one (to all servers)."""
        chosen = {options.REQUESTED_ADDRESS: self._offered.packed}
        if self.state is State.REQUESTING:
            chosen[options.SERVER_ID] = self._server.packed
        self._send(Outgoing(self._message(options.REQUEST, now, chosen | self._requested_options())), now)
        self._retry_later(now)

    def _request_again(self, now: float) -> Event | None:
        if self._tries < _REQUESTS:
            self._request(now)
            return None
        if self.state is State.REBOOTING and self.lease and now < self.lease.expires_at:
            # RFC 2131 section 3.2: no server answered, so the client may use the lease until it expires.
            self._bind(now)
            return None
        lost = self._lose(now, "no server confirmed it") if self.lease else None
        if lost is None:
            self._discover(now)
        return lost

    def _retry_later(self, now: float) -> None:
        pause_s = min(2.0**self._tries, self._timing.retry_max_s) * (0.9 + 0.2 * random_fraction())
        self._tries += 1
        self.deadline = min(now + pause_s, max(self._give_up_at, now))
        self.listening_until = min(self.deadline, now + self._timing.answer_s)

    def _granted(self, message: Message, now: float) -> Event | None:
        """Takes the lease of an ACK; releases one that cannot be used."""
        try:
            self.lease = lease_from_ack(message, self._sent, self.lease)
        except UnusableLeaseError as error:
            if self.lease is not None:  # the lease stays as it is until a server renews it properly
                return None
            if error.lease is not None:
                self._outgoing.append(self._release(error.lease.address.ip, error.lease.server))
            self._stop()
            self.reason = str(error)
            return Event.FAILED
        self._give_up_at = INFINITE_S
        self._bind(now)
        return Event.GRANTED

    def _refused(self, message: Message, now: float) -> Event | None:
        text = options.message_text(message.options)
        reason = (
            f"the server {options.server_identifier(message.options) or ''} refused it{f': {text}' if text else ''}"
        )
        if self.lease is not None:
            return self._lose(now, reason)
        self._refusal = reason
        # The next DISCOVER waits for the deadline of this request: a server that refuses everything is not flooded.
        self.state = State.SELECTING
        return None

    def _bind(self, now: float) -> None:
        lease = self.lease
        assert lease is not None
        self.state, self.listening_until = State.BOUND, -INFINITE_S
        early_s = 0.0 if lease.renewal_s == INFINITE_S else lease.renewal_s * _RENEWAL_SPREAD * random_fraction()
        self.deadline = max(now, lease.granted_s + lease.renewal_s - early_s)

    def _maintain(self, now: float) -> Event | None:
        """Sends the request that is due in BOUND, RENEWING or REBINDING, or gives up an expired lease."""
        lease = self.lease
        if lease is None:
            return None
        rebinding_at = lease.granted_s + lease.rebinding_s
        if now >= lease.expires_at:
            return self._lose(now, "it expired: no server renewed it")
        state, until = (State.RENEWING, rebinding_at) if now < rebinding_at else (State.REBINDING, lease.expires_at)
        if state is not self.state:
            self._begin_exchange(state, now)
        message = self._message(options.REQUEST, now, self._requested_options(), ciaddr=lease.address.ip)
        server = lease.server if state is State.RENEWING else None
        self._send(Outgoing(message, server, lease.address.ip), now)
        minimum_s = min(_MIN_RETRY_S, lease.lifetime_s / _MIN_RETRIES)
        self.deadline = min(until, now + max(minimum_s, (until - now) / 2))
        self.listening_until = min(self.deadline, now + self._timing.answer_s)
        return None

    def _lose(self, now: float, reason: str) -> Event:
        self.lease, self.reason, self._give_up_at = None, reason, INFINITE_S
        self._discover(now)
        return Event.LOST

    def _stop(self) -> None:
        self.state, self.deadline, self.listening_until = State.STOPPED, INFINITE_S, -INFINITE_S

    def _send(self, outgoing: Outgoing, now: float) -> None:
        self._sent = now
        self._outgoing.append(outgoing)

    def _release(self, address: IPv4Address, server: IPv4Address) -> Outgoing:
        """Returns the message that releases an address (RFC 2131 section 4.4.6), with the identifier that got it."""
        chosen = {options.SERVER_ID: server.packed}
        message = _message(self.identity, options.RELEASE, self._xid, options_=chosen, ciaddr=address)
        return Outgoing(message, server, address)

    def _requested_options(self) -> dict[int, bytes]:
        chosen = {options.MAX_MESSAGE_SIZE: _MAX_MESSAGE_BYTES.to_bytes(2, "big"), **dict(self.identity.provided)}
        if self.identity.requested:
            chosen[options.PARAMETER_REQUEST_LIST] = bytes(self.identity.requested)
        return chosen

    def _message(self, kind: int, now: float, chosen: dict[int, bytes], ciaddr: IPv4Address = NO_ADDRESS) -> Message:
        secs = min(int(now - self._begun), 0xFFFF)
        return _message(self.identity, kind, self._xid, options_=chosen, secs=secs, ciaddr=ciaddr)


def _message(
    identity: Identity,
    kind: int,
    xid: int,
    *,
    options_: dict[int, bytes],
    secs: int = 0,
    ciaddr: IPv4Address = NO_ADDRESS,
) -> Message:
    chosen = {MESSAGE_TYPE: bytes([kind]), **options_, options.CLIENT_ID: identity.client_id}
    # Answers to a client that has an address are sent to the address.
    broadcast = identity.broadcast and ciaddr == NO_ADDRESS
    return Message(BOOTREQUEST, xid, identity.mac, chosen, secs=secs, broadcast=broadcast, ciaddr=ciaddr)
