"""Packet sockets (packet(7)): whole Ethernet frames, received and sent on one interface of a namespace.

The kernel runs a filter, a program in classic BPF, on each frame and queues only those that the filter accepts: a busy
interface costs this process nothing.

One rule: the filter is attached before the socket is bound, so no other frame is ever read.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import NamedTuple

from kernel import bpf
from kernel.arp import ETH_P_ARP
from kernel.bpf import Instruction
from kernel.owned_socket import OwnedSocket
from process.values import dataclass

FRAME_MAX_BYTES = 16 << 10  # filters reject larger frames; the usual maximum is 9014

_IPV4, _IPV6 = 0x0800, 0x86DD  # ethertypes (linux/if_ether.h)
_UDP, _ICMP6 = 17, 58
_DHCP4_CLIENT, _DHCP6_CLIENT = 68, 546  # ports
_BOOTREPLY = 2
_ROUTER_ADVERTISEMENT, _ICMP6_HOP_LIMIT = 134, 255  # RFC 4861, section 6.1.2
_NEIGHBOUR_ADVERTISEMENT = 136
_FRAGMENT = 0x3FFF  # the flag "more fragments", and the offset
# Offsets in a frame. With IPv4, those after its header are relative to the length of the header.
_ETHERTYPE, _IP = 12, 14
_IPV4_FRAGMENT, _IPV4_PROTOCOL = _IP + 6, _IP + 9
_IPV6_NEXT_HEADER, _IPV6_HOP_LIMIT, _IPV6_PAYLOAD = _IP + 6, _IP + 7, _IP + 40
_UDP_DESTINATION, _UDP_PAYLOAD, _DHCP4_CHADDR = 2, 8, 28

_SOL_PACKET, _PACKET_AUXDATA = 263, 8  # linux/socket.h, linux/if_packet.h
_AUXDATA = struct.Struct("=IIIHHHH")  # struct tpacket_auxdata: the status is first
_TP_STATUS_CSUMNOTREADY = 8
_PACKET_OTHERHOST = 3


@dataclass(frozen=True)
class PacketFilter:
    """The frames that a socket receives: an ethertype, and a program that accepts or rejects a frame."""

    ethertype: int
    program: tuple[Instruction, ...]


class _Step(NamedTuple):
    """A load, or a condition with the outcome that rejects the frame."""

    code: int
    operand: int
    rejected_if: bool | None = None


def dhcp4_filter(mac: bytes | None = None) -> PacketFilter:
    """Accepts DHCPv4 messages of servers, unfragmented; with `mac`, only those to the client with this chaddr."""
    chaddr = _UDP_PAYLOAD + _DHCP4_CHADDR
    steps = [
        *_equal(bpf.LOAD_BYTE, _IPV4_PROTOCOL, _UDP),
        _Step(bpf.LOAD_HALF, _IPV4_FRAGMENT),
        _Step(bpf.IF_ANY_BIT, _FRAGMENT, rejected_if=True),
        _Step(bpf.LOAD_X_IPV4_HEADER, _IP),
        *_equal(bpf.LOAD_HALF_AFTER_X, _IP + _UDP_DESTINATION, _DHCP4_CLIENT),
        *_equal(bpf.LOAD_BYTE_AFTER_X, _IP + _UDP_PAYLOAD, _BOOTREPLY),
    ]
    if mac is not None:
        steps += _equal(bpf.LOAD_WORD_AFTER_X, _IP + chaddr, int.from_bytes(mac[:4], "big"))
        steps += _equal(bpf.LOAD_HALF_AFTER_X, _IP + chaddr + 4, int.from_bytes(mac[4:], "big"))
    return _build_filter(_IPV4, steps)


def dhcp6_filter() -> PacketFilter:
    """Accepts UDP datagrams over IPv6 to the port of DHCPv6 clients, without extension headers."""
    steps = [
        *_equal(bpf.LOAD_BYTE, _IPV6_NEXT_HEADER, _UDP),
        *_equal(bpf.LOAD_HALF, _IPV6_PAYLOAD + _UDP_DESTINATION, _DHCP6_CLIENT),
    ]
    return _build_filter(_IPV6, steps)


def router_advertisement_filter() -> PacketFilter:
    """Accepts router advertisements that did not cross a router, without extension headers."""
    steps = [
        *_equal(bpf.LOAD_BYTE, _IPV6_NEXT_HEADER, _ICMP6),
        *_equal(bpf.LOAD_BYTE, _IPV6_HOP_LIMIT, _ICMP6_HOP_LIMIT),
        *_equal(bpf.LOAD_BYTE, _IPV6_PAYLOAD, _ROUTER_ADVERTISEMENT),
    ]
    return _build_filter(_IPV6, steps)


def neighbour_advertisement_filter() -> PacketFilter:
    """Accepts neighbour advertisements of IPv6 (RFC 4861), without extension headers."""
    steps = [
        *_equal(bpf.LOAD_BYTE, _IPV6_NEXT_HEADER, _ICMP6),
        *_equal(bpf.LOAD_BYTE, _IPV6_PAYLOAD, _NEIGHBOUR_ADVERTISEMENT),
    ]
    return _build_filter(_IPV6, steps)


def arp_filter() -> PacketFilter:
    """Accepts ARP packets."""
    return _build_filter(ETH_P_ARP, [])


class PacketSocket(OwnedSocket):
    """A non-blocking packet socket on one interface; a context manager.

    All errors are OSError. ENETDOWN from `receive`: the interface was set down or deleted; after "down" the socket
    works again when the interface is up. ENXIO from `send`: it was deleted.
    """

    def __init__(self, index: int, packet_filter: PacketFilter) -> None:
        """Opens a socket on an interface of the current namespace; ENXIO or ENODEV if it is missing."""
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_PACKET, kind, 0)  # with protocol 0 it receives nothing before the bind
        try:
            bpf.attach(self._socket, packet_filter.program)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            _bind(self._socket, index, packet_filter.ethertype)
        except BaseException:
            self._socket.close()
            raise

    def receive(self) -> tuple[bytes, bool] | None:
        """Returns the next frame and whether its UDP or ICMPv6 checksum is complete; None if there is no frame.

        The kernel leaves the checksum to the network card; frames between namespaces of one host never reach a card.
        """
        try:
            frame, ancillary, _, _ = self._socket.recvmsg(FRAME_MAX_BYTES, socket.CMSG_SPACE(_AUXDATA.size))
        except BlockingIOError:
            return None
        return frame, not any(
            _AUXDATA.unpack_from(content)[0] & _TP_STATUS_CSUMNOTREADY
            for level, number, content in ancillary
            if (level, number) == (_SOL_PACKET, _PACKET_AUXDATA) and len(content) >= _AUXDATA.size
        )

    def send(self, frame: bytes) -> None:
        """Sends a frame, from its Ethernet header on; EMSGSIZE if it exceeds the interface's MTU."""
        self._socket.send(frame)


