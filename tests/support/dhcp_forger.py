"""A host on the wire that answers by a function of the test: a forged or a faulty server or router."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import IPv4Address

from ipam.dhcp import frame, options, packet
from ipam.dhcp.packet import BOOTREPLY, MESSAGE_TYPE, Malformed, Message
from process.values import replace
from tests.support.namespaces import Namespace
from tests.support.uplink import WIRE

SERVER, ADDRESS = IPv4Address("10.25.0.1"), IPv4Address("10.25.0.100")
# A lease of an hour.
GRANT: Mapping[int, bytes] = {
    options.SERVER_ID: SERVER.packed,
    options.SUBNET_MASK: bytes((255, 255, 255, 0)),
    options.ROUTERS: SERVER.packed,
    options.LEASE_TIME: (3600).to_bytes(4, "big"),
}

Answer = Callable[[Message], Iterable[Message]]


def seconds(number: int) -> bytes:
    """Returns a time as an option has it."""
    return number.to_bytes(4, "big")


def reply(
    request: Message, kind: int, changed: Mapping[int, bytes | None] | None = None, address: IPv4Address = ADDRESS
) -> Message:
    """Returns the answer of a server to a request; `changed` replaces options of GRANT, None removes one."""
    chosen = {MESSAGE_TYPE: bytes((kind,)), **GRANT, **(changed or {})}
    present = {number: content for number, content in chosen.items() if content is not None}
    return Message(BOOTREPLY, request.xid, request.chaddr, present, yiaddr=address)


def granting(changed: Mapping[int, bytes | None] | None = None, address: IPv4Address = ADDRESS) -> Answer:
    """Returns an answer that offers and grants the same lease to each client."""

    def answer(request: Message) -> Iterable[Message]:
        kinds = {options.DISCOVER: options.OFFER, options.REQUEST: options.ACK}
        kind = kinds.get(options.message_type(request.options) or 0)
        return [reply(request, kind, changed, address)] if kind else []

    return answer


class Forger:
    """The host; `answer` can be replaced at any time, `requests` are the clients' messages."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Message] = []

    def kinds(self) -> list[int | None]:
        """Returns the types of the clients' messages."""
        return [options.message_type(request.options) for request in self.requests]

    def answers_to(self, received: bytes) -> Iterator[bytes]:
        """Records the message in a frame, and yields the frames of the answer; none for one that is no client's."""
        datagram = frame.parse_udp4(received, checksum_is_ready=False)
        if datagram.destination_port == 67:
            request = packet.decode(datagram.payload)
            self.requests.append(replace(request, options=dict(request.options)))
            yield from map(to_frame, self.answer(request))


@contextlib.contextmanager
def running(machine: Namespace, answer: Answer) -> Iterator[Forger]:
    """Runs the host on the wire during the block."""
    forger = Forger(answer)
    with answering(machine, 0x0800, forger.answers_to):
        yield forger


@contextlib.contextmanager
def answering(machine: Namespace, protocol: int, answers_to: Callable[[bytes], Iterable[bytes]]) -> Iterator[None]:
    """Answers each frame of a protocol on the wire with the frames of `answers_to` during the block."""
    ends = threading.Event()

    def serve() -> None:
        while not ends.is_set():
            with contextlib.suppress(TimeoutError, Malformed):
                received, where = wire.recvfrom(65536)
                for content in answers_to(received) if where[2] != socket.PACKET_OUTGOING else ():
                    with contextlib.suppress(OSError):  # too long for the wire
                        wire.send(content)

    with machine.entered():
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
    with wire:
        wire.bind((WIRE, protocol))
        wire.settimeout(0.1)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join(30)


def to_frame(message: Message) -> bytes:
    """Returns a server's message as a frame to all hosts."""
    macs, everyone = (bytes.fromhex("020000000001"), b"\xff" * 6), IPv4Address("255.255.255.255")
    return frame.build_udp4(*macs, SERVER, everyone, 67, 68, packet.encode(message))
