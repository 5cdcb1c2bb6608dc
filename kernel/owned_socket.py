"""The end of an object that owns a socket."""

from __future__ import annotations

import socket
from typing import Self


class OwnedSocket:
    """A context manager that closes its socket."""

    _socket: socket.socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket; a second call does nothing."""
        self._socket.close()

    def fileno(self) -> int:
        """Returns the descriptor, for poll."""
        return self._socket.fileno()
