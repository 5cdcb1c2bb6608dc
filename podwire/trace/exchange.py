"""One marked packet and its answer: sends it, observes it in the places on its way, and answers it at its destination.

An exchange needs no server in the destination: it opens a socket there, unless a program of the pod uses the port.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from cni.address import Address
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_chains
from kernel.netfilter.nft_trace import TraceEvent, Tracer, Tuple
from kernel.packet_tap import (
    ANSWER,
    ERROR,
    PROTOCOLS,
    REFUSAL,
    REQUEST,
    TCP,
    UDP,
    Probe,
    Sender,
    Sighting,
    Tap,
    new_token,
)
from kernel.rtnl import wait_readable
from podwire.trace.place import NODE, Place
from process.values import dataclass, field

NAMES = {TCP: "tcp", UDP: "udp", 1: "icmp", 58: "icmp"}
_BACKLOG = 4


class Flow(NamedTuple):
    """A packet to send: from a place and address to an address, to a port (0: an ICMP echo).

    `target` is the place where it should arrive, None if that is not on this node, and `target_port` the port there.
    `size` is its length in bytes, 0 for a small one; such a packet must not be fragmented.
    """

    source: Place
    source_address: Address
    destination: Address
    protocol: int
    port: int = 0
    target: Place | None = None
    target_port: int = 0
    size: int = 0

    @property
    def version(self) -> int:
        """The IP version."""
        return self.destination.version

    @property
    def is_echo(self) -> bool:
        """Whether it is an ICMP echo."""
        return self.protocol in PROTOCOLS.values()

    def __str__(self) -> str:
        port = "" if self.is_echo else f" port {self.port}"
        return f"{NAMES[self.protocol]} {self.source_address} > {self.destination}{port}"


@dataclass
class Observation:
    """The observed packets of an exchange, by place; answers that the source received; events of nftables, by place.

    `send_error` is the errno of a send that the kernel refused. `is_served` is False if a program of the target uses
    the port, `has_server` is True if this exchange listens there, `is_observed` if the target is observed. `blind`
    describes what could not be observed. `discards` are the kernel's counters that grew by one or more for each packet.
    """

    flow: Flow
    source_port: int = 0
    sightings: list[tuple[Place, Sighting]] = field(default_factory=list)
    received: list[Sighting] = field(default_factory=list)
    events: list[tuple[Place, TraceEvent]] = field(default_factory=list)
    send_error: int = 0
    sent: int = 0
    answered_after_s: float | None = None
    is_served: bool = True
    has_server: bool = False
    is_observed: bool = True
    blind: list[str] = field(default_factory=list)
    discards: list[tuple[Place, str]] = field(default_factory=list)

    def seen(self, place: Place | None, kinds: Sequence[str], *, outgoing: bool | None = None) -> list[Sighting]:
        """Returns the packets of some kinds seen in a place, in both directions or one."""
        return [
            one
            for where, one in self.sightings
            if where is place and one.kind in kinds and outgoing in (None, one.is_outgoing)
        ]

    @property
    def answer(self) -> Sighting | None:
        """The first answer or refusal that the source received, else an ICMP error that arrived there."""
        kinds = (ANSWER, REFUSAL)
        received = [one for one in self.received if one.kind in kinds and one.source == self.flow.destination]
        errors = [one for one in self.seen(self.flow.source, (ERROR,)) if self.flow.source.has(one.destination)]
        return next(iter([*received, *errors]), None)

    @property
    def mark(self) -> int:
        """The packet's mark, which rules of the node set (fwmark), as the last event of the trace shows it."""
        return next((event.mark for place, event in reversed(self.events) if place.kind == NODE and event.mark), 0)

    @property
    def untranslated_answer(self) -> Sighting | None:
        """An answer that the source received from another address than the packet was sent to."""
        kinds = (ANSWER, REFUSAL)
        return next((one for one in self.received if one.kind in kinds and one.source != self.flow.destination), None)

    @property
    def arrival(self) -> Sighting | None:
        """The request as it arrived at the target, None if it did not, or if the target is not observed."""
        target = self.flow.target
        if target is None:
            return None
        arrived = self.seen(target, (REQUEST,), outgoing=False)
        if target is self.flow.source:  # a hairpin: the packet comes back
            arrived = [one for one in arrived if not one.is_for_another]
        return next((one for one in arrived if not one.is_for_another), None)


