"""A proxy of TCP connections in front of a real server that loses answers, requests, or both directions.

One rule: it forwards bytes and does not read them, so it works with TLS, too.

`python -m tests.support.cutting_proxy URL HOST PORT` runs it as a process, which a test can stop.
"""

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from enum import Enum, auto
from typing import Self


class Mode(Enum):
    """What happens to the bytes of open connections."""

    FORWARD = auto()
    LOSE_ANSWER = auto()  # the request arrives; the connection is cut when the server answers
    LOSE_REQUEST = auto()  # the connection is cut when the client sends
    STALL = auto()  # nothing arrives, and nothing is cut


class CuttingProxy:
    """The proxy, which listens at `listen`; `url` replaces the server's."""

    def __init__(self, url: str, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        scheme, _, address = url.partition("://")
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(listen)
        self.url = f"{scheme}://{listen[0]}:{self._listener.getsockname()[1]}"
        self.mode = Mode.FORWARD
        self._sockets: list[socket.socket] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Forwards connections inside the block."""
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for sock in self._sockets:
                _end(sock)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += (client, server)
                for source, target, losing in ((client, server, Mode.LOSE_REQUEST), (server, client, Mode.LOSE_ANSWER)):
                    threading.Thread(target=self._forward, args=(source, target, losing), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, losing: Mode) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.mode is losing:
                    break
                if self.mode is not Mode.STALL:
                    target.sendall(data)
        _end(source)
        _end(target)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    with CuttingProxy(sys.argv[1], (sys.argv[2], int(sys.argv[3]))).running():
        signal.pause()
