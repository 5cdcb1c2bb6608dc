"""A DHCP server outside, which offers every client the same address, and dhcp's daemon on the node.

Both end with this process, however it ends.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address

from ipam.dhcp import packet
from ipam.dhcp.conf import SOCKET_PATH
from ipam.dhcp.packet import Malformed, Message
from kernel import hostcopy
from kernel.netns import Netns, entered

_SERVER_PORT, _CLIENT_PORT = 67, 68
# Options and message types of RFC 2132.
_MASK, _LEASE_TIME, _SERVER_ID = 1, 51, 54
_DISCOVER, _OFFER, _REQUEST, _ACK = 1, 2, 3, 5
_REPLIES = {_DISCOVER: _OFFER, _REQUEST: _ACK}
_LEASE_S = 3600
_START_S = 30.0  # until the daemon listens


@contextmanager
def running(daemon: str, namespace: Netns, device: str, server: IPv4Address, offered: IPv4Address) -> Iterator[None]:
    """Runs the daemon in the file `daemon`, and a server on `device` of `namespace`, while the context is active.

    Raises TimeoutError if the daemon does not start.
    """
    with _serving(namespace, device, server, offered):
        silent = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            argv, defaults = [os.fsencode(daemon), b"daemon"], (signal.SIGPIPE, signal.SIGTERM)
            pid = hostcopy.spawn(argv, [], (silent, silent, silent), defaults)
        finally:
            os.close(silent)
        try:
            deadline = time.monotonic() + _START_S
            while not os.path.exists(SOCKET_PATH):
                if time.monotonic() > deadline:
                    raise TimeoutError("dhcp daemon does not listen")
                time.sleep(0.01)
            yield
        finally:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)


@contextmanager
def _serving(namespace: Netns, device: str, server: IPv4Address, offered: IPv4Address) -> Iterator[None]:
    """Answers clients on `device` of `namespace`, in a child process, while the context is active."""
    with entered(namespace):
        listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        listening.bind(("", _SERVER_PORT))
        readable, writable = os.pipe()
        child = os.fork()
        if not child:
            os.close(writable)
            try:
                _serve(listening, readable, server, offered)
            finally:
                os._exit(0)
    os.close(readable)
    try:
        yield
    finally:
        os.close(writable)
        os.waitpid(child, 0)


def _serve(listening: socket.socket, ended: int, server: IPv4Address, offered: IPv4Address) -> None:
    """Answers until the other end of the pipe `ended` is closed, as when the parent is killed."""
    news = select.poll()
    news.register(ended, select.POLLIN)
    news.register(listening, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in news.poll()}
        if ended in ready:
            return
        try:
            answer = _answer(packet.decode(listening.recv(4096)), server, offered)
        except Malformed:
            continue
        if answer:
            listening.sendto(packet.encode(answer), ("255.255.255.255", _CLIENT_PORT))


def _answer(message: Message, server: IPv4Address, offered: IPv4Address) -> Message | None:
    kind = int.from_bytes(message.options.get(packet.MESSAGE_TYPE, b""), "big")
    if message.op != packet.BOOTREQUEST or kind not in _REPLIES:
        return None
    options = {
        packet.MESSAGE_TYPE: bytes((_REPLIES[kind],)),
        _SERVER_ID: server.packed,
        _LEASE_TIME: _LEASE_S.to_bytes(4, "big"),
        _MASK: b"\xff\xff\xff\x00",
    }
    return Message(
        packet.BOOTREPLY, message.xid, message.chaddr, options, broadcast=True, yiaddr=offered, siaddr=server
    )
