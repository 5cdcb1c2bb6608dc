"""TCP connections between namespaces: a server that replies with the caller's address, and a client.

One rule: a test makes a whole connection, since both directions must be translated consistently.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.support.namespaces import Namespace
from tests.support.sockets import open_socket

PORT = 8080


@contextlib.contextmanager
def serving(namespace: Namespace, ip: str) -> Iterator[None]:
    """Runs the server on PORT of an address of `namespace` inside the block."""
    with open_socket(namespace, "tcp", ip, PORT) as server:
        server.settimeout(None)
        server.listen()
        thread = threading.Thread(target=_reply, args=(server,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)  # ends accept()
            thread.join()


def _reply(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, caller = server.accept()
            with connection:
                connection.sendall(caller[0].encode())


def source_address(namespace: Namespace, ip: str, port: int = PORT, *, timeout_s: float = 20.0) -> str:
    """Connects from `namespace`; returns the source address that the server sees, "" without a reply in time."""
    with open_socket(namespace, "tcp", "::" if ":" in ip else "0.0.0.0") as caller, contextlib.suppress(OSError):
        caller.settimeout(timeout_s)
        caller.connect((ip, port))
        return caller.recv(64).decode()
    return ""
