"""Services and calls between namespaces, over TCP, UDP and SCTP, all from the test's own process.

A socket stays in the namespace where it was made, so that no process need be there.

One rule: a call counts only when its answer comes back from where it was sent to: both directions must fit together.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from tests.support.namespaces import Namespace

PORT = 80  # of the services in pods

_KINDS = {
    "tcp": (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    "udp": (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
    "sctp": (socket.SOCK_STREAM, socket.IPPROTO_SCTP),
}
_PATIENCE_S = 2.0  # a neighbour may have to be asked for twice
NO_ANSWER_S = 0.4  # between two calls that are answered, in milliseconds
_BUFFER = 100


class Service(NamedTuple):
    """A listening socket with a name that its answers carry."""

    name: str
    protocol: str
    socket: socket.socket


class Reached(NamedTuple):
    """Which service a call reached, and the caller's address as it saw it."""

    name: str
    source: str


@contextlib.contextmanager
def service(namespace: Namespace, protocol: str, ip: str, port: int = PORT, name: str = "") -> Iterator[Service]:
    """Yields a service at an address of `namespace`, whose name is its own unless given."""
    with open_socket(namespace, protocol, ip, port) as own:
        if protocol != "udp":
            own.listen()
        yield Service(name or namespace.name, protocol, own)


@contextlib.contextmanager
def open_socket(namespace: Namespace, protocol: str, ip: str, port: int = 0) -> Iterator[socket.socket]:
    """Yields a socket in `namespace`, of the family of `ip` and bound to `ip` and `port`."""
    kind, number = _KINDS[protocol]
    with namespace.entered():
        own = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, kind, number)
    with own:
        own.settimeout(_PATIENCE_S)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if own.family == socket.AF_INET6:
            own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        own.bind((ip, port))
        yield own


def call(
    services: list[Service],
    namespace: Namespace,
    protocol: str,
    ip: str,
    port: int,
    *,
    patience_s: float = _PATIENCE_S,
) -> Reached | None:
    """Calls `ip` `port` from `namespace`; returns whom it reached, None when there is no answer, or a foreign one."""
    with open_socket(namespace, protocol, "::" if ":" in ip else "0.0.0.0") as caller:
        caller.settimeout(patience_s)
        if protocol == "udp":
            return ask(services, caller, ip, port, patience_s=patience_s)
        try:
            caller.connect((ip, port))
        except OSError:
            return None
        found = _waiting(services, protocol, patience_s)
        if not found:
            return None
        connection, source = found.socket.accept()
        with connection:
            connection.sendall(found.name.encode())
            return Reached(found.name, source[0]) if caller.recv(_BUFFER) == found.name.encode() else None


def ask(
    services: list[Service], caller: socket.socket, ip: str, port: int, *, patience_s: float = _PATIENCE_S
) -> Reached | None:
    """Sends a datagram from a socket that stays open; returns as `call` does."""
    caller.sendto(b"?", (ip, port))
    found = _waiting(services, "udp", patience_s)
    if not found:
        return None
    _, source = found.socket.recvfrom(_BUFFER)
    found.socket.sendto(found.name.encode(), source)
    try:
        answer, sender = caller.recvfrom(_BUFFER)
    except OSError:
        return None
    return Reached(found.name, source[0]) if (answer, sender[:2]) == (found.name.encode(), (ip, port)) else None


def open_services(
    stack: ExitStack, namespaces: dict[str, Namespace], protocols: tuple[str, ...], *ips: str
) -> list[Service]:
    """Opens services in each of `namespaces`, named by its key, until `stack` ends."""
    return [
        stack.enter_context(service(namespace, protocol, ip, name=name))
        for name, namespace in namespaces.items()
        for protocol in protocols
        for ip in ips
    ]


def is_unreachable(services: list[Service], namespace: Namespace, protocol: str, ip: str, port: int) -> bool:
    """Tells whether a call that nobody should get reaches nobody; it waits for SILENCE_S."""
    return call(services, namespace, protocol, ip, port, patience_s=NO_ANSWER_S) is None


def _waiting(services: list[Service], protocol: str, patience_s: float) -> Service | None:
    """Returns the service that somebody calls."""
    candidates = {item.socket: item for item in services if item.protocol == protocol}
    ready, _, _ = select.select(list(candidates), [], [], patience_s)
    return candidates[ready[0]] if ready else None
