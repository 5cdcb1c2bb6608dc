"""Measures the rate between namespaces over TCP and UDP, with both sockets in the test's process.

One rule: only the received payload counts. One thread sends and receives in turn, so that data are lost only in the
network, and a busy machine measures the same rate.
"""

import contextlib
import select
import socket
import time
from dataclasses import dataclass

from tests.support.namespaces import Namespace
from tests.support.sockets import PORT, open_socket, service

_TIMEOUT_S = 30.0
_CHUNK = 1 << 18  # one send or receive over TCP, at most
_WINDOW = 1 << 16  # less than the queue of a limit, so that TCP never waits for a dropped segment
_DATAGRAM = 1200
_BUFFER = 4 << 20  # for datagrams that a busy machine receives late
_BACKLOG_S = 0.05  # a delayed sender of datagrams catches up on this much
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h


@dataclass(frozen=True)
class Transfer:
    """A sender and a receiver, which listens at `ip`; with `server_sends` the sender listens."""

    sender: Namespace
    receiver: Namespace
    ip: str
    server_sends: bool = False


def tcp(transfer: Transfer, *, after: int = 0, seconds: float = 0.5) -> float:
    """Returns the rate in bits/s that arrives over TCP, measured for `seconds` after the first `after` bytes."""
    listening, calling = (transfer.receiver, transfer.sender)[:: -1 if transfer.server_sends else 1]
    with service(listening, "tcp", transfer.ip) as server, open_socket(calling, "tcp", "0.0.0.0") as caller:
        _set_buffer(_WINDOW // 2, server.socket, caller)
        caller.connect((transfer.ip, PORT))
        accepted, _ = server.socket.accept()
        with accepted:
            source, sink = (accepted, caller) if transfer.server_sends else (caller, accepted)
            return _measure(_Stream(source, sink), after, seconds)


def udp(transfer: Transfer, offered: float, *, after: int = 0, seconds: float = 0.5) -> float:
    """Returns the rate that arrives over UDP when `offered` bits/s are sent; otherwise as `tcp`."""
    with (
        service(transfer.receiver, "udp", transfer.ip) as server,
        open_socket(transfer.sender, "udp", "0.0.0.0") as caller,
    ):
        _set_buffer(_BUFFER, server.socket)
        caller.connect((transfer.ip, PORT))
        return _measure(_Datagrams(caller, server.socket, offered), after, seconds)


def measure(
    transfer: Transfer, limit: int, protocol: str = "tcp", *, after: int | None = None, seconds: float = 0.5
) -> float:
    """Returns the rate of the arriving data as a fraction of `limit`, in bits/s.

    Measured for `seconds` after the first `after` bytes, by default after twice a burst of a tenth of a second.
    """
    after = limit // 8 // 5 if after is None else after
    if protocol == "tcp":
        return tcp(transfer, after=after, seconds=seconds) / limit
    return udp(transfer, 2 * limit, after=after, seconds=seconds) / limit


def assert_at_limit(
    transfer: Transfer, limit: int, protocol: str = "tcp", *, after: int | None = None, seconds: float = 0.5
) -> None:
    """Asserts that a rate is never 10 % above its limit, and in one of ten measurements at most 10 % below it."""
    fractions: list[float] = []
    while len(fractions) < 10 and (not fractions or fractions[-1] < 0.9):  # less on a machine that is busy
        fractions.append(measure(transfer, limit, protocol, after=after, seconds=seconds))
    assert 0.9 < max(fractions) < 1.1, fractions


class _Stream:
    """A TCP connection with a sender that always sends as much as possible."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._source, self._sink = source, sink
        self._data, self._space = bytes(_CHUNK), bytearray(_CHUNK)
        source.setblocking(False)
        sink.setblocking(False)

    def send_and_receive(self) -> int:
        """Sends as much as possible, and returns the number of received bytes, 0 after a timeout."""
        deadline = time.monotonic() + _TIMEOUT_S
        while (left := deadline - time.monotonic()) > 0:
            ready, free, _ = select.select([self._sink], [self._source], [], left)
            if free:
                self._source.send(self._data)
            if ready:
                return self._sink.recv_into(self._space)
        return 0


class _Datagrams:
    """Datagrams sent at a constant rate."""

    def __init__(self, source: socket.socket, sink: socket.socket, offered: float) -> None:
        self._source, self._sink = source, sink
        self._interval_s = _DATAGRAM * 8 / offered
        self._next = time.monotonic()
        self._data = bytes(_DATAGRAM)
        source.setblocking(False)
        sink.setblocking(False)

    def send_and_receive(self) -> int:
        """Sends the datagrams that are due, and returns the number of received bytes, 0 after a timeout."""
        deadline = time.monotonic() + _TIMEOUT_S
        arrived = 0
        while not arrived and (now := time.monotonic()) < deadline:
            self._next = max(self._next, now - _BACKLOG_S)
            while self._next <= now:
                self._next += self._interval_s
                with contextlib.suppress(BlockingIOError):
                    self._source.send(self._data)
            select.select([self._sink], [], [], max(0, self._next - time.monotonic()))
            while size := _receive_nonblocking(self._sink):
                arrived += size
        return arrived


def _measure(flow: _Stream | _Datagrams, after: int, seconds: float) -> float:
    received = -after
    while received < 0:
        received += _receive_some(flow)
    received, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        received += _receive_some(flow)
    return received * 8 / (time.monotonic() - start)


def _receive_some(flow: _Stream | _Datagrams) -> int:
    arrived = flow.send_and_receive()
    assert arrived, "no more data arrive"
    return arrived


def _receive_nonblocking(sink: socket.socket) -> int:
    try:
        return len(sink.recv(_DATAGRAM))
    except BlockingIOError:
        return 0


def _set_buffer(size: int, *sockets: socket.socket) -> None:
    for item in sockets:
        item.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
