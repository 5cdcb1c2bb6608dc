"""Servers and connections between namespaces over TCP, UDP and SCTP, all in the test's process.

A socket belongs to the namespace in which it was created, so no process needs to stay there.

One rule: a call succeeds only if the reply comes from the address that was called: both directions must be translated.
"""

import contextlib
import select
import socket
import struct
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
_TIMEOUT_S = 30.0
NO_ANSWER_S = 0.4  # a successful call takes milliseconds
_BUFFER = 100
_NETLINK_NETFILTER, _NFQNL_MSG_CONFIG = 12, 3 << 8 | 2


class Service(NamedTuple):
    """A listening socket, and the name that it sends as its reply."""

    name: str
    protocol: str
    socket: socket.socket


class Reached(NamedTuple):
    """The service that a call reached, and the source address that the service saw."""

    name: str
    source: str


@contextlib.contextmanager
def service(namespace: Namespace, protocol: str, ip: str, port: int = PORT, name: str = "") -> Iterator[Service]:
    """Yields a service at an address of `namespace`; its default name is the namespace's."""
    with open_socket(namespace, protocol, ip, port) as new_socket:
        if protocol != "udp":
            new_socket.listen()
        yield Service(name or namespace.name, protocol, new_socket)


@contextlib.contextmanager
def open_socket(namespace: Namespace, protocol: str, ip: str, port: int = 0) -> Iterator[socket.socket]:
    """Yields a socket in `namespace`, bound to `ip` and `port`."""
    kind, number = _KINDS[protocol]
    with namespace.entered():
        new_socket = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, kind, number)
    with new_socket:
        new_socket.settimeout(_TIMEOUT_S)
        new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if new_socket.family == socket.AF_INET6:
            new_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        new_socket.bind((ip, port))
        yield new_socket


@contextlib.contextmanager
def hold_queue(number: int) -> Iterator[None]:
    """Reads a queue (NFQUEUE) of the current namespace, as an intrusion prevention system that decides nothing."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as queue:
        queue.bind((0, 0))
        for command in (b"\x08\0\x01\0\x01\0\0\0", b"\x09\0\x02\0\0\0\xff\xff\x02\0\0\0"):  # bind; copy packets
            message = struct.pack("!HH", 0, number) + command
            queue.send(struct.pack("=IHHII", 16 + len(message), _NFQNL_MSG_CONFIG, 5, 0, 0) + message)
            assert struct.unpack_from("=i", queue.recv(4096), 16) == (0,)
        yield


def call(
    services: list[Service], namespace: Namespace, protocol: str, ip: str, port: int, *, timeout_s: float = _TIMEOUT_S
) -> Reached | None:
    """Calls `ip` `port` from `namespace`; returns the service that replied, None without a correct reply."""
    with open_socket(namespace, protocol, "::" if ":" in ip else "0.0.0.0") as caller:
        caller.settimeout(timeout_s)
        if protocol == "udp":
            return ask(services, caller, ip, port, timeout_s=timeout_s)
        try:
            caller.connect((ip, port))
        except OSError:
            return None
        if not (called := _wait_for_call(services, protocol, timeout_s)):
            return None
        connection, source = called.socket.accept()
        with connection:
            connection.sendall(called.name.encode())
            return Reached(called.name, source[0]) if caller.recv(_BUFFER) == called.name.encode() else None


def ask(
    services: list[Service], caller: socket.socket, ip: str, port: int, *, timeout_s: float = _TIMEOUT_S
) -> Reached | None:
    """Sends a datagram from an open socket; otherwise as `call`."""
    caller.sendto(b"?", (ip, port))
    if not (called := _wait_for_call(services, "udp", timeout_s)):
        return None
    _, source = called.socket.recvfrom(_BUFFER)
    called.socket.sendto(called.name.encode(), source)
    try:
        answer, sender = caller.recvfrom(_BUFFER)
    except OSError:
        return None
    return Reached(called.name, source[0]) if (answer, sender[:2]) == (called.name.encode(), (ip, port)) else None


def open_services(
    stack: ExitStack, namespaces: dict[str, Namespace], protocols: tuple[str, ...], *ips: str
) -> list[Service]:
    """Opens services in each of `namespaces`, named after its key; `stack` closes them."""
    return [
        stack.enter_context(service(namespace, protocol, ip, name=name))
        for name, namespace in namespaces.items()
        for protocol in protocols
        for ip in ips
    ]


def is_unreachable(services: list[Service], namespace: Namespace, protocol: str, ip: str, port: int) -> bool:
    """Returns whether a call reaches none of the services within NO_ANSWER_S."""
    return call(services, namespace, protocol, ip, port, timeout_s=NO_ANSWER_S) is None


def _wait_for_call(services: list[Service], protocol: str, timeout_s: float) -> Service | None:
    """Waits for a call and returns the called service, None after a timeout."""
    candidates = {item.socket: item for item in services if item.protocol == protocol}
    ready, _, _ = select.select(list(candidates), [], [], timeout_s)
    return candidates[ready[0]] if ready else None
