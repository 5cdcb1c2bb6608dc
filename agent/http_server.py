"""Serves /healthz, /readyz and /metrics on a loopback address or a Unix socket.

/healthz fails when a thread of the agent has stopped, so that kubelet restarts the agent. /readyz lists the conditions,
and fails unless all are met. More than a few clients at once are refused: kubelet and Prometheus are two.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from cni.errors import CniError, Code

_CLIENT_LIMIT_S = 10.0
_MAX_CLIENTS = 32
_TEXT, _METRICS = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"


class Page(NamedTuple):
    """An answer: its status, 200 or 503, its text and its content type."""

    ok: bool
    body: bytes
    kind: str = _TEXT


Pages = dict[str, Callable[[], Page]]


def metrics_page(text: bytes) -> Page:
    """Returns the page of metrics."""
    return Page(True, text, _METRICS)


def start(address: str, pages: Pages) -> ThreadingHTTPServer:
    """Starts a server in a thread of its own; `address` is HOST:PORT or the path of a socket. Raises CniError(5)."""

    class Handler(_Handler):
        def get_pages(self) -> Pages:
            return pages

    try:
        server = _unix_server(address, Handler) if address.startswith("/") else _tcp_server(address, Handler)
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
    """Answers GET requests with the pages of the server."""

    timeout = _CLIENT_LIMIT_S
    server_version = "podwire-agent"
    sys_version = ""

    def get_pages(self) -> Pages:
        raise NotImplementedError

    def do_GET(self) -> None:
        page = self.get_pages().get(self.path.partition("?")[0])
        answer = page() if page else Page(False, b"the pages are /healthz, /readyz and /metrics\n")
        self.send_response(404 if page is None else 200 if answer.ok else 503)
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
