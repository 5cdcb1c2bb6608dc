"""How much passes between namespaces, over TCP and UDP, all from the test's own process.

One rule: what counts is the payload that arrives. Sending and receiving take turns in one thread, and nothing is lost
but in the network, so that a busy machine measures the same.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from dataclasses import dataclass

from tests.support.namespaces import Namespace
from tests.support.sockets import PORT, open_socket, service

_PATIENCE_S = 10.0
_CHUNK = 1 << 18  # one send or receive over TCP, at most
_WINDOW = 1 << 16  # less than a limit's queue holds, so that TCP never waits for what was dropped
_DATAGRAM = 1200
_BUFFER = 4 << 20  # what a busy machine does not fetch at once is not lost
_BACKLOG_S = 0.05  # a sender of datagrams that did not get its turn makes up for this much
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h


@dataclass(frozen=True)
class Transfer:
    """From where to where data flow. The receiver listens at `ip` and is called; with `answering` it is the sender.

    `called` is the address and port that is called, unless these are the listener's own.
    """

    sender: Namespace
    receiver: Namespace
    ip: str
    destination: tuple[str, int] | None = None
    server_sends: bool = False


def tcp(transfer: Transfer, *, after: int = 0, seconds: float = 0.5) -> float:
    """Returns the bits/s that arrive over TCP for about `seconds`, once `after` bytes have."""
    listening, calling = (
        (transfer.sender, transfer.receiver) if transfer.server_sends else (transfer.receiver, transfer.sender)
    )
    with service(listening, "tcp", transfer.ip) as server, open_socket(calling, "tcp", "0.0.0.0") as caller:
        _set_buffer(_WINDOW // 2, server.socket, caller)
        caller.connect(transfer.destination or (transfer.ip, PORT))
        accepted, _ = server.socket.accept()
        with accepted:
            source, sink = (accepted, caller) if transfer.server_sends else (caller, accepted)
            return _measured(_Stream(source, sink), after, seconds)


def udp(transfer: Transfer, offered: float, *, after: int = 0, seconds: float = 0.5) -> float:
    """Returns as `tcp` does what arrives over UDP when `offered` bits/s are sent."""
    with (
        service(transfer.receiver, "udp", transfer.ip) as server,
        open_socket(transfer.sender, "udp", "0.0.0.0") as caller,
    ):
        _set_buffer(_BUFFER, server.socket)
        caller.connect(transfer.destination or (transfer.ip, PORT))
        return _measured(_Datagrams(caller, server.socket, offered), after, seconds)


class _Stream:
    """A TCP connection that is kept full."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._source, self._sink = source, sink
        self._data, self._space = bytes(_CHUNK), bytearray(_CHUNK)
        source.setblocking(False)
        sink.setblocking(False)

    def turn(self) -> int:
        """Sends what can be sent and returns how many bytes arrived, 0 only when patience is at an end."""
        deadline = time.monotonic() + _PATIENCE_S
        while (left := deadline - time.monotonic()) > 0:
            ready, free, _ = select.select([self._sink], [self._source], [], left)
            if free:
                self._source.send(self._data)
            if ready:
                return self._sink.recv_into(self._space)
        return 0


class _Datagrams:
    """Datagrams that are sent at a pace, whatever becomes of them."""

    def __init__(self, source: socket.socket, sink: socket.socket, offered: float) -> None:
        self._source, self._sink = source, sink
        self._interval_s = _DATAGRAM * 8 / offered
        self._next = time.monotonic()
        self._data = bytes(_DATAGRAM)
        source.setblocking(False)
        sink.setblocking(False)

    def turn(self) -> int:
        """Sends what is due and returns how many bytes arrived, 0 only when patience is at an end."""
        deadline = time.monotonic() + _PATIENCE_S
        arrived = 0
        while not arrived and (now := time.monotonic()) < deadline:
            self._next = max(self._next, now - _BACKLOG_S)
            while self._next <= now:
                self._next += self._interval_s
                _unless_full(self._source, self._data)
            select.select([self._sink], [], [], max(0, self._next - time.monotonic()))
            while size := _fetched(self._sink):
                arrived += size
        return arrived


def _measured(flow: _Stream | _Datagrams, after: int, seconds: float) -> float:
    received = -after
    while received < 0:
        received += _some(flow)
    received, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        received += _some(flow)
    return received * 8 / (time.monotonic() - start)


def _some(flow: _Stream | _Datagrams) -> int:
    arrived = flow.turn()
    assert arrived, "nothing arrives any more"
    return arrived


def _unless_full(source: socket.socket, data: bytes) -> None:
    with contextlib.suppress(BlockingIOError):
        source.send(data)


def _fetched(sink: socket.socket) -> int:
    try:
        return len(sink.recv(_DATAGRAM))
    except BlockingIOError:
        return 0


def _set_buffer(size: int, *sockets: socket.socket) -> None:
    for item in sockets:
        item.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
