"""Stations that send and receive Ethernet frames with their VLAN tags.

One rule: frames are reported as they were on the wire. The kernel removes a VLAN tag before a program receives the
frame, and passes the tag beside it (packet(7), PACKET_AUXDATA).
"""

import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.namespaces import Namespace

_ALL, _EXPERIMENTAL = 0x0003, b"\x88\xb5"  # every EtherType; one for local experiments (IEEE 802)
_SOL_PACKET, _AUXDATA = 263, 8  # linux/socket.h, linux/if_packet.h
_TAG_IS_VALID = 0x10  # TP_STATUS_VLAN_VALID in struct tpacket_auxdata
_QUIET_S = 0.3


class Frame(NamedTuple):
    """One broadcast frame: its VLAN tag, 0 without one, and its text."""

    tag: int
    text: str


class Station:
    def __init__(self, packets: socket.socket) -> None:
        self._packets = packets

    def send(self, *frames: Frame) -> None:
        source = self._packets.getsockname()[4]
        for tag, text in frames:
            vlan = b"\x81\0" + tag.to_bytes(2, "big") if tag else b""
            self._packets.send(b"\xff" * 6 + source + vlan + _EXPERIMENTAL + text.encode())

    def receive(self) -> set[Frame]:
        """Returns the frames received since the last call, after a moment without one."""
        frames = set()
        while select.select([self._packets], [], [], _QUIET_S)[0]:
            data, ((_, _, auxiliary),), _, sender = self._packets.recvmsg(2048, 64)
            status, tag = struct.unpack_from("I12xH", auxiliary)
            if data[12:14] == _EXPERIMENTAL and sender[2] != socket.PACKET_OUTGOING:
                frames.add(Frame(tag if status & _TAG_IS_VALID else 0, data[14:].rstrip(b"\0").decode()))
        return frames


@contextlib.contextmanager
def station(namespace: Namespace, interface: str = "eth0") -> Iterator[Station]:
    """Yields a station in a namespace, ready to receive."""
    with namespace.entered():
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with packets:
        packets.setsockopt(_SOL_PACKET, _AUXDATA, 1)
        packets.bind((interface, _ALL))
        yield Station(packets)
