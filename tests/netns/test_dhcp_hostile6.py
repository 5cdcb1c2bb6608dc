"""dhcp with forged messages of DHCPv6: only those of the server that the client has chosen count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from typing import Any

import pytest

from ipam.dhcp import frame, packet6
from ipam.dhcp.packet6 import Association, LeasedAddress, Message
from process.values import replace
from tests.support import dhcp_forger, dhcp_node
from tests.support.dhcp_node import Node
from tests.support.machine import eventually
from tests.support.namespaces import Namespace

ADDRESS, FORGED = IPv6Address("fd00:25::7"), IPv6Address("fd00:25::666")
MAC, SOURCE = bytes.fromhex("020000000001"), IPv6Address("fe80::1")
SERVER, OTHER = b"\0\3server", b"\0\3other"
KINDS = {packet6.SOLICIT: packet6.ADVERTISE}  # the answer to any other message is REPLY

# A request as a frame, and the message; returns the frames of the answer.
Answer = Callable[[bytes, Message], Iterator[bytes]]


def reply(request: Message, address: IPv6Address = ADDRESS, **changes: Any) -> Message:
    """Returns a server's answer with an address."""
    leased = Association(request.associations[0].iaid, (LeasedAddress(address, 100.0, 200.0),), 50.0, 80.0)
    answer = Message(KINDS.get(request.kind, packet6.REPLY), request.xid, request.client_id, SERVER, (leased,))
    return replace(answer, **changes)


def to_frame(
    received: bytes,
    message: Message,
    *,
    mac: bytes = b"",
    to: IPv6Address | None = None,
    source: IPv6Address = SOURCE,
    ports: tuple[int, int] = (547, 546),
) -> bytes:
    """Returns a message as a frame to the sender of a received one, with changes."""
    client = frame.parse_udp6(received, checksum_is_ready=False)
    macs, addresses = (MAC, mac or client.source_mac), (source, to or client.source_ip)
    return frame.build_udp6(*macs, *addresses, *ports, packet6.encode(message))


def honest(received: bytes, request: Message) -> Iterator[bytes]:
    """Answers as a server does."""
    yield to_frame(received, reply(request))


def forging(received: bytes, request: Message) -> Iterator[bytes]:
    """Answers with forged messages, then as a server does."""
    forged = reply(request, FORGED, preference=255, rapid_commit=True)
    for kind in (packet6.ADVERTISE, packet6.REPLY):
        message = replace(forged, kind=kind)
        yield to_frame(received, replace(message, xid=request.xid ^ 1))
        yield to_frame(received, replace(message, client_id=request.client_id[:-1] + b"\xff"))
        yield to_frame(received, replace(message, server_id=b""))
        yield to_frame(received, message, ports=(5353, 546))
        yield to_frame(received, message, ports=(547, 547))
        yield to_frame(received, message, source=IPv6Address("fd00:25::53"))
        yield to_frame(received, message, to=IPv6Address("fe80::1234"))
        yield to_frame(received, message, mac=b"\2\0\0\0\0\x99")
    if request.kind != packet6.SOLICIT:
        yield to_frame(received, replace(forged, server_id=OTHER))
        for unusable in ("::1", "ff02::1", "fe80::7"):
            yield to_frame(received, reply(request, IPv6Address(unusable)))
    yield from honest(received, request)


@contextmanager
def answering(machine: Namespace, answer: Answer) -> Iterator[list[Message]]:
    """Answers the clients' messages on the wire during the block; yields the messages."""
    requests: list[Message] = []

    def answers_to(received: bytes) -> Iterator[bytes]:
        datagram = frame.parse_udp6(received, checksum_is_ready=False)
        if datagram.destination_port == 547:
            requests.append(packet6.decode(datagram.payload))
            yield from answer(received, requests[-1])

    with dhcp_forger.answering(machine, 0x86DD, answers_to):
        yield requests


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node without a server, whose daemon gives up an ADD soon."""
    with dhcp_node.created(host, new_sandbox(), tmp_path, flags=("-resendtimeout", "12s")) as node:
        node.start_daemon()
        yield node
        assert not node.daemon.logged("internal error"), node.daemon.log.read_text()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["bridge", "macvlan"])
def test_forged_messages_are_ignored(kind, node, sandbox):
    """A pod gets the address that its server granted, whatever else is on the wire, and releases it."""
    net = node.network(kind, ipam={"ipv4": False, "ipv6": "dhcp"})
    with answering(node.machine, forging) as requests:
        result = net.add(sandbox)
        assert [item["address"] for item in result["ips"]] == [f"{ADDRESS}/128"]
        assert [request.kind for request in requests] == [packet6.SOLICIT, packet6.REQUEST]
        assert requests[1].server_id == SERVER
        assert requests[1].associations[0].addresses[0].address == ADDRESS
        net.delete(sandbox, result)
        assert eventually(lambda: requests[-1].kind == packet6.RELEASE)


@pytest.mark.long
def test_forged_messages_alone(node, sandbox):
    """Without a server, forged messages give no lease: ADD fails."""

    def only_forged(received, request):
        *forged, _ = forging(received, request)
        yield from forged

    with answering(node.machine, only_forged):
        outcome = node.network(ipam={"ipv4": False, "ipv6": "dhcp"}).run("ADD", sandbox)
    assert "no DHCPv6 server answered" in outcome.error()["msg"]
    assert node.list_files() == {}
