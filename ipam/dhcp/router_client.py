"""The client of router advertisements on one interface as a state machine (RFC 4861, section 6.3.7), without I/O.

One rule: it solicits again long before anything expires, instead of listening all the time. A socket that listens keeps
the namespace of a deleted pod alive.

    start -> SEARCHING -> (an advertisement) BOUND -> REFRESHING -> BOUND ...
             SEARCHING -> (no answer) WAITING -> SEARCHING ...

Decisions:
- The first router that can be a gateway configures the pod, and its further advertisements do; another router replaces
  it when it no longer answers, or no longer is a gateway. Router preferences (RFC 4191) are ignored.
- A router that is no gateway is accepted a second later if no gateway has answered by then.
- A refresh is due when a third of the shortest lifetime has passed, but at least every half hour, so that changes of
  the network arrive although no socket listens.
"""

from __future__ import annotations

from enum import Enum

from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.randomness import random_fraction
from ipam.dhcp.router_advertisement import Prefix, RouterAdvertisement
from process.values import replace

AUTO, DHCP, SLAAC = "auto", "dhcp", "slaac"  # ways to an address: the configuration's values
MODES = (DHCP, SLAAC, AUTO)

# Seconds after a solicitation until the next one, or until the end of the search. RFC 4861, section 10, has 4 s for
# all, and a random delay before the first; pods wait for this, and the first is often lost while a port comes up.
_PAUSES_S = (1.0, 4.0, 4.0)
_NO_GATEWAY_S = 1.0
_REFRESH_MIN_S, _REFRESH_MAX_S = 4.0, 1800.0
_REFRESH_PART, _SPREAD = 1 / 3, 0.1  # refreshes come up to this part earlier, so that pods do not refresh together
_SEARCH_MIN_S, _SEARCH_MAX_S = 60.0, 3600.0  # between searches while no router answers (RFC 7559: up to an hour)
_TWO_HOURS_S = 7200.0  # RFC 4862, section 5.5.3
_LIST_MAX = 16


class State(Enum):
    """The states of the client; only SEARCHING and REFRESHING listen."""

    STOPPED = "stopped"
    SEARCHING = "searching"
    WAITING = "waiting"
    BOUND = "bound"
    REFRESHING = "refreshing"


class Event(Enum):
    """A change that the caller acts on."""

    ADVERTISED = "advertised"  # `advertisement` is new, was refreshed, or a part of it has expired
    SILENT = "silent"  # no router answered a search


class RouterClient:
    """The client of one interface: `deadline` is when to call `expire`; answers can arrive until `listening_until`."""

    def __init__(self) -> None:
        self.state = State.STOPPED
        self.advertisement: RouterAdvertisement | None = None
        self.deadline = INFINITE_S
        self.listening_until = -INFINITE_S
        self._must_solicit = False
        self._tries = 0
        self._candidate: RouterAdvertisement | None = None
        self._give_up_at = INFINITE_S
        self._search_pause_s = _SEARCH_MIN_S
        self._refresh_at = INFINITE_S

    def take_solicitation(self) -> bool:
        """Returns whether to send a router solicitation now, and forgets it."""
        must_solicit, self._must_solicit = self._must_solicit, False
        return must_solicit

    def start(self, now: float, give_up_at: float = INFINITE_S) -> None:
        """Begins to search routers; ADVERTISED or SILENT follows, at `give_up_at` at the latest."""
        self.advertisement, self._give_up_at = None, give_up_at
        self._begin(State.SEARCHING, now)

    def resume(self, advertisement: RouterAdvertisement, now: float) -> None:
        """Continues with a stored advertisement of this boot; the first deadline is at once if a part has expired."""
        self.advertisement = advertisement
        self._bind(now)

    def stop(self) -> None:
        """Ends the search and the refreshes; there is no deadline then."""
        self.state, self.deadline, self.listening_until = State.STOPPED, INFINITE_S, -INFINITE_S

    def expire(self, now: float) -> Event | None:
        """Acts on a passed deadline; does nothing before it."""
        if now < self.deadline:
            return None
        if self.state in (State.SEARCHING, State.REFRESHING):
            return self._solicit_again(now)
        if self.state is State.WAITING:
            self._begin(State.SEARCHING, now)
            return None
        before = self.advertisement
        assert before is not None
        self.advertisement = remaining(before, now)
        if now >= self._refresh_at:
            self._begin(State.REFRESHING, now)
        else:
            self.deadline = min(self._refresh_at, _next_end(self.advertisement))
        return Event.ADVERTISED if self.advertisement != before else None

    def receive(self, received: RouterAdvertisement, now: float) -> Event | None:
        """Acts on a router advertisement, unless this client is not listening."""
        if self.state not in (State.SEARCHING, State.REFRESHING):
            return None
        current = self.advertisement
        is_expected = current is None or not current.lifetime_s or current.router == received.router
        if is_expected and received.lifetime_s:
            return self._accept(received, now)
        candidate_is_gateway = self._candidate is not None and self._candidate.lifetime_s > 0
        if received.lifetime_s or (is_expected and not candidate_is_gateway):
            self._candidate = received
        if is_expected:  # it is no gateway; another router may be
            self._tries = len(_PAUSES_S)
            self.deadline = self.listening_until = min(self.deadline, now + _NO_GATEWAY_S)
        return None

    def _begin(self, state: State, now: float) -> None:
        self.state, self._tries, self._candidate = state, 0, None
        self._solicit(now)

    def _solicit(self, now: float) -> None:
        self._must_solicit = True
        pause_s = _PAUSES_S[self._tries] * (1 + _SPREAD * random_fraction())
        self._tries += 1
        self.deadline = self.listening_until = max(now, min(now + pause_s, self._give_up_at))

    def _solicit_again(self, now: float) -> Event | None:
        """Solicits again or ends the search, with another router's advertisement if there is one."""
        if self._tries < len(_PAUSES_S) and now < self._give_up_at:
            self._solicit(now)
            return None
        if self._candidate is not None:
            return self._accept(self._candidate, now)
        self._give_up_at = INFINITE_S
        before = self.advertisement
        if before is None:
            self.state, self.listening_until = State.WAITING, -INFINITE_S
            self.deadline = now + self._search_pause_s * (1 - _SPREAD * random_fraction())
            self._search_pause_s = min(2 * self._search_pause_s, _SEARCH_MAX_S)
            return Event.SILENT
        self.advertisement = remaining(before, now)
        self._bind_silent(now)
        return Event.ADVERTISED if self.advertisement != before else None

    def _accept(self, received: RouterAdvertisement, now: float) -> Event:
        self.advertisement = merged(self.advertisement, received)
        self._give_up_at, self._search_pause_s = INFINITE_S, _SEARCH_MIN_S
        self._bind(now)
        return Event.ADVERTISED

    def _bind(self, now: float) -> None:
        """Waits for the next refresh of an advertisement."""
        advertisement = self.advertisement
        assert advertisement is not None
        period_s = _refresh_period(advertisement) * (1 - _SPREAD * random_fraction())
        self._wait_bound(max(now, advertisement.received_s + period_s))

    def _bind_silent(self, now: float) -> None:
        """Waits for the next refresh after one without an answer: half the time until a part expires."""
        assert self.advertisement is not None
        left_s = (_next_end(self.advertisement) - now) / 2
        if left_s == INFINITE_S:
            left_s = self._search_pause_s
            self._search_pause_s = min(2 * self._search_pause_s, _SEARCH_MAX_S)
        self._wait_bound(now + min(max(left_s, _REFRESH_MIN_S), _REFRESH_MAX_S))

    def _wait_bound(self, refresh_at: float) -> None:
        assert self.advertisement is not None
        self.state, self.listening_until, self._refresh_at = State.BOUND, -INFINITE_S, refresh_at
        self.deadline = min(refresh_at, _next_end(self.advertisement))


