"""A TCP connection that carries one full-size segment in each direction.

Each segment is sent alone, with the size of the path's MTU and the DF bit, so that no offload of the kernel splits or
merges it: an interface on the way with a smaller MTU loses it, although the connection is established.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from contextlib import ExitStack
from enum import StrEnum

from cni.address import Address
from kernel.netfilter.nft_trace import Tuple
from podwire.trace.place import Place

_TCP_MAXSEG = 2  # linux/tcp.h
_LINGER_NOTHING = struct.pack("ii", 1, 0)  # a close resets the connection, and leaves nothing in state TIME_WAIT
_CHUNK_BYTES = 1 << 16


class Stage(StrEnum):
    """The stage that a transfer reached."""

    CONNECT = "no connection"
    REQUEST = "full-size segments are lost on the way to the destination"
    ANSWER = "full-size segments are lost on the way back"
    DONE = "done"


class PortInUseError(Exception):
    """A program of the target listens at the port."""


class Transfer:
    """A transfer from a place to a port at `target`, where it listens (0: any); the client connects to `port`.

    A context manager. Raises PortInUseError, OSError.
    """

    def __init__(
        self, source: Place, source_address: Address, destination: Address, target: Place, target_port: int, port: int,
        timeout_s: float,
    ) -> None:  # fmt: skip
        self.source, self.source_address, self.destination = source, source_address, destination
        self.stage = Stage.CONNECT
        self.error = 0
        self.elapsed_s = 0.0
        self.segment_bytes = 0
        self._timeout_s = timeout_s
        self._started_s = 0.0
        self._peer: socket.socket | None = None
        self._to_send = self._received = self._answered = 0
        self._stack = ExitStack()
        try:
            self._server = self._open(target)
            self._listen(target_port)
            self.port = port or self._server.getsockname()[1]
            self._client = self._open(source)
            self._client.bind((str(source_address), 0))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def tracked(self) -> Tuple:
        """The tuple of the connection."""
        return Tuple(6, self.source_address, self.source_port, self.destination, self.port)

    @property
    def source_port(self) -> int:
        """The client's port."""
        port: int = self._client.getsockname()[1]
        return port

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that are readable when there is something to `feed`."""
        return [one.fileno() for one in (self._server, self._client, self._peer) if one]

    @property
    def is_done(self) -> bool:
        """Whether the transfer ended, or time is up."""
        return self.stage is Stage.DONE or bool(self.error) or self.wait_s <= 0

    @property
    def wait_s(self) -> float:
        """The seconds until time is up; short until the connection stands, since that makes no descriptor readable."""
        left = self._started_s + self._timeout_s - time.monotonic() if self._started_s else self._timeout_s
        return min(left, 0.01) if self.stage is Stage.CONNECT else left

    def feed(self) -> None:
        """Continues the transfer as far as possible without waiting."""
        if not self._started_s:
            self._started_s = time.monotonic()
            self._client.connect_ex((str(self.destination), self.port))
        try:
            self._continue()
        except BlockingIOError:
            return
        except OSError as error:
            self.error = error.errno or errno.EIO

    def _continue(self) -> None:
        if self._peer is None:
            self._accept()
        if self.stage is Stage.CONNECT and self._is_connected():
            self.segment_bytes = self._client.getsockopt(socket.IPPROTO_TCP, _TCP_MAXSEG)
            self.stage = Stage.REQUEST
            self._client.send(bytes(self.segment_bytes))
        if self._peer is not None and self.stage is Stage.REQUEST:
            self._received += len(self._peer.recv(_CHUNK_BYTES))
            if self._received >= self.segment_bytes:
                self.stage = Stage.ANSWER
                self._to_send = self._peer.getsockopt(socket.IPPROTO_TCP, _TCP_MAXSEG)
                self._peer.send(bytes(self._to_send))
        if self.stage is Stage.ANSWER:
            self._answered += len(self._client.recv(_CHUNK_BYTES))
            if self._answered >= self._to_send:
                self.stage = Stage.DONE
                self.elapsed_s = time.monotonic() - self._started_s

    def _accept(self) -> None:
        try:
            self._peer, _ = self._server.accept()
        except BlockingIOError:
            return
        self._peer.setblocking(False)
        self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOTHING)
        self._stack.enter_context(self._peer)

    def _is_connected(self) -> bool:
        self.error = self._client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        try:
            self._client.getpeername()
        except OSError:
            return False
        return not self.error

    def _open(self, place: Place) -> socket.socket:
        family = socket.AF_INET if self.destination.version == 4 else socket.AF_INET6
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        new = place.call(lambda: socket.socket(family, kind))
        self._stack.enter_context(new)
        new.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOTHING)
        if family == socket.AF_INET6:
            new.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        return new

    def _listen(self, port: int) -> None:
        try:
            self._server.bind(("", port))
            self._server.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError from error
            raise
