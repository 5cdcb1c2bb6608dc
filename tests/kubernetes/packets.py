"""Streams of messages between network namespaces, in which each lost message is counted: UDP, TCP, through a Service.

One rule: a message that is late is not lost, so that a busy machine fails no test.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterable
from typing import Self

from tests.support.machine import eventually
from tests.support.namespaces import Namespace

_RECEIVE_BUFFER_FORCE = 33  # SO_RCVBUFFORCE (asm-generic/socket.h)
_PORT, _LAST_S = 7000, 1.0
_BEGIN_S = 120.0  # for new routes and rules
_LOST_S = 10.0  # without an answer
_MESSAGE = bytes(1000)
Drops = dict[tuple[str, str], int]


def dropped(namespaces: Iterable[Namespace]) -> Drops:
    """Returns the packets that each link has dropped: veth does that when a queue of the kernel is full.

    All namespaces of a machine share these queues, so its other work fills them; a rule or a missing route does not.
    """
    links = [(each.name, link) for each in namespaces for link in json.loads(each.run("ip", "-s", "-json", "link"))]
    return {(name, link["ifname"]): link["stats64"]["tx"]["dropped"] for name, link in links}


def added(before: Drops, after: Drops) -> int:
    """Returns how many packets were dropped between two results of `dropped`."""
    return sum(max(0, count - before.get(key, 0)) for key, count in after.items())


class Stream:
    """Messages from a namespace, sent during a block; afterwards `lost` has the time of each lost one, in seconds."""

    pause_s = 0.01

    def __init__(self, source: Namespace) -> None:
        self.source = source
        self.lost: list[float] = []
        self.sent: list[float] = []
        self._longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        """Begins in the source's namespace; OSError if it cannot yet."""

    def send(self) -> None:
        """Sends a message and waits for its answer; OSError if there is none."""
        raise NotImplementedError

    def end(self) -> None:
        """Ends after the last message."""

    def describe(self) -> str:
        """Returns what was sent and lost."""
        return f"{len(self.sent)} sent, {len(self.lost)} lost, longest answer {self._longest_s:.3f} s"

    def _run(self) -> None:
        start = time.monotonic()
        with self.source.entered():
            while not self._stop.wait(self.pause_s):
                sent = time.monotonic()
                self.sent.append(round(sent - start, 3))
                try:
                    self.send()
                except OSError:
                    self.lost.append(self.sent[-1])
                self._longest_s = max(self._longest_s, time.monotonic() - sent)

    def _has_begun(self) -> bool:
        with contextlib.suppress(OSError), self.source.entered():
            self.begin()
            return True
        return False

    def __enter__(self) -> Self:
        assert eventually(self._has_begun, within_s=_BEGIN_S), f"{type(self).__name__}: no answer in {_BEGIN_S} s"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.end()


class Packets(Stream):
    """Numbered UDP packets in one direction, some 1,000 a second."""

    pause_s = 0.001

    def __init__(self, source: Namespace, target: Namespace, address: str) -> None:
        super().__init__(source)
        with target.entered():
            self._server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._server.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, 16 << 20)  # no packet is lost here
        self._server.bind((address, _PORT))
        self._server.settimeout(_LAST_S)
        self._receiver = threading.Thread(target=self._receive)
        self._received: set[int] = set()

    def begin(self) -> None:
        """Opens the socket and starts to receive."""
        self._client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._client.connect(self._server.getsockname())
        self._receiver.start()

    def send(self) -> None:
        """Sends a packet; one that cannot be sent is lost like others."""
        with contextlib.suppress(OSError):
            self._client.send((len(self.sent) - 1).to_bytes(8, "big"))

    def end(self) -> None:
        """Ends after the last packet has arrived, and compares the numbers."""
        self._receiver.join()
        self.lost = [at for number, at in enumerate(self.sent) if number not in self._received]
        self._server.close()
        self._client.close()

    def _receive(self) -> None:
        while True:
            try:
                self._received.add(int.from_bytes(self._server.recv(8), "big"))
            except TimeoutError:
                if self._stop.is_set():
                    return


class Connection(Stream):
    """One TCP connection, with messages that come back; all later ones are lost if it is reset, or stands still."""

    def __init__(self, source: Namespace, target: Namespace, address: str) -> None:
        super().__init__(source)
        with target.entered():
            self._server = socket.create_server((address, _PORT))
        self._echoing = threading.Thread(target=self._echo)

    def begin(self) -> None:
        """Connects."""
        self._client = socket.create_connection(self._server.getsockname(), _LOST_S)
        self._served, _ = self._server.accept()
        self._echoing.start()

    def send(self) -> None:
        """Sends a message and receives it again."""
        self._client.sendall(_MESSAGE)
        missing = len(_MESSAGE)
        while missing:
            received = len(self._client.recv(missing))
            if not received:
                raise ConnectionResetError
            missing -= received

    def end(self) -> None:
        """Closes each end, since the connection may be cut."""
        self._client.close()
        with contextlib.suppress(OSError):
            self._served.shutdown(socket.SHUT_RDWR)
        self._echoing.join()
        self._served.close()
        self._server.close()

    def _echo(self) -> None:
        with contextlib.suppress(OSError):
            while received := self._served.recv(len(_MESSAGE)):
                self._served.sendall(received)


class Requests(Stream):
    """UDP requests to a pod's server, each from a new port, so that the rules of a Service decide about each."""

    def __init__(self, source: Namespace, address: str, port: int, hostname: str) -> None:
        super().__init__(source)
        self._address, self._hostname = (address, port), hostname.encode()

    def begin(self) -> None:
        """Sends a request, which is lost or answered by another pod while kube-proxy does not know the Service."""
        self._ask(_LAST_S)

    def send(self) -> None:
        """Sends a request; the answer is the name of the pod."""
        self._ask(_LOST_S)

    def _ask(self, timeout_s: float) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(timeout_s)
            client.connect(self._address)
            client.send(b"hostname")
            if client.recv(len(_MESSAGE)) != self._hostname:
                raise OSError
