"""Real packets between namespaces: echo requests, TCP connections, the rate of a stream. Only sockets, no programs.

A socket belongs to the namespace in which it is created, so one process can hold both ends.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from kernel.netns import Netns, entered

_WAIT_S = 1.0  # for one reply
_TRIES = 4  # the first packet may be dropped while a neighbour is resolved or an address is verified
_CONNECT_S = 5.0
_STREAM_S = 30.0
_CHUNK = b"\0" * 65536
_ECHO = {4: (8, 0), 6: (128, 129)}  # ICMP types of request and reply (RFC 792, RFC 4443)
_IPV4_HEADER = 4  # a raw IPv4 socket receives the header; its low half-byte is its length in words


class LostError(Exception):
    """Packets that did not arrive; the text says between which addresses."""


def ping(namespace: Netns, source: str, target: str, device: str = "") -> float:
    """Sends echo requests to `target` until one is answered; returns the milliseconds of that one. Raises LostError.

    `source` is one of the namespace's addresses, for routes by source; `device`: the interface, for one in a VRF.
    """
    version = ip_address(target).version
    family, protocol = (
        (socket.AF_INET, socket.IPPROTO_ICMP) if version == 4 else (socket.AF_INET6, socket.IPPROTO_ICMPV6)
    )
    with entered(namespace):
        probe = socket.socket(family, socket.SOCK_RAW, protocol)
    with probe:
        if device:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        probe.bind((source, 0))
        for sequence in range(1, _TRIES + 1):
            start = time.perf_counter()
            try:
                probe.sendto(_echo_request(version, sequence), (target, 0))
            except OSError:  # no route yet, or the previous request found no neighbour
                time.sleep(_WAIT_S / 10)
                continue
            if _await_reply(probe, version, sequence, start + _WAIT_S):
                return (time.perf_counter() - start) * 1000
    raise LostError(f"no reply from {target} to {_TRIES} echo requests of {source}")


def connect(server: Netns, port: int, client: Netns, target: tuple[str, int]) -> tuple[float, str]:
    """Connects from `client` to `target`, which must lead to `port` of `server`.

    Returns the milliseconds, and the client's address as the server sees it. Raises LostError.
    """
    start = time.perf_counter()
    with _connection(server, port, client, target) as (_, accepted):
        return (time.perf_counter() - start) * 1000, str(accepted.getpeername()[0])


def stream(
    server: Netns, port: int, client: Netns, target: tuple[str, int], count_bytes: int, *, to_server: bool
) -> float:
    """Sends bytes through a new connection; returns the bits per second at which they arrive. Raises LostError."""
    with _connection(server, port, client, target) as (connecting, accepted):
        sender, receiver = (connecting, accepted) if to_server else (accepted, connecting)
        start, received, unsent = time.perf_counter(), 0, count_bytes
        news = select.poll()
        news.register(receiver, select.POLLIN)
        news.register(sender, select.POLLOUT)
        while received < count_bytes:
            if time.perf_counter() - start > _STREAM_S:
                raise LostError(f"{received} of {count_bytes} bytes arrived in {_STREAM_S:.0f} s")
            for descriptor, _ in news.poll(_WAIT_S * 1000):
                if descriptor == receiver.fileno():
                    received += len(receiver.recv(len(_CHUNK)))
                elif unsent:
                    unsent -= sender.send(_CHUNK[:unsent])
                else:
                    news.unregister(sender)
        return received * 8 / (time.perf_counter() - start)


@contextmanager
def _connection(
    server: Netns, port: int, client: Netns, target: tuple[str, int]
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yields both ends of a connection, which do not block; raises LostError."""
    family = socket.AF_INET if ip_address(target[0]).version == 4 else socket.AF_INET6
    with entered(server):
        listening = socket.socket(family, socket.SOCK_STREAM)
    with entered(client):
        connecting = socket.socket(family, socket.SOCK_STREAM)
    with listening, connecting:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("", port))
        listening.listen(1)
        connecting.setblocking(False)
        failure = connecting.connect_ex(target)
        if not _wait(listening, select.POLLIN, _CONNECT_S):
            reason = f": {os.strerror(failure)}" if failure else ""
            raise LostError(f"no connection to {target[0]} port {target[1]}{reason}")
        accepted, _ = listening.accept()
        with accepted:
            accepted.setblocking(False)
            if not _wait(connecting, select.POLLOUT, _CONNECT_S):
                raise LostError(f"the connection to {target[0]} port {target[1]} is not established")
            yield connecting, accepted


def _echo_request(version: int, sequence: int) -> bytes:
    kind = _ECHO[version][0]
    body = struct.pack("!HH", os.getpid() & 0xFFFF, sequence) + b"podwire selftest"
    checksum = _checksum(struct.pack("!BBH", kind, 0, 0) + body) if version == 4 else 0  # IPv6: the kernel's work
    return struct.pack("!BBH", kind, 0, checksum) + body


def _await_reply(probe: socket.socket, version: int, sequence: int, deadline: float) -> bool:
    """Returns whether the reply to request `sequence` arrives until `deadline`."""
    while (left_s := deadline - time.perf_counter()) > 0:
        if not _wait(probe, select.POLLIN, left_s):
            return False
        packet = probe.recv(2048)
        reply = packet[(packet[0] & 15) * _IPV4_HEADER :] if version == 4 else packet
        kind, _, _, identifier, number = struct.unpack_from("!BBHHH", reply)
        if (kind, identifier, number) == (_ECHO[version][1], os.getpid() & 0xFFFF, sequence):
            return True
    return False


def _wait(one: socket.socket, event: int, timeout_s: float) -> bool:
    news = select.poll()
    news.register(one, event)
    return any(seen & event for _, seen in news.poll(timeout_s * 1000))


def _checksum(data: bytes) -> int:
    """Returns the Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
