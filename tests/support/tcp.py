"""TCP connections between namespaces: a server that replies with the caller's address, and a client.

One rule: a test makes a whole connection, since both directions must be translated consistently.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tests.support.namespaces import Namespace

PORT = 8080

_SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
print("listening", flush=True)
while True:
    connection, caller = server.accept()
    connection.sendall(caller[0].encode())
    connection.close()
"""
_CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as connection:
    print(connection.recv(64).decode(), end="")
"""


@contextlib.contextmanager
def serving(namespace: Namespace, ip: str) -> Iterator[None]:
    """Runs the server on PORT of an address of `namespace` inside the block."""
    line = ["nsenter", f"--net={namespace.path}", "--", sys.executable, "-c", _SERVER, ip, str(PORT)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        yield
    finally:
        process.kill()
        process.communicate()


def source_address(namespace: Namespace, ip: str, port: int = PORT) -> str:
    """Connects from `namespace`; returns the source address that the server sees, "" without a reply within 20 s."""
    return namespace.run(sys.executable, "-c", _CLIENT, ip, str(port), check=False)