def _bind(new_socket: socket.socket, index: int, ethertype: int) -> None:
    """Binds to an interface. Python binds by name only: a rename meanwhile is noticed by a second look."""
    name = socket.if_indextoname(index)
    new_socket.bind((name, ethertype))
    if socket.if_nametoindex(name) != index:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), name)


def _build_filter(ethertype: int, steps: list[_Step]) -> PacketFilter:
    """Returns the filter that accepts frames of a type that pass the steps, in the untagged network only.

    The kernel removes VLAN tags from frames, and the property too, before a socket bound to an ethertype sees them. It
    marks a frame of another VLAN as one for another host (__netif_receive_skb_core in net/core/dev.c).
    """
    steps = [
        *(_Step(bpf.LOAD_LENGTH, 0), _Step(bpf.IF_GREATER, FRAME_MAX_BYTES, rejected_if=True)),
        *(_Step(bpf.LOAD_WORD, bpf.PACKET_TYPE_PROPERTY), _Step(bpf.IF_EQUAL, _PACKET_OTHERHOST, rejected_if=True)),
        *_equal(bpf.LOAD_HALF, _ETHERTYPE, ethertype),
        *steps,
    ]
    program = [_assemble(step, to_reject=len(steps) - number) for number, step in enumerate(steps)]
    accept, reject = Instruction(bpf.RETURN, 0, 0, FRAME_MAX_BYTES), Instruction(bpf.RETURN, 0, 0, 0)
    return PacketFilter(ethertype, (*program, accept, reject))


def _assemble(step: _Step, *, to_reject: int) -> Instruction:
    """Returns the instruction of a step that is `to_reject` instructions before the last one, which rejects."""
    if_true, if_false = (to_reject if step.rejected_if is outcome else 0 for outcome in (True, False))
    return Instruction(step.code, if_true, if_false, step.operand)


def _equal(load: int, offset: int, value: int) -> tuple[_Step, _Step]:
    """Returns the steps that reject a frame whose value at an offset differs, or which is too short."""
    return _Step(load, offset), _Step(bpf.IF_EQUAL, value, rejected_if=False)
