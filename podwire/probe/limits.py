"""Measures whether a pod's rate limits hold: a TCP connection between node and pod, as fast as it goes."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import NamedTuple

from cni.address import Address
from kernel.rtnl import wait_readable
from podwire.attachments import CachedAttachment
from podwire.trace.place import Place

MOST_BYTES = 64 << 20  # a larger burst is not measured
_LONGEST_S, _AFTER_BURST_S = 4.0, 1.0
_CHUNK_BYTES = 1 << 16
_CONNECT_S = 2.0
_KEYS = {"receives": "ingress", "sends": "egress"}


class RateMeasurement(NamedTuple):
    """A measured rate: the bits that arrived, in which time; `skipped` says why nothing was measured."""

    bits: int = 0
    seconds: float = 0.0
    burst_bits: int = 0
    skipped: str = ""

    def exceeds(self, limit_bits: int) -> bool:
        """Returns whether more bits arrived than the burst and the limit allow, with a tolerance of 15 %."""
        return self.bits > 1.15 * (self.burst_bits + limit_bits * self.seconds)

    @property
    def rate(self) -> float:
        """The bits per second after the burst."""
        return max(0.0, self.bits - self.burst_bits) / self.seconds if self.seconds else 0.0


def configured(cached: CachedAttachment | None, direction: str) -> tuple[int, int] | None:
    """Returns the rate and burst, in bits, that ADD had for a direction ("receives", "sends"); None without a limit."""
    plugins = cached.network.plugins if cached and cached.network else ()
    for plugin in plugins:
        if cached is not None and plugin["type"] == "bandwidth":
            for source in (plugin, cached.capability_args.get("bandwidth")):
                rate, burst = (source.get(f"{_KEYS[direction]}{key}") if isinstance(source, dict) else None
                               for key in ("Rate", "Burst"))  # fmt: skip
                if isinstance(rate, int) and isinstance(burst, int) and rate > 0:
                    return rate, burst
    return None


def measure(node: Place, pod: Place, address: Address, direction: str, limit_bits: int, burst: int) -> RateMeasurement:
    """Sends through a connection from the node to the pod: to the pod ("receives") or from it ("sends").

    Raises OSError without a connection.
    """
    if burst // 8 > MOST_BYTES // 2:
        return RateMeasurement(skipped=f"not measured: the burst of {burst // 8 >> 20} MiB is more than the test sends")
    seconds = min(_LONGEST_S, burst / limit_bits + _AFTER_BURST_S)
    with ExitStack() as stack:
        server = stack.enter_context(pod.call(lambda: _new(address.version)))
        server.bind(("", 0))
        server.listen(1)
        client = stack.enter_context(node.call(lambda: _new(address.version)))
        client.settimeout(_CONNECT_S)
        client.connect((str(address), server.getsockname()[1]))
        client.setblocking(False)
        server.settimeout(_CONNECT_S)
        accepted, _ = server.accept()
        stack.enter_context(accepted)
        accepted.setblocking(False)
        sender, receiver = (client, accepted) if direction == "receives" else (accepted, client)
        return RateMeasurement(8 * _pump(sender, receiver, seconds), seconds, burst)


def _pump(sender: socket.socket, receiver: socket.socket, seconds: float) -> int:
    """Sends as fast as possible for some time; returns the bytes that arrived."""
    end, received, chunk = time.monotonic() + seconds, 0, bytes(_CHUNK_BYTES)
    while time.monotonic() < end and received < MOST_BYTES:
        try:
            sender.send(chunk)
        except BlockingIOError:
            wait_readable([receiver.fileno()], 0.01)
        try:
            received += len(receiver.recv(4 * _CHUNK_BYTES))
        except BlockingIOError:
            continue
    return received


def _new(version: int) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    new = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a close leaves nothing in TIME_WAIT
    return new