def choose_way(mode: str, advertisement: RouterAdvertisement | None) -> str:
    """Returns DHCP or SLAAC: for AUTO by the router's flag M.

    Without a router AUTO is DHCP, since a network may have a DHCPv6 server but no router (RFC 4862, section 5.5.2).
    """
    if mode != AUTO:
        return mode
    return DHCP if advertisement is None or advertisement.managed else SLAAC


def remaining(advertisement: RouterAdvertisement, now: float) -> RouterAdvertisement:
    """Returns an advertisement without the prefixes and the gateway that have expired at `now`; times stay."""
    start = advertisement.received_s
    prefixes = tuple(
        each if now < start + each.preferred_s else replace(each, preferred_s=0.0)
        for each in advertisement.prefixes
        if now < start + each.valid_s
    )
    lifetime_s = advertisement.lifetime_s if now < start + advertisement.lifetime_s else 0.0
    return replace(advertisement, lifetime_s=lifetime_s, prefixes=prefixes)


def merged(before: RouterAdvertisement | None, after: RouterAdvertisement) -> RouterAdvertisement:
    """Returns an advertisement with the still valid prefixes of an earlier one: a missing prefix is not withdrawn."""
    prefixes = {each.network: each for each in after.prefixes}
    if before is not None:
        age_s = after.received_s - before.received_s
        for each in remaining(before, after.received_s).prefixes:
            earlier = replace(each, valid_s=each.valid_s - age_s, preferred_s=max(0.0, each.preferred_s - age_s))
            announced = prefixes.get(each.network)
            prefixes[each.network] = _protected(announced, earlier) if announced else earlier
    return replace(after, prefixes=tuple(each for each in prefixes.values() if each.valid_s > 0)[:_LIST_MAX])


def _protected(announced: Prefix, earlier: Prefix) -> Prefix:
    """Returns an announced prefix with the valid lifetime that a host uses (RFC 4862, section 5.5.3).

    A forged advertisement could end addresses at once. Therefore a lifetime of two hours or less does not shorten the
    one that an autonomous prefix has, except to two hours.
    """
    is_safe = announced.valid_s > _TWO_HOURS_S or announced.valid_s > earlier.valid_s
    if is_safe or not earlier.autonomous:
        return announced
    return replace(announced, valid_s=min(earlier.valid_s, _TWO_HOURS_S))


def _refresh_period(advertisement: RouterAdvertisement) -> float:
    """Returns the time after which to solicit again."""
    shortest_s = min(_lifetimes(advertisement), default=INFINITE_S)
    return min(max(shortest_s * _REFRESH_PART, _REFRESH_MIN_S), _REFRESH_MAX_S)


def _next_end(advertisement: RouterAdvertisement) -> float:
    """Returns the time at which the first of an advertisement's lifetimes ends."""
    return advertisement.received_s + min(_lifetimes(advertisement), default=INFINITE_S)


def _lifetimes(advertisement: RouterAdvertisement) -> list[float]:
    lifetimes = [advertisement.lifetime_s]
    lifetimes += [lifetime_s for each in advertisement.prefixes for lifetime_s in (each.valid_s, each.preferred_s)]
    return [lifetime_s for lifetime_s in lifetimes if lifetime_s > 0]
