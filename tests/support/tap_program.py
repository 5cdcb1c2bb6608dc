"""A program at the other end of a tap device, such as a virtual machine: reads and writes Ethernet frames.

One rule: it runs in the test's process, which enters the pod's namespace only to open the device.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator

from tests.support.namespaces import Namespace

MAC, IP = bytes.fromhex("020000000099"), "10.27.0.99"  # the program's addresses
TAP, MULTI_QUEUE, NO_PI, VNET_HDR = 0x2, 0x100, 0x1000, 0x4000  # IFF_*, linux/if_tun.h
_TUNSETIFF = 0x400454CA
_BROADCAST, _ARP, _IPV4 = b"\xff" * 6, 0x0806, 0x0800
_DEADLINE_S, _AGAIN_S = 20.0, 0.2


def attach(pod: Namespace, name: str = "eth0", flags: int = TAP | NO_PI) -> int:
    """Opens an existing tap device, as QEMU does, and returns the descriptor; raises OSError."""
    with pod.entered():
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def attached(pod: Namespace, name: str = "eth0", flags: int = TAP | NO_PI) -> Iterator[Program]:
    """Yields a program that has opened the tap device."""
    descriptor = attach(pod, name, flags)
    try:
        yield Program(descriptor)
    finally:
        os.close(descriptor)


class Program:
    """A program with an open tap device."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, frame: bytes) -> None:
        """Writes one frame: the interface in the pod receives it."""
        os.write(self._descriptor, frame)

    def read_until(self, matches: Callable[[bytes], bool]) -> bytes:
        """Returns the first frame from the pod that `matches`; without one in 20 s the test fails."""
        frame = self._read(matches, _DEADLINE_S)
        assert frame, "no such frame was sent by the pod"
        return frame

    def ask(self, question: bytes, matches: Callable[[bytes], bool], *, other: Program | None = None) -> bytes:
        """Writes a frame until this program, or `other`, reads one that `matches`; without one in 20 s the test fails.

        The first frames can be lost: the kernel activates the interface shortly after a program has opened the device.
        """
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            self.write(question)
            if frame := (other or self)._read(matches, _AGAIN_S):
                return frame
        raise AssertionError("no such frame was sent by the pod")

    def _read(self, matches: Callable[[bytes], bool], within_s: float) -> bytes:
        deadline = time.monotonic() + within_s
        while (remaining := deadline - time.monotonic()) > 0:
            if select.select([self._descriptor], [], [], remaining)[0]:
                frame = os.read(self._descriptor, 65536)
                if matches(frame):
                    return frame
        return b""

    def resolve(self, ip: str) -> bytes:
        """Returns the MAC address with which the pod answers an ARP request for `ip`."""
        target = socket.inet_aton(ip)
        body = struct.pack(">HHBBH6s4s6s4s", 1, _IPV4, 6, 4, 1, MAC, socket.inet_aton(IP), bytes(6), target)

        def answers(frame: bytes) -> bool:
            return _kind(frame) == _ARP and frame[20:22] == b"\0\2" and frame[28:32] == target

        return self.ask(_frame(_BROADCAST, _ARP, body), answers)[22:28]

    def ping(self, ip: str, payload: bytes = b"podwire") -> bytes:
        """Sends an ICMP echo request to the pod's address and returns the payload of the reply."""
        mac = self.resolve(ip)
        echo = _with_checksum(struct.pack(">BBHHH", 8, 0, 0, 1, 1) + payload, 2)
        ends = socket.inet_aton(IP) + socket.inet_aton(ip)
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(echo), 1, 0, 64, socket.IPPROTO_ICMP, 0) + ends

        def answers(frame: bytes) -> bool:
            return _kind(frame) == _IPV4 and frame[23] == socket.IPPROTO_ICMP and frame[34] == 0

        return self.ask(_frame(mac, _IPV4, _with_checksum(header, 10) + echo), answers)[42:]


def _frame(destination: bytes, kind: int, body: bytes) -> bytes:
    return (destination + MAC + struct.pack(">H", kind) + body).ljust(60, b"\0")


def _kind(frame: bytes) -> int:
    return int.from_bytes(frame[12:14], "big")


def _with_checksum(packet: bytes, offset: int) -> bytes:
    """Returns a packet with its Internet checksum (RFC 1071) at `offset`."""
    padded = packet + b"\0" * (len(packet) % 2)
    total = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return packet[:offset] + struct.pack(">H", ~total & 0xFFFF) + packet[offset + 2 :]
