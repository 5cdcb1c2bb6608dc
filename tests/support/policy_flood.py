"""Datagrams that are sent and received all the time, by one thread, between namespaces in which pods start and stop.

One rule: each datagram's payload says who sends it, so a receiver's content says what has passed.
"""

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from tests.support.namespaces import Namespace
from tests.support.sockets import open_socket

UDP_PORT = 5000
_ROUND_S = 0.004
_RECEIVE_BUFFER_FORCE = 33  # SO_RCVBUFFORCE (asm-generic/socket.h)
_IPV4 = 0x0800

Send = Callable[[], object]


def datagram(source: str, target: str, payload: bytes) -> bytes:
    """Returns an IPv4 packet with a UDP datagram, without its checksum."""
    udp = struct.pack("!4H", UDP_PORT, UDP_PORT, 8 + len(payload), 0) + payload
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0) + ends
    total = sum(struct.unpack("!10H", header))
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return header[:10] + struct.pack("!H", checksum) + header[12:] + udp


class Flood:
    """The thread's work. Each of `to`, `forged` and `broadcast` sends to several addresses until its context ends."""

    def __init__(self) -> None:
        self.sent = self.rounds = 0
        self._senders: dict[object, list[Send]] = {}
        self._receivers: dict[socket.socket, Counter[bytes]] = {}
        self._is_stopped = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Sends while the context is active."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._is_stopped.set()
            thread.join()

    def to(
        self, stack: ExitStack, source: Namespace, payload: bytes, targets: Iterable[str], port: int = UDP_PORT
    ) -> None:
        """Sends from a socket that is opened now, also if the namespace has no interface yet."""
        sender = stack.enter_context(open_socket(source, "udp", "0.0.0.0"))
        sender.setblocking(False)
        self._add(stack, [lambda ip=ip: sender.sendto(payload, (ip, port)) for ip in targets])  # type: ignore[misc]

    def forged(self, stack: ExitStack, source: Namespace, payload: bytes, pairs: Iterable[tuple[str, str]]) -> None:
        """Sends packets with other source addresses: pairs of source and target."""
        with source.entered():
            sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
        packets = [(datagram(*pair, payload), (pair[1], 0)) for pair in pairs]
        self._add(stack, [lambda one=one: sender.sendto(*one) for one in packets])  # type: ignore[misc]

    def broadcast(self, stack: ExitStack, source: Namespace, ip: str, payload: bytes, targets: Iterable[str]) -> None:
        """Sends each packet in a broadcast frame, which needs no ARP and reaches every port of the bridge."""
        with source.entered():
            sender = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM))
        packets = [datagram(ip, target, payload) for target in targets]
        to = ("eth0", _IPV4, 0, 0, b"\xff" * 6)
        self._add(stack, [lambda one=one: sender.sendto(one, to) for one in packets])  # type: ignore[misc]

    def receive(self, stack: ExitStack, namespace: Namespace, port: int = UDP_PORT) -> Counter[bytes]:
        """Returns the payloads that arrive in a namespace; they are added all the time."""
        receiver = stack.enter_context(open_socket(namespace, "udp", "0.0.0.0", port))
        receiver.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, 4 << 20)
        receiver.setblocking(False)
        received = self._receivers[receiver] = Counter()
        stack.callback(lambda: self._receivers.pop(receiver))
        return received

    def settle(self) -> None:
        """Waits until what was sent before has been received."""
        before = self.rounds
        while self.rounds - before < 3:
            time.sleep(_ROUND_S)

    def _add(self, stack: ExitStack, sends: list[Send]) -> None:
        key = object()
        self._senders[key] = sends
        stack.callback(lambda: self._senders.pop(key))

    def _run(self) -> None:
        while not self._is_stopped.wait(_ROUND_S):
            for send in [send for sends in list(self._senders.values()) for send in sends]:
                with contextlib.suppress(OSError):  # no route yet, or closed
                    send()
                    self.sent += 1
            for receiver, received in list(self._receivers.items()):
                with contextlib.suppress(OSError):
                    while True:
                        received[receiver.recv(100)] += 1
            self.rounds += 1
