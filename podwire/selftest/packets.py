"""Real packets between namespaces: echo requests, TCP connections, the rate of a stream. Only sockets, no programs.

A socket belongs to the namespace in which it is created, so one process can hold both ends.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from kernel.netns import Netns, entered
from kernel.packet_tap import ANSWER, PROTOCOLS, Probe, Sender, new_token
from kernel.rtnl import wait_readable

_WAIT_S = 1.0  # for one reply
_TRIES = 4  # the first packet may be dropped while a neighbour is resolved or an address is verified
_CONNECT_S = 5.0
_STREAM_S = 30.0
_CHUNK = b"\0" * 65536


class LostError(Exception):
    """Packets that did not arrive; the text says between which addresses."""


def ping(namespace: Netns, source: str, target: str, device: str = "") -> float:
    """Sends echo requests to `target` until one is answered; returns the milliseconds of that one. Raises LostError.

    `source` is one of the namespace's addresses, for routes by source; `device`: the interface, for one in a VRF.
    """
    version = ip_address(target).version
    probe = Probe(PROTOCOLS[version], ip_address(source), os.getpid() & 0xFFFF, ip_address(target), port=0, token=0)
    for _ in range(_TRIES):
        marked = probe._replace(token=new_token(probe.protocol, probe.port))
        with entered(namespace):
            sender = Sender(probe.protocol, probe.source, marked.token, device)
        with sender:
            start = time.perf_counter()
            try:
                sender.send(marked)
            except OSError:  # no route yet, or the previous request found no neighbour
                time.sleep(_WAIT_S / 10)
                continue
            if _await_answer(sender, start + _WAIT_S):
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


def _await_answer(sender: Sender, deadline: float) -> bool:
    """Returns whether the answer to the sender's request arrives until `deadline`."""
    while (left_s := deadline - time.perf_counter()) > 0:
        wait_readable([sender.fileno()], left_s)
        if any(seen.kind == ANSWER for seen in sender.receive()):
            return True
    return False


def _wait(one: socket.socket, event: int, timeout_s: float) -> bool:
    news = select.poll()
    news.register(one, event)
    return any(seen & event for _, seen in news.poll(timeout_s * 1000))
