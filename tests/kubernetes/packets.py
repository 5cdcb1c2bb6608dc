"""A stream of numbered UDP packets between two network namespaces, some 1,000 a second; lost ones are counted.

One rule: the packets are received while they are sent, so a stream may be long.
"""

import contextlib
import socket
import threading
import time
from typing import Self

from tests.support.namespaces import Namespace

_RECEIVE_BUFFER_FORCE = 33  # SO_RCVBUFFORCE (asm-generic/socket.h)
_PORT, _INTERVAL_S, _LAST_S = 7000, 0.001, 1.0


class Packets:
    """The stream, which runs during the block; afterwards `lost` has the time of each lost packet, in seconds."""

    def __init__(self, source: Namespace, target: Namespace, address: str) -> None:
        with target.entered():
            self._server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with source.entered():
            self._client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._server.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, 16 << 20)  # no packet is lost here
        self._server.bind((address, _PORT))
        self._client.connect((address, _PORT))
        self._server.settimeout(_LAST_S)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=target) for target in (self._send, self._receive)]
        self._sent: list[float] = []
        self._received: set[int] = set()
        self.lost: list[float] = []

    @property
    def sent(self) -> int:
        """The number of packets that were sent."""
        return len(self._sent)

    def _send(self) -> None:
        start = time.monotonic()
        while not self._stop.is_set():
            number = len(self._sent)
            self._sent.append(time.monotonic() - start)
            with contextlib.suppress(OSError):  # a packet that cannot be sent is lost
                self._client.send(number.to_bytes(8, "big"))
            time.sleep(_INTERVAL_S)

    def _receive(self) -> None:
        while True:
            try:
                self._received.add(int.from_bytes(self._server.recv(8), "big"))
            except TimeoutError:
                if self._stop.is_set():
                    return

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.lost = [round(at, 3) for number, at in enumerate(self._sent) if number not in self._received]
        self._server.close()
        self._client.close()
