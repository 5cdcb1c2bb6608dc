"""The DHCPv6 client of one interface as a state machine (RFC 8415, section 18.2), without I/O.

One rule: it neither sends nor sleeps. The caller passes the time (seconds of CLOCK_BOOTTIME) and received messages,
multicasts what `take_outgoing` returns, and calls `expire` at `deadline`.

    start -> SOLICITING -> REQUESTING -> BOUND -> RENEWING -> REBINDING -> (lease lost) SOLICITING ...
             SOLICITING -> (rapid commit) BOUND;  RENEWING, REBINDING -> (no binding) REQUESTING
    resume with a lease of this boot -> BOUND;  resume with one of another boot -> CONFIRMING

Decisions:
- A lease of another boot is confirmed by REBIND: the answer to CONFIRM says nothing about the lifetimes, and the times
  of another boot mean nothing.
- The first SOLICIT is not delayed, and advertisements are collected for 0.3 s after the first instead of a second
  (RFC 8415, section 18.2.1): a pod waits. Servers on the link answer within milliseconds.
- RELEASE and DECLINE are sent once: the namespace is about to be deleted, and the lease expires anyway.
- The timeouts of RENEW and REBIND, 10 s at first, are shorter for short leases, so that one lost packet costs no lease.
- Reconfiguration by servers and unicast to servers are not supported.
"""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv6Address
from typing import NamedTuple

from ipam.dhcp import packet6
from ipam.dhcp.address6 import NO_ADDRESS
from ipam.dhcp.client4 import Event, Timing
from ipam.dhcp.lease6 import Grant, grant_of, usable_address
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet6 import Association, LeasedAddress, Message, StatusCode
from ipam.dhcp.randomness import random_fraction, random_integer
from process.values import dataclass, replace

_REQUESTED = (packet6.DNS_SERVERS, packet6.DOMAIN_LIST, packet6.SOL_MAX_RT)
_XID_BYTES = 3
_COLLECT_S = 0.3
_PREFERENCE_MAX = 255  # the client does not wait for other servers
_DECLINED_PAUSE_S = 10.0
_CONFIRM_TOTAL_S = 10.0
_SOL_MAX_RT_S = range(60, 86401)  # RFC 8415, section 21.24: other values are ignored
_RENEWAL_SPREAD = 0.1  # renewals come up to this part before T1, so that pods started together do not renew together
_RENEWAL_TIMEOUT_MIN_S, _RENEWAL_TRIES_MIN = 1.0, 4


class State(Enum):
    """The states of the client, with the names of client4.State; STOPPED has no deadline."""

    STOPPED = "stopped"
    SOLICITING = "acquiring"
    REQUESTING = "requesting"
    CONFIRMING = "confirming"
    BOUND = "bound"
    RENEWING = "renewing"
    REBINDING = "rebinding"


class _Pace(NamedTuple):
    """Timeouts of a message (RFC 8415, section 7.6): the first one, the longest, and the number of tries, 0: any."""

    first_s: float
    max_s: float
    tries: int = 0


_REQUEST_PACE, _CONFIRM_PACE = _Pace(1.0, 30.0, 10), _Pace(1.0, 4.0)
_RENEWAL_FIRST_S, _RENEWAL_MAX_S = 10.0, 600.0
_KINDS = {
    State.SOLICITING: packet6.SOLICIT,
    State.REQUESTING: packet6.REQUEST,
    State.CONFIRMING: packet6.REBIND,
    State.RENEWING: packet6.RENEW,
    State.REBINDING: packet6.REBIND,
}


@dataclass(frozen=True)
class Identity:
    """The client as servers see it: DUID, its interface's IAID (4 bytes), whether to commit rapidly."""

    duid: bytes
    iaid: bytes
    rapid_commit: bool = True


