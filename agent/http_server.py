"""Serves /healthz, /readyz and /metrics on a loopback address or a Unix socket, and actions on a Unix socket.

/healthz fails when a thread of the agent has stopped, so that kubelet restarts the agent. /readyz lists the conditions,
and fails unless all are met. More than a few clients at once are refused: kubelet and Prometheus are two.

One rule: a request that changes something (POST) is accepted only on a Unix socket, which only root can use.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from cni.errors import CniError, Code

OK, BAD_REQUEST, CONFLICT, UNAVAILABLE = 200, 400, 409, 503
_CLIENT_LIMIT_S = 10.0
_MAX_CLIENTS = 32
_MAX_BODY_BYTES = 1 << 20  # a space with thousands of pools has less
_TEXT, _METRICS = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"


class Answer(NamedTuple):
    """An answer: its HTTP status, its text and its content type."""

    status: int
    body: bytes
    kind: str = _TEXT


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of the agent
    """A request was refused or failed: `msg` is the cause, `details` the fix, `status` the HTTP status."""

    def __init__(self, msg: str, details: str = "", status: int = CONFLICT) -> None:
        super().__init__(msg)
        self.msg, self.details, self.status = msg, details, status

    def answer(self) -> Answer:
        """Returns the refusal as an answer."""
        return json_answer({"msg": self.msg, "details": self.details}, self.status)


Pages = dict[str, Callable[[], Answer]]
Actions = Mapping[str, Callable[[bytes], Answer]]


def json_answer(document: Mapping[str, object], status: int = OK) -> Answer:
    """Returns an answer with a JSON object."""
    return Answer(status, json.dumps(document).encode() + b"\n", "application/json")


def text_answer(text: str, *, ok: bool) -> Answer:
    """Returns a page of text, which fails unless it is `ok`."""
    return Answer(OK if ok else UNAVAILABLE, text.encode())


def metrics_answer(text: bytes) -> Answer:
    """Returns the page of metrics."""
    return Answer(OK, text, _METRICS)


def start(address: str, pages: Pages, actions: Actions | None = None) -> ThreadingHTTPServer:
    """Starts a server in a thread of its own; `address` is HOST:PORT or the path of a socket. Raises CniError(5).

    The actions, by path, get the body of a POST; over TCP there are none.
    """
    is_unix = address.startswith("/")

    class Handler(_Handler):
        def get_pages(self) -> Pages:
            return pages

        def get_actions(self) -> Actions | None:
            return (actions or {}) if is_unix else None

    try:
        server = _unix_server(address, Handler) if is_unix else _tcp_server(address, Handler)
    except (OSError, ValueError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        hint = "name another address with --listen: HOST:PORT or the path of a socket"
        raise CniError(Code.IO_FAILURE, f"cannot listen on {address}: {reason}", hint) from error
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def _unix_server(path: str, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Returns a server on a socket that only root can use; replaces the socket of an agent that was killed."""
    server = _UnixServer(("", 0), handler, bind_and_activate=False)
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    server.socket.bind(path)
    os.chmod(path, 0o600)
    server.server_bind()
    server.server_activate()
    return server


def _tcp_server(address: str, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return (_Server6 if ":" in host else _Server)((host, int(port)), handler)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET with the pages of the server, POST with its actions."""

    timeout = _CLIENT_LIMIT_S
    server_version = "podwire-agent"
    sys_version = ""

    def get_pages(self) -> Pages:
        raise NotImplementedError

    def get_actions(self) -> Actions | None:
        raise NotImplementedError

    def do_GET(self) -> None:
        page = self.get_pages().get(self.path.partition("?")[0])
        if page is None:
            self._send(Answer(404, b"the pages are /healthz, /readyz and /metrics\n"))
        else:
            self._send(page())

    def do_POST(self) -> None:
        actions = self.get_actions()
        action = actions.get(self.path) if actions is not None else None
        length = self.headers.get("Content-Length", "")
        if actions is None:
            self._send(Answer(405, b"POST is for the Unix socket of the agent only\n"))
        elif action is None:
            self._send(Answer(404, b"there is no such action\n"))
        elif not (length.isascii() and length.isdigit()) or len(length) > 9:
            self._send(Answer(411, b"the header Content-Length is missing\n"))
        elif int(length) > _MAX_BODY_BYTES:
            self._send(Answer(413, b"the body is too large\n"))
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):  # else the client has ended
                self._send(action(body))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        if answer.status == 405:
            self.send_header("Allow", "GET")
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *values: object) -> None:
        return

    def address_string(self) -> str:
        return "client"


_Request = socket.socket | tuple[bytes, socket.socket]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MAX_CLIENTS

    def server_activate(self) -> None:
        """Starts to listen."""
        self._places = threading.BoundedSemaphore(_MAX_CLIENTS)
        super().server_activate()

    def process_request(self, request: _Request, client_address: object) -> None:
        """Answers a client in a thread; closes its connection if too many others are connected."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: _Request, client_address: object) -> None:
        """Answers a client, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores a client that closes its connection early: the log has JSON lines only."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _UnixServer(_Server):
    """A server on a Unix socket; http.server knows only addresses with a port."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.server_name, self.server_port = "podwire-agent", 0
