"""TCP between two pods: the bytes of a second, the time of a round trip, and the arrival of pods' first packets.

One rule: each end is a Python program in the network namespace of a pod, the same for all plugins.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import threading
import time
from typing import NamedTuple

from tests.support.namespaces import Namespace

_STREAM_S, _ROUND_TRIPS, _CHUNK = 1.0, 3000, 1 << 20


class Stream(NamedTuple):
    """Figures of TCP between two pods: throughput, and the median time until a byte is answered."""

    gbit_s: float
    round_trip_us: float


def measure_stream(source: Namespace, target: Namespace, address: str) -> Stream:
    """Measures round trips of a byte from a pod to another one, then a stream."""
    with target.entered():
        listener = socket.create_server((address, 0))
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(listener,), daemon=True)
    server.start()
    with source.entered():
        clients = [socket.create_connection(listener.getsockname()) for _ in range(2)]
    listener.close()
    with clients[0], clients[1]:
        round_trip_us = _measure_round_trips(clients[0])
        gbit_s = _measure_throughput(clients[1])
    server.join()
    return Stream(gbit_s, round_trip_us)


def _serve(listener: socket.socket) -> None:
    """Sends back what the first connection sends; then receives from the second until its end, and answers once."""
    (first, _), (second, _) = listener.accept(), listener.accept()
    _send_at_once(first)
    while data := first.recv(1):
        first.sendall(data)
    buffer = bytearray(_CHUNK)
    while second.recv_into(buffer):
        pass
    second.sendall(b".")


def _measure_round_trips(connection: socket.socket) -> float:
    _send_at_once(connection)
    times = []
    for _ in range(_ROUND_TRIPS):
        start = time.perf_counter()
        connection.sendall(b".")
        connection.recv(1)
        times.append(time.perf_counter() - start)
    connection.shutdown(socket.SHUT_WR)
    return 1e6 * statistics.median(times)


def _measure_throughput(connection: socket.socket) -> float:
    chunk, sent, start = bytes(_CHUNK), 0, time.perf_counter()
    while time.perf_counter() - start < _STREAM_S:
        connection.sendall(chunk)
        sent += len(chunk)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    return 8e-9 * sent / (time.perf_counter() - start)


def _send_at_once(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Arrivals:
    """A server in a pod, to which other pods send their names; `at` has the time of each one's first connection."""

    PORT = 7001

    def __init__(self, pod: Namespace, address: str) -> None:
        self.address, self.at = address, dict[str, float]()
        with pod.entered():
            self._server = socket.create_server((address, self.PORT), backlog=1000)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._server.accept()
            at = time.monotonic()
            with connection:
                self.at.setdefault(connection.recv(100).decode().strip(), at)
