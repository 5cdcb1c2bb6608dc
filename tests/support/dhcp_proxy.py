"""A proxy between dhcp's plugin and daemon that withholds the daemon's answer to the first call."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Proxy:
    """`has_answered` is set when the daemon has answered the first call; later connections pass the proxy unchanged."""

    def __init__(self, path: Path, daemon: Path) -> None:
        self.has_answered = threading.Event()
        self._daemon = daemon
        self._first: socket.socket | None = None
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close_first(self) -> None:
        """Closes the connection of the first call, as a daemon that ends does."""
        assert self._first is not None
        self._first.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Refuses further connections; closing alone would not, while a thread waits in accept(2)."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                is_first = self._first is None
                self._first = self._first or client
                daemon = socket.socket(socket.AF_UNIX)
                daemon.connect(str(self._daemon))
                threading.Thread(target=self._copy, args=(client, daemon, False), daemon=True).start()
                threading.Thread(target=self._copy, args=(daemon, client, is_first), daemon=True).start()

    def _copy(self, source: socket.socket, destination: socket.socket, is_withheld: bool) -> None:
        """Copies what comes from a socket; of the daemon's first connection only the answer to CONNECT."""
        with suppress(OSError):
            chunks = 0
            while data := source.recv(1 << 16):
                chunks += 1
                if is_withheld and chunks > 1:
                    self.has_answered.set()
                else:
                    destination.sendall(data)
            destination.shutdown(socket.SHUT_WR)


@contextmanager
def withholding(path: Path, daemon: Path) -> Iterator[Proxy]:
    """Yields a proxy that listens at `path`."""
    proxy = Proxy(path, daemon)
    try:
        yield proxy
    finally:
        proxy.close()
