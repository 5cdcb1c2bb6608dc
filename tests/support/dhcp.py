"""The address of a DHCP server, the keys of a network for a daemon, and a daemon that a test scripts."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ipam.dhcp.rpc import Connection, RpcCall

SERVER = "10.25.0.1"


def ipam_keys(directory: Path) -> dict[str, str]:
    """Returns the keys of `ipam` for the socket and the lease files of a daemon with these files."""
    return {"dataDir": str(directory / "data"), "daemonSocketPath": str(directory / "run" / "dhcp.sock")}


@contextmanager
def answering_calls(path: Path, answer: Callable[[Connection, RpcCall], bytes]) -> Iterator[list[RpcCall]]:
    """Runs a daemon that answers every call by a function of the test during the block; yields the calls."""
    calls: list[RpcCall] = []

    def serve() -> None:
        with suppress(OSError):  # until `listening` is shut down
            while True:
                connection, _ = listening.accept()
                with connection, suppress(ConnectionError):  # also of `answer`, which ends the connection
                    server = Connection()
                    while data := connection.recv(4096):
                        received = server.receive(data)
                        calls.extend(received)
                        connection.sendall(server.data_to_send() + b"".join(answer(server, call) for call in received))

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield calls
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(30)
