"""Observes marked packets on all interfaces of a network namespace, and sends them.

A marked packet has a random number (its token) where translations of addresses and ports do not change it: as the
sequence number of a TCP SYN, or as the first bytes of a payload. The answer to a SYN acknowledges the number, an echo
returns it, an answer of UDP has the next number, and ICMP errors quote the packet. A program in classic BPF selects the
marked packets in the kernel.

A packet to UDP port 53 is a DNS query (RFC 1035), since a name server answers nothing else: its ID and flags are the
token, and an answer has the ID.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from cni.address import Address
from kernel import bpf
from kernel.bpf import Instruction
from kernel.checksum import compute_checksum
from kernel.owned_socket import OwnedSocket

TCP, UDP, ICMP, ICMP6 = 6, 17, 1, 58
PROTOCOLS = {4: ICMP, 6: ICMP6}  # of an echo, by IP version
REQUEST, ANSWER, REFUSAL, ERROR = "request", "answer", "refusal", "error"
OTHERHOST, OUTGOING = 3, 4  # PACKET_* (linux/if_packet.h)

_ETH_P_ALL, _ETHERTYPES = 3, {4: 0x0800, 6: 0x86DD}
_SO_TIMESTAMPNS = 35
_IPV6_HEADER, _TRANSPORT, _SEQUENCE = 40, 8, 4
_SNAP_BYTES, _BUFFER_BYTES = 256, 1 << 18
_SYN, _RST, _ACK = 0x02, 0x04, 0x10
_ECHO = {ICMP: (8, 0), ICMP6: (128, 129)}  # types of request and reply
_ERRORS = {ICMP: (3, 4, 5, 11, 12), ICMP6: (1, 2, 3, 4)}  # types
_DNS_PORT, _DNS_FLAGS, _DNS_ANSWER = 53, 0x0100, 0x8000  # recursion is desired
_DNS_QUESTION = struct.pack(">HHHHBHH", 1, 0, 0, 0, 0, 2, 1)  # the name servers of the root, ". IN NS"
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PROBE = 10, 23, 3  # IP_PMTUDISC_PROBE: DF is set, a learned MTU ignored


class Probe(NamedTuple):
    """A marked packet to send; of an ICMP echo `source_port` is the ID. `size` is its length with the IP header."""

    protocol: int
    source: Address
    source_port: int
    destination: Address
    port: int
    token: int
    size: int = 0


class Sighting(NamedTuple):
    """A marked packet on an interface: time, interface, packet type (PACKET_*), sender's MAC, addresses, ports.

    `kind` is REQUEST, ANSWER, REFUSAL (RST) or ERROR, an ICMP message about the request; then `source` is the sender of
    the message, `error` its type and code, and `mtu` its MTU.
    """

    time_s: float
    interface: str
    packet_type: int
    mac: bytes
    kind: str
    source: Address
    source_port: int
    destination: Address
    port: int
    size: int
    error: tuple[int, int] = (0, 0)
    mtu: int = 0

    @property
    def is_outgoing(self) -> bool:
        """Whether the interface sent it."""
        return self.packet_type == OUTGOING

    @property
    def is_for_another(self) -> bool:
        """Whether its frame has the MAC address of another interface."""
        return self.packet_type == OTHERHOST


def new_token(protocol: int, port: int) -> int:
    """Returns a random number for packets of a protocol to a port."""
    number = int.from_bytes(os.urandom(4), "big")
    return number & 0xFFFF0000 | _DNS_FLAGS if (protocol, port) == (UDP, _DNS_PORT) else number & 0x7FFFFFFF | 1


class Tap(OwnedSocket):
    """A packet socket on all interfaces of the namespace that is current when it is created. A context manager."""

    def __init__(self, version: int, tokens: Sequence[int]) -> None:
        """Raises OSError."""
        self._version = version
        self._tokens = frozenset(tokens)
        # Python cannot bind to all interfaces later, so the socket may get packets before it has its filter; `read`
        # ignores packets without a token.
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_PACKET, kind, socket.htons(_ETH_P_ALL))
        try:
            bpf.attach(self._socket, _program(version, tokens))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except BaseException:
            self._socket.close()
            raise

    def read(self) -> Iterator[Sighting]:
        """Yields the packets that have arrived."""
        while True:
            try:
                data, ancillary, _, (name, _, packet_type, _, mac) = self._socket.recvmsg(_SNAP_BYTES, 64)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENETDOWN:  # an interface went down
                    continue
                raise
            seen = _parse(data, self._tokens)
            if seen:
                yield seen._replace(time_s=_timestamp(ancillary), interface=name, packet_type=packet_type, mac=mac)


class Sender(OwnedSocket):
    """A raw socket that sends a probe from the namespace that is current when it is created. A context manager.

    It also receives the answers, as the namespace's programs would get them: after all translations and filters.
    """

    def __init__(self, protocol: int, source: Address, token: int, device: str = "") -> None:
        """Binds to the source address and to an interface, if one is named; raises OSError."""
        self._protocol, self._source, self._tokens = protocol, source, frozenset([token])
        family = socket.AF_INET if source.version == 4 else socket.AF_INET6
        self._socket = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        try:
            bpf.attach(self._socket, _raw_program(source.version, token))
            level, option = (0, _IP_MTU_DISCOVER) if source.version == 4 else (41, _IPV6_MTU_DISCOVER)
            self._socket.setsockopt(level, option, _PROBE)
            if device:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
            self._socket.bind((str(source), 0))
        except BaseException:
            self._socket.close()
            raise

    def receive(self) -> Iterator[Sighting]:
        """Yields the answers that have arrived."""
        while True:
            try:
                data, (sender, *_) = self._socket.recvfrom(_SNAP_BYTES)
            except OSError:  # EAGAIN, or an ICMP error about a probe
                return
            if self._source.version == 4:
                seen = _parse(data, self._tokens)
            else:
                other = IPv6Address(sender.partition("%")[0])
                seen = _parse_segment(other, self._source, self._protocol, data, len(data), self._tokens)
            if seen:
                yield seen

    def send(self, probe: Probe) -> None:
        """Sends a probe; raises OSError when the kernel refuses it, such as ENETUNREACH without a route."""
        self._socket.sendto(build_segment(probe), (str(probe.destination), 0))


def build_segment(probe: Probe) -> bytes:
    """Returns the probe without its IP header, with a checksum."""
    header_bytes = 20 if probe.source.version == 4 else _IPV6_HEADER
    filler = bytes(max(0, probe.size - header_bytes - _TRANSPORT - 4))
    payload = probe.token.to_bytes(4, "big") + filler
    if probe.protocol == TCP:
        segment = struct.pack(">HHIIBBHHH", probe.source_port, probe.port, probe.token, 0, 5 << 4, _SYN, 64240, 0, 0)
        return _with_checksum(probe, segment, 16)
    if probe.protocol == UDP:
        payload += _DNS_QUESTION if probe.port == _DNS_PORT and not probe.size else b""
        length = _TRANSPORT + len(payload)
        return _with_checksum(probe, struct.pack(">HHHH", probe.source_port, probe.port, length, 0) + payload, 6)
    kind = _ECHO[probe.protocol][0]
    segment = struct.pack(">BBHHH", kind, 0, 0, probe.source_port, 1) + payload
    if probe.protocol == ICMP6:  # the kernel fills in the checksum
        return segment
    return segment[:2] + compute_checksum(segment).to_bytes(2, "big") + segment[4:]


def _with_checksum(probe: Probe, segment: bytes, offset: int) -> bytes:
    pseudo = probe.source.packed + probe.destination.packed + struct.pack(">II", len(segment), probe.protocol)
    checksum = compute_checksum(pseudo + segment) or 0xFFFF
    return segment[:offset] + checksum.to_bytes(2, "big") + segment[offset + 2 :]


def _raw_program(version: int, token: int) -> list[Instruction]:
    """Returns the program of a raw socket: with IPv6 its data begins with the header of TCP, UDP or ICMP."""
    _, _, *program = _program(version, [token])
    if version == 4:
        return program
    return [
        step._replace(operand=step.operand - _IPV6_HEADER) if step.code in (bpf.LOAD_WORD, bpf.LOAD_HALF) else step
        for step in program[1:]
    ]


def _program(version: int, tokens: Sequence[int]) -> list[Instruction]:
    """Returns the program: packets of the IP version with a token at one of its places; the data begins with IP."""
    quoted = _TRANSPORT + (20 if version == 4 else _IPV6_HEADER)
    load, start = (bpf.LOAD_WORD_AFTER_X, 0) if version == 4 else (bpf.LOAD_WORD, _IPV6_HEADER)
    half = bpf.LOAD_HALF_AFTER_X if version == 4 else bpf.LOAD_HALF
    places = [(load, place, token) for place in (_SEQUENCE, _TRANSPORT) for token in tokens]
    places += [(load, _TRANSPORT, token + 1) for token in tokens]
    places += [(half, _TRANSPORT, token >> 16) for token in tokens if token & 0xFFFF == _DNS_FLAGS]
    # The last ones: to load what is behind the packet's end refuses it.
    places += [(load, quoted + place, token) for place in (_SEQUENCE, _TRANSPORT) for token in tokens]
    desired = [(code, place, value & 0xFFFFFFFF) for code, place, value in places]
    comparisons: list[Instruction] = []
    for number, (code, place, value) in enumerate(desired):
        left = 2 * (len(desired) - number - 1)
        comparisons += [Instruction(code, 0, 0, start + place), Instruction(bpf.IF_EQUAL, left + 1, 0, value)]
    return [
        Instruction(bpf.LOAD_HALF, 0, 0, bpf.ETHERTYPE_PROPERTY),
        Instruction(bpf.IF_EQUAL, 0, len(comparisons) + 1, _ETHERTYPES[version]),
        Instruction(bpf.LOAD_X_IPV4_HEADER, 0, 0, 0),
        *comparisons,
        Instruction(bpf.RETURN, 0, 0, 0),
        Instruction(bpf.RETURN, 0, 0, _SNAP_BYTES),
    ]


def _timestamp(ancillary: Sequence[tuple[int, int, bytes]]) -> float:
    for _, kind, data in ancillary:
        if kind == _SO_TIMESTAMPNS and len(data) >= 16:
            seconds, nanoseconds = struct.unpack_from("@qq", data)
            return float(seconds + nanoseconds / 1e9)
    return time.time()


def _parse(data: bytes, tokens: frozenset[int]) -> Sighting | None:
    """Returns the marked packet in the bytes of an IP packet, None if it is not one."""
    if len(data) < 20:
        return None
    source: Address
    destination: Address
    if data[0] >> 4 == 4:
        start, protocol, size = (data[0] & 15) * 4, data[9], int.from_bytes(data[2:4], "big")
        source, destination = IPv4Address(data[12:16]), IPv4Address(data[16:20])
    elif len(data) >= _IPV6_HEADER:
        start, protocol, size = _IPV6_HEADER, data[6], _IPV6_HEADER + int.from_bytes(data[4:6], "big")
        source, destination = IPv6Address(data[8:24]), IPv6Address(data[24:40])
    else:
        return None
    return _parse_segment(source, destination, protocol, data[start:], size, tokens)


def _parse_segment(
    source: Address, destination: Address, protocol: int, segment: bytes, size: int, tokens: frozenset[int]
) -> Sighting | None:
    if len(segment) < 12:
        return None
    first, second = struct.unpack_from(">HH", segment)
    kind = _kind(protocol, segment, tokens)
    if kind is None:
        return None
    if protocol in _ECHO:
        first, second = int.from_bytes(segment[4:6], "big"), 0
    seen = Sighting(0.0, "", 0, b"", kind, source, first, destination, second, size)
    if kind == ERROR:
        return seen._replace(error=(segment[0], segment[1]), mtu=int.from_bytes(segment[6:8], "big"))
    return seen


def _kind(protocol: int, segment: bytes, tokens: frozenset[int]) -> str | None:
    word = int.from_bytes(segment[4:8], "big")
    if protocol == TCP:
        if len(segment) < 20 or (word not in tokens and int.from_bytes(segment[8:12], "big") - 1 not in tokens):
            return None
        if segment[13] & _RST:
            return REFUSAL if segment[13] & _ACK else None  # without ACK: the source's own reset
        return REQUEST if word in tokens and not segment[13] & _ACK else ANSWER
    token = int.from_bytes(segment[8:12], "big")
    if protocol == UDP:
        is_answer = token - 1 in tokens or (token & _DNS_ANSWER and token & 0xFFFF0000 | _DNS_FLAGS in tokens)
        return REQUEST if token in tokens else ANSWER if is_answer else None
    if protocol in _ECHO and token in tokens:
        return {_ECHO[protocol][0]: REQUEST, _ECHO[protocol][1]: ANSWER}.get(segment[0])
    return ERROR if protocol in _ERRORS and segment[0] in _ERRORS[protocol] and _quotes(segment[8:], tokens) else None


def _quotes(packet: bytes, tokens: frozenset[int]) -> bool:
    """Returns whether the packet that an ICMP error quotes has a token."""
    if len(packet) < 20:
        return False
    start = (packet[0] & 15) * 4 if packet[0] >> 4 == 4 else _IPV6_HEADER
    places = (start + _SEQUENCE, start + _TRANSPORT)
    return any(int.from_bytes(packet[place : place + 4], "big") in tokens for place in places)