class Client:
    """The state of one client: `deadline` is when to call `expire`; answers can arrive until `listening_until`."""

    def __init__(self, identity: Identity, timing: Timing) -> None:
        self.identity = identity
        self.state = State.STOPPED
        self.lease: Grant | None = None
        self.deadline = INFINITE_S
        self.listening_until = -INFINITE_S
        self.reason = ""  # of the last LOST or FAILED
        self._timing = timing
        self._outgoing: list[Message] = []
        self._give_up_at = INFINITE_S
        self._xid = 0
        self._begun = 0.0
        self._sent = 0.0
        self._tries = 0
        self._timeout_s = 0.0
        self._solicit_max_s = timing.retry_max_s
        self._offer: Message | None = None  # the best ADVERTISE so far
        self._address = NO_ADDRESS  # the one to request
        self._server = b""  # the DUID of the chosen server

    @property
    def claimed(self) -> IPv6Address | None:
        """The address that a server has granted or, if the answer to a REQUEST is under way, may have granted."""
        if self.lease is not None:
            return self.lease.address
        return self._address if self.state is State.REQUESTING else None

    def take_outgoing(self) -> list[Message]:
        """Returns the messages to multicast now, and forgets them."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def start(self, now: float, give_up_at: float) -> None:
        """Begins to acquire a lease; FAILED follows if there is none at `give_up_at`."""
        self._give_up_at = give_up_at
        self.reason = "no DHCPv6 server answered"
        self._begin(State.SOLICITING, now)

    def resume(self, lease: Grant, now: float, *, same_boot: bool) -> None:
        """Continues with a stored lease: maintains one of this boot, asks the servers to confirm another one.

        Also asks for one that has expired: a renewal that could not be stored may have prolonged it.
        """
        if same_boot and now < lease.expires_at:
            self.lease = lease
            self._bind(now)
        else:
            # The time of another boot means nothing.
            self.lease = replace(lease, granted_s=now, lifetime_s=max(lease.lifetime_s, _CONFIRM_TOTAL_S))
            self._begin(State.CONFIRMING, now)

    def expire(self, now: float) -> Event | None:
        """Acts on a passed deadline; does nothing before it."""
        if now < self.deadline:
            return None
        if self.state in (State.SOLICITING, State.REQUESTING) and now >= self._give_up_at:
            self._stop()
            return Event.FAILED
        if self.state is State.SOLICITING:
            self._solicit_again(now)
            return None
        if self.state in (State.REQUESTING, State.CONFIRMING):
            return self._request_again(now)
        return self._maintain(now)

    def receive(self, message: Message, now: float) -> Event | None:
        """Acts on a server's message, which may be forged; ignores one that is not an answer to the last message."""
        is_answer = (
            self.state in _KINDS
            and now <= self.listening_until
            and message.xid == self._xid
            and message.client_id == self.identity.duid
            and message.server_id
        )
        if not is_answer:
            return None
        if message.sol_max_rt_s in _SOL_MAX_RT_S:
            self._solicit_max_s = float(message.sol_max_rt_s)
        if message.kind == packet6.ADVERTISE and self.state is State.SOLICITING:
            self._advertised(message, now)
            return None
        if message.kind != packet6.REPLY or not self._is_expected_reply(message):
            return None
        return self._replied(message, now)

    def release(self) -> list[Message]:
        """Stops, and returns the message that releases the claimed address, if there is one."""
        address, server = self.claimed, self.lease.server if self.lease else self._server
        self.lease = None
        self._stop()
        self._xid = random_integer(_XID_BYTES)
        return [] if address is None else [self._returning(packet6.RELEASE, address, server)]

    def decline(self, now: float) -> None:
        """Refuses the lease, since another host uses its address; tries to get another one after ten seconds."""
        lease, self.lease = self.lease, None
        self._set_state(State.SOLICITING, now)
        if lease is not None:
            self._outgoing.append(self._returning(packet6.DECLINE, lease.address, lease.server))
        self.deadline = now + _DECLINED_PAUSE_S

    def _is_expected_reply(self, message: Message) -> bool:
        """Returns whether a REPLY is from a server that this client has chosen, or that it lets choose itself."""
        if self.state is State.SOLICITING:
            return self.identity.rapid_commit and message.rapid_commit
        if self.state is State.REQUESTING:
            return message.server_id == self._server
        if self.state is State.RENEWING:
            return self.lease is not None and message.server_id == self.lease.server
        return True

    def _advertised(self, message: Message, now: float) -> None:
        """Keeps the best offer; requests it at the end of the time in which offers are collected."""
        status = message.failure(self.identity.iaid)
        if status:
            self.reason = _refusal(status)
        if status or usable_address(message.association(self.identity.iaid), self._address) is None:
            return
        is_first = self._offer is None
        if self._offer is None or message.preference > self._offer.preference:
            self._offer = message
        if message.preference == _PREFERENCE_MAX or self._tries > 1:
            self._request_offer(now)
        elif is_first:
            self.deadline = min(self.deadline, now + _COLLECT_S)

    def _replied(self, message: Message, now: float) -> Event | None:
        status = message.failure(self.identity.iaid)
        if status is None:
            return self._granted(message, now)
        if status.code == packet6.NO_BINDING and self.lease is not None and self.state is not State.REQUESTING:
            self._begin_request(self.lease.address, message.server_id, now)
            return None
        is_final = status.code == packet6.NOT_ON_LINK or (
            status.code == packet6.NO_ADDRESSES and self.state in (State.SOLICITING, State.REQUESTING)
        )
        if self.lease is None:
            self.reason = _refusal(status)
        if not is_final:  # the message is sent again at the deadline (RFC 8415, section 18.2.10)
            return None
        if self.lease is not None:
            return self._lose(now, _refusal(status))
        # The next SOLICIT waits for the deadline of this request: a server that refuses everything is not flooded.
        self.state, self._offer = State.SOLICITING, None
        return None

    def _granted(self, message: Message, now: float) -> Event | None:
        """Accepts the lease of a REPLY; ignores a REPLY without a usable address, unless it takes the lease away."""
        association, lease = message.association(self.identity.iaid), self.lease
        if association is None:
            return None
        leased = usable_address(association, lease.address if lease else self._address)
        if leased is None:
            is_removed = lease and any(each.address == lease.address for each in association.addresses)
            return self._lose(now, "the server took the address away") if is_removed else None
        self.lease = grant_of(message, association, leased, self._sent)
        self._give_up_at = INFINITE_S
        self._bind(now)
        return Event.GRANTED

    def _request_offer(self, now: float) -> None:
        offer, self._offer = self._offer, None
        assert offer is not None
        leased = usable_address(offer.association(self.identity.iaid), self._address)
        assert leased is not None
        self._begin_request(leased.address, offer.server_id, now)

    def _begin_request(self, address: IPv6Address, server: bytes, now: float) -> None:
        self._address, self._server = address, server
        self.reason = "the DHCPv6 server no longer answers"
        self._begin(State.REQUESTING, now)

    def _solicit_again(self, now: float) -> None:
        if self._offer is not None:
            self._request_offer(now)
        else:
            self._transmit(now)

    def _request_again(self, now: float) -> Event | None:
        """Repeats REQUEST, or the REBIND that confirms a lease; gives up after its tries or its time."""
        lease, is_request = self.lease, self.state is State.REQUESTING
        is_over = self._tries >= _REQUEST_PACE.tries if is_request else now >= self._begun + _CONFIRM_TOTAL_S
        if not is_over and not (lease and now >= lease.expires_at):
            self._transmit(now)
            return None
        if lease is not None:
            return self._lose(now, "no server confirmed it")
        self._begin(State.SOLICITING, now)
        return None

    def _maintain(self, now: float) -> Event | None:
        """Sends the message that is due in BOUND, RENEWING or REBINDING, or gives up an expired lease."""
        lease = self.lease
        if lease is None:
            return None
        if now >= lease.expires_at:
            return self._lose(now, "it expired: no server renewed it")
        state = State.RENEWING if now < lease.granted_s + lease.rebinding_s else State.REBINDING
        if state is self.state:
            self._transmit(now)
        else:
            self._begin(state, now)
        return None

    def _bind(self, now: float) -> None:
        lease = self.lease
        assert lease is not None
        self.state, self.listening_until = State.BOUND, -INFINITE_S
        early_s = 0.0 if lease.renewal_s == INFINITE_S else lease.renewal_s * _RENEWAL_SPREAD * random_fraction()
        self.deadline = max(now, min(lease.granted_s + lease.renewal_s - early_s, lease.expires_at))

    def _lose(self, now: float, reason: str) -> Event:
        self.lease, self.reason, self._give_up_at = None, reason, INFINITE_S
        self._begin(State.SOLICITING, now)
        return Event.LOST

    def _stop(self) -> None:
        self.state, self.deadline, self.listening_until = State.STOPPED, INFINITE_S, -INFINITE_S

    def _begin(self, state: State, now: float) -> None:
        self._set_state(state, now)
        self._transmit(now)

    def _set_state(self, state: State, now: float) -> None:
        """Enters a state with a new transaction (RFC 8415, section 16.1), and stops to listen to the last one."""
        self.state, self.listening_until = state, -INFINITE_S
        self._xid = random_integer(_XID_BYTES)
        self._begun, self._tries, self._timeout_s, self._offer = now, 0, 0.0, None

    def _transmit(self, now: float) -> None:
        """Sends the message of the state, and computes when to send it again (RFC 8415, section 15)."""
        self._sent = now
        self._tries += 1
        self._outgoing.append(self._message(now))
        pace, until = self._pace(now)
        spread = 0.1 * random_fraction() if self.state is State.SOLICITING else 0.2 * random_fraction() - 0.1
        timeout_s = 2 * self._timeout_s + spread * self._timeout_s if self._timeout_s else (1 + spread) * pace.first_s
        self._timeout_s = min(timeout_s, (1 + spread) * pace.max_s)
        self.deadline = max(now, min(now + self._timeout_s, until))
        self.listening_until = min(self.deadline, now + self._timing.answer_s)

    def _pace(self, now: float) -> tuple[_Pace, float]:
        """Returns the timeouts of the state's message, and the time at which its tries end."""
        lease = self.lease
        if self.state is State.SOLICITING:
            return _Pace(1.0, self._solicit_max_s), self._give_up_at
        if self.state is State.REQUESTING:
            return _REQUEST_PACE, min(self._give_up_at, INFINITE_S if lease is None else lease.expires_at)
        if self.state is State.CONFIRMING or lease is None:
            return _CONFIRM_PACE, self._begun + _CONFIRM_TOTAL_S
        rebinding_at = lease.granted_s + lease.rebinding_s
        until = rebinding_at if self.state is State.RENEWING else lease.expires_at
        first_s = min(_RENEWAL_FIRST_S, max(_RENEWAL_TIMEOUT_MIN_S, (until - self._begun) / _RENEWAL_TRIES_MIN))
        return _Pace(first_s, _RENEWAL_MAX_S), until

    def _message(self, now: float) -> Message:
        """Returns the message of the state."""
        state, lease = self.state, self.lease
        address, server = NO_ADDRESS, b""
        if state is State.REQUESTING:
            address, server = self._address, self._server
        elif lease is not None and state is not State.SOLICITING:
            address, server = lease.address, lease.server if state is State.RENEWING else b""
        return Message(
            kind=_KINDS[state],
            xid=self._xid,
            client_id=self.identity.duid,
            server_id=server,
            associations=(self._asking(address),),
            elapsed_s=now - self._begun,
            requested=_REQUESTED,
            rapid_commit=state is State.SOLICITING and self.identity.rapid_commit,
        )

    def _asking(self, address: IPv6Address) -> Association:
        """Returns the client's association, with an address unless that is NO_ADDRESS; servers choose its times."""
        return Association(self.identity.iaid, () if address == NO_ADDRESS else (LeasedAddress(address),))

    def _returning(self, kind: int, address: IPv6Address, server: bytes) -> Message:
        """Returns the RELEASE or DECLINE of an address."""
        return Message(kind, self._xid, self.identity.duid, server, (self._asking(address),), elapsed_s=0.0)


def _refusal(status: StatusCode) -> str:
    return f"the DHCPv6 server refused it, {status.describe()}"