class Exchange:
    """Sends the packet of a flow up to `tries` times, `interval_s` apart, and observes. A context manager.

    `places` are observed beside the source and the target; with `rules` nftables' trace is read in all of them, for the
    packets of the flow and of `answers`. Without `taps` only the answer is observed: to close a packet socket takes the
    kernel some 10 ms (RCU), which matters for hundreds of paths.
    """

    def __init__(
        self,
        flow: Flow,
        places: Iterable[Place] = (),
        *,
        rules: bool = False,
        taps: bool = True,
        answers: Sequence[Tuple] = (),
        tries: int = 3,
        interval_s: float = 0.3,
        source_port: int = 0,
    ) -> None:
        self.flow = flow
        self.seen = Observation(flow)
        self.tries, self.interval_s = tries, interval_s
        self._stack = ExitStack()
        self._token = new_token(flow.protocol, flow.port)
        self._taps: list[tuple[Place, Tap]] = []
        self._tracers: list[tuple[Place, Tracer]] = []
        self._server: socket.socket | None = None
        self._started_s = self._next_s = 0.0
        try:
            observed = [flow.source, *places, *([flow.target] if flow.target else [])] if taps else []
            self.seen.is_observed = taps
            self._open(dict.fromkeys(observed), source_port)
            if rules:
                self._trace(answers)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that are readable when there is something to `feed`."""
        server = [self._server.fileno()] if self._server else []
        return [self._sender.fileno(), *(tap.fileno() for _, tap in self._taps), *server]

    @property
    def is_done(self) -> bool:
        """Whether the answer has arrived, or time is up."""
        if self.seen.send_error or self.seen.answered_after_s is not None:
            return True
        return self.seen.sent >= self.tries and time.monotonic() >= self._next_s

    @property
    def wait_s(self) -> float:
        """The seconds until the next packet has to be sent, or time is up."""
        return max(0.0, self._next_s - time.monotonic())

    def feed(self) -> None:
        """Sends a packet if it is time, and reads what has arrived."""
        if not self._started_s:
            self._started_s = self._next_s = time.monotonic()
        if self.seen.sent < self.tries and time.monotonic() >= self._next_s:
            self._send()
        self._serve()
        self.seen.received += self._sender.receive()
        for place, tap in self._taps:
            self.seen.sightings += [(place, one) for one in tap.read()]
        if self.seen.answer and self.seen.answered_after_s is None:
            self.seen.answered_after_s = time.monotonic() - self._started_s

    def finish(self) -> Observation:
        """Reads the trace, and returns what was seen."""
        for place, tap in self._taps:
            self.seen.sightings += [(place, one) for one in tap.read()]
        self.seen.sightings.sort(key=lambda pair: pair[1].time_s)
        for place, tracer in self._tracers:
            self.seen.events += [(place, event) for event in tracer.read()]
        return self.seen

    def _open(self, places: Iterable[Place], source_port: int) -> None:
        flow = self.flow
        for place in places:
            tap = self._stack.enter_context(place.call(lambda: Tap(flow.version, [self._token])))
            self._taps.append((place, tap))
        self.seen.source_port = self._reserve_port(source_port)
        self._sender = self._stack.enter_context(
            flow.source.call(lambda: Sender(flow.protocol, flow.source_address, self._token))
        )
        if flow.target and not flow.is_echo and flow.target_port:
            self._server = self._open_server(flow.target, flow.target_port)

    def _reserve_port(self, desired: int) -> int:
        """Binds a port in the source, so that no other program uses it, and returns it; an echo's ID is random."""
        flow = self.flow
        if flow.is_echo:
            return desired or int.from_bytes(os.urandom(2), "big") | 1
        kind = socket.SOCK_STREAM if flow.protocol == TCP else socket.SOCK_DGRAM
        reserved = self._stack.enter_context(flow.source.call(lambda: _new_socket(flow.version, kind)))
        reserved.bind((str(flow.source_address), desired))
        port: int = reserved.getsockname()[1]
        return port

    def _open_server(self, place: Place, port: int) -> socket.socket | None:
        kind = socket.SOCK_STREAM if self.flow.protocol == TCP else socket.SOCK_DGRAM
        server = place.call(lambda: _new_socket(self.flow.version, kind))
        self._stack.enter_context(server)
        try:
            server.bind(("", port))
            if self.flow.protocol == TCP:
                server.listen(_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self.seen.is_served = False
            return None
        self.seen.has_server = True
        return server

    def _trace(self, answers: Sequence[Tuple]) -> None:
        flow, port = self.flow, self.seen.source_port
        tuples = [Tuple(flow.protocol, flow.source_address, port, flow.destination, flow.port), *answers]
        for place, _ in self._taps:
            try:
                with place.entered():
                    tracer = self._stack.enter_context(Tracer())
                    tracer.start(tuples)
                self._tracers.append((place, tracer))
            except nft.UnavailableError:
                continue
            except KernelError as error:
                if error.errno not in nft.ABSENT_ERRNOS or place.call(_has_chains):
                    self.seen.blind.append(f"rules of nftables in {place}: {error}")

    def _send(self) -> None:
        flow = self.flow
        probe = Probe(
            flow.protocol,
            flow.source_address,
            self.seen.source_port,
            flow.destination,
            flow.port,
            self._token,
            flow.size,
        )
        self._next_s = time.monotonic() + self.interval_s
        self.seen.sent += 1
        try:
            self._sender.send(probe)
        except OSError as error:
            self.seen.send_error = error.errno or errno.EIO

    def _serve(self) -> None:
        """Answers UDP packets, with their size; the kernel answers TCP's."""
        if self._server is None or self.flow.protocol != UDP:
            return
        while wait_readable([self._server.fileno()], 0):
            try:
                data, sender = self._server.recvfrom(1 << 16)
                if data[:4] == self._token.to_bytes(4, "big"):
                    self._server.sendto((self._token + 1).to_bytes(4, "big") + data[4:], sender)
            except OSError:  # an ICMP error about an earlier answer
                continue


def observe(exchange: Exchange) -> Observation:
    """Runs an exchange to its end."""
    exchange.feed()
    while not exchange.is_done:
        wait_readable(exchange.descriptors, exchange.wait_s + 0.001)
        exchange.feed()
    return exchange.finish()


def answer_tuples(seen: Observation) -> list[Tuple]:
    """Returns the tuples of the answers of a request that arrived at its target, for the trace of a second exchange."""
    arrival = seen.arrival
    if arrival is None:
        return []
    there = Tuple(seen.flow.protocol, arrival.source, arrival.source_port, arrival.destination, arrival.port)
    return [there.reversed()]


def _has_chains() -> bool:
    """Returns whether the current namespace has chains of nftables, which a kernel without family inet cannot trace."""
    with nft.open_socket() as socket_:
        return bool(nft_chains.list_chains(socket_))


def _new_socket(version: int, kind: int) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    new = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    if version == 6:
        new.setsockopt(41, 26, 1)  # IPV6_V6ONLY
    level, option = (0, 10) if version == 4 else (41, 23)
    new.setsockopt(level, option, 3)  # IP_PMTUDISC_PROBE: answers have DF set
    return new
