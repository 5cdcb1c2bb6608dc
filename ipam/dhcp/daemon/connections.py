"""The daemon's unix socket: accepting connections, reading calls, writing answers, without blocking.

One rule: a client that sends nothing, or reads nothing, costs a descriptor and a bounded buffer; it delays no
other client.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial

from cni.result import Result
from ipam.dhcp.daemon.service import Answer, Service
from ipam.dhcp.gob import MalformedGob
from ipam.dhcp.rpc import Connection, RpcCall
from process.loop import Loop, now

_CHUNK_BYTES = 1 << 16
_MAX_UNSENT_BYTES = 1 << 20
_METRICS_PATH = "/metrics"
_ACCEPT_PAUSE_S = 1.0


class ConnectionListener:
    """Accepts connections on a listening socket and passes their calls to `service`."""

    def __init__(self, listening: socket.socket, loop: Loop, service: Service) -> None:
        self._listening = listening
        self._loop = loop
        self._service = service
        listening.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self._loop.watch(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:  # too many open files: the event would come again at once
                self._loop.unwatch(self._listening.fileno())
                self._loop.call_at(now() + _ACCEPT_PAUSE_S, self._listen)
                return
            _Peer(accepted, self._loop, self._service)


class _Peer:
    """A connected client."""

    def __init__(self, accepted: socket.socket, loop: Loop, service: Service) -> None:
        self._socket = accepted
        self._loop = loop
        self._service = service
        self._connection = Connection()
        self._unsent = bytearray()
        self._unanswered: dict[int, Answer] = {}
        self._is_last = False
        accepted.setblocking(False)
        loop.watch(accepted.fileno(), self._ready)

    def _ready(self) -> None:
        """Writes what is unsent, and reads."""
        self._flush()
        if self._socket.fileno() < 0:
            return
        try:
            data = self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        try:
            calls = self._connection.receive(data)
        except MalformedGob:
            self._close()
            return
        self._write(self._connection.data_to_send())
        if self._connection.http_request is not None:
            self._answer_http(self._connection.http_request)
        for call in calls:
            respond = self._unanswered[call.seq] = partial(self._respond, call)
            self._service.answer(call.method, call.args, respond)

    def _respond(self, call: RpcCall, answer: Result | str | None) -> None:
        """Sends the answer to a call; a client that has gone gets none, and its runtime runs DEL."""
        self._unanswered.pop(call.seq, None)
        if self._socket.fileno() >= 0:
            if isinstance(answer, str):
                self._write(self._connection.refuse(call, answer))
            else:
                self._write(self._connection.reply(call, answer))

    def _answer_http(self, path: str) -> None:
        body = (self._service.metrics() if path == _METRICS_PATH else "404 page not found\n").encode()
        status = "200 OK" if path == _METRICS_PATH else "404 Not Found"
        head = f"HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
        self._is_last = True
        self._write(head.encode() + body)

    def _write(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def _flush(self) -> None:
        if self._unsent:
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except BlockingIOError:
                pass
            except OSError:
                self._close()
                return
        if len(self._unsent) > _MAX_UNSENT_BYTES or (self._is_last and not self._unsent):
            self._close()
            return
        self._loop.watch(self._socket.fileno(), self._ready, writable=bool(self._unsent))

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.unwatch(self._socket.fileno())
            with suppress(OSError):
                self._socket.close()
        while self._unanswered:
            self._service.withdraw(self._unanswered.popitem()[1])
