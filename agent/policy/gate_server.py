"""Answers ADD on the Unix socket: once the packet filter has what the cluster's policies say about the pod.

One rule: an answer names the generation of the file `namespaces` that the filter follows, and is sent after the
transaction. attachment/policy/gate.py has the other side, and the form of the lines.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

from attachment.policy import table
from process import directories
from process.loop import Loop

_QUEUE = 256  # runtimes start some hundred pods at once after a reboot
_MAX_REQUEST_BYTES = 4096


class GateRequest:
    """An ADD that waits for the record `record`; `revision` is that of the policies that it needs, None: not known."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.record = ""
        self.revision: int | None = None


class GateServer:
    """The server. `on_request` is called with each new request, which then waits in `waiting` for `answer`."""

    def __init__(self, loop: Loop, on_request: Callable[[GateRequest], None]) -> None:
        self._loop, self._on_request = loop, on_request
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._requests: dict[int, GateRequest] = {}  # by descriptor

    def start(self) -> None:
        """Starts to listen; the path shows only a socket that accepts. Raises OSError."""
        directories.create(table.DIRECTORY)
        draft = f"{table.GATE_SOCKET}.new"
        with suppress(FileNotFoundError):
            os.unlink(draft)  # of an agent that was killed
        self._socket.bind(draft)
        os.chmod(draft, 0o600)
        self._socket.listen(_QUEUE)
        self._socket.setblocking(False)
        os.rename(draft, table.GATE_SOCKET)  # ADDs that wait for it see this
        self._loop.watch(self._socket.fileno(), self._accept)

    def waiting(self) -> Iterator[GateRequest]:
        """Yields the requests that wait; the caller may answer them meanwhile."""
        yield from [request for request in self._requests.values() if request.record]

    def answer(self, request: GateRequest, generation: int) -> None:
        """Answers a request, and closes its connection."""
        with suppress(OSError):  # ADD has ended
            request.connection.send(json.dumps({"generation": generation}).encode() + b"\n")
        self._close(request)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
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
    """Returns the name of the record in a request, "" for anything else; the agent always has the newest generation."""
    try:
        request: object = json.loads(line)
    except ValueError:
        return ""
    name = request.get("record") if isinstance(request, dict) else None
    return name if isinstance(name, str) and name.isalnum() else ""
