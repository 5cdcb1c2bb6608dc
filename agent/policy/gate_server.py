"""Serves the Unix socket on which ADD waits until the packet filter has the pod's policies.

One rule: the answer is sent after the transaction of the packet filter, and has the generation of the file `namespaces`
that was current then. attachment/policy/gate.py is the client, and describes request and answer.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from attachment.policy import table
from process import directories
from process.loop import Loop

_BACKLOG = 256  # runtimes start some hundred pods at once after a reboot
_MAX_REQUEST_BYTES = 4096


class GateRequest:
    """An ADD that waits; `record` is the name of the pod's record, "" until the request has arrived.

    With `strict` it has no answer until `is_current`: the main thread has the policies that the pod needs.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.record = ""
        self.is_current = False


class GateServer:
    """The server. `on_request` is called with each new request; `waiting` yields it until `answer` is called."""

    def __init__(self, loop: Loop, on_request: Callable[[GateRequest], None]) -> None:
        self._loop, self._on_request = loop, on_request
        self._socket: socket.socket | None = None
        self._inode = 0
        self._requests: dict[int, GateRequest] = {}  # by descriptor

    def start(self) -> None:
        """Starts to listen, and only then renames the socket to its path; raises OSError.

        Called again, it replaces the socket.
        """
        if self._socket:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
        listener = self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directories.create(table.DIRECTORY)
        draft = f"{table.GATE_SOCKET}.new"
        with suppress(FileNotFoundError):
            os.unlink(draft)  # from an agent that was killed
        listener.bind(draft)
        os.chmod(draft, 0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._inode = os.stat(draft).st_ino
        os.rename(draft, table.GATE_SOCKET)  # ADDs that wait for the path may connect from now on
        self._loop.watch(listener.fileno(), partial(self._accept, listener))

    def is_reachable(self) -> bool:
        """Returns whether the path is still that of this socket."""
        try:
            return os.stat(table.GATE_SOCKET).st_ino == self._inode
        except OSError:
            return False

    def waiting(self) -> Iterator[GateRequest]:
        """Yields the requests without an answer; the caller may answer them while it iterates."""
        yield from [request for request in self._requests.values() if request.record]

    def answer(self, request: GateRequest, generation: int) -> None:
        """Answers a request, and closes its connection."""
        with suppress(OSError):  # ADD has ended
            request.connection.send(json.dumps({"generation": generation}).encode() + b"\n")
        self._close(request)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        request = self._requests[connection.fileno()] = GateRequest(connection)
        self._loop.watch(connection.fileno(), lambda: self._read(request))

    def _read(self, request: GateRequest) -> None:
        try:
            line = request.connection.recv(_MAX_REQUEST_BYTES)
        except OSError:
            line = b""
        name = "" if request.record else _record_of(line)
        if not name:  # ADD has ended, or this is no request
            self._close(request)
            return
        request.record = name
        self._on_request(request)

    def _close(self, request: GateRequest) -> None:
        self._loop.unwatch(request.connection.fileno())
        self._requests.pop(request.connection.fileno(), None)
        request.connection.close()


def _record_of(line: bytes) -> str:
    """Returns the record's name in a request, "" if it is malformed; the client checks the generation."""
    try:
        request: object = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    name = request.get("record") if isinstance(request, dict) else None
    return name if isinstance(name, str) and name.isalnum() else ""
