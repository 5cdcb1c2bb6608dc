"""The warm-up's fake kernel: a System that answers the verbs of one pod, which has one bridge and a veth pair.

One rule: it depends on no state of the building machine; what verbs create exists as long as this object.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

import kernel.address
import kernel.link
import kernel.route
import kernel.rule
import kernel.traffic
from attachment.policy.table import GATE_SOCKET
from cni.address import Cidr, parse_cidr
from ipam.dhcp.conf import SOCKET_PATH
from kernel import system
from kernel.codec import AddressMessage, LinkMessage, NamespaceMessage, RouteMessage
from kernel.system import System
from kernel.wire import Attributes, encode
from pack.fake_dhcp import Daemon
from pack.fake_links import BRIDGE, CHILD, DEVICE, IFB, LO, VETH, Links
from pack.fake_nftables import Ruleset
from pack.fake_request import NetlinkRequest, split
from process.child import ChildCommand, Notice, Outcome

_INDEX = struct.Struct("=i")
_TUNSETIFF = 0x400454CA  # linux/if_tun.h
_POD = ("10.1.2.2/24", "fd00:1:2::2/64")
_ADDRESSES = {
    LO: ("127.0.0.1/8", "::1/128"),
    BRIDGE: ("10.1.2.1/24", "fd00:1:2::1/64"),
    **dict.fromkeys((VETH, CHILD, DEVICE), _POD),
}
_NO_DESCRIPTOR = -1
_DELETED = (VETH, CHILD, IFB)  # the links whose deletions a subscriber awaits
# Creation, deletion and listing, by each of the three.
_KINDS = {
    kind: kinds
    for kinds in (
        (kernel.traffic.RTM_NEWQDISC, kernel.traffic.RTM_DELQDISC, kernel.traffic.RTM_GETQDISC),
        (kernel.traffic.RTM_NEWTFILTER, kernel.traffic.RTM_DELTFILTER, kernel.traffic.RTM_GETTFILTER),
        (kernel.rule.RTM_NEWRULE, kernel.rule.RTM_DELRULE, kernel.rule.RTM_GETRULE),
        (kernel.route.RTM_NEWROUTE, kernel.route.RTM_DELROUTE, kernel.route.RTM_GETROUTE),
    )
    for kind in kinds
}
_TRAFFIC = (kernel.traffic.RTM_NEWQDISC, kernel.traffic.RTM_NEWTFILTER)


class FakeKernel(System):
    """The fake kernel; `directory` is a new directory, whose files replace those of the kernel and programs.

    Each method except run_programs() first calls the one that it replaces, in such a way that this has no effect: so
    the layout knows that method's objects, which would otherwise cost a start some eight page faults.
    """

    def __init__(self, directory: str) -> None:
        self._running = system.current
        self._parameter = f"{directory}/parameter"
        self._programs = directory
        with open(self._parameter, "wb") as parameter:
            parameter.write(b"1")
        for name in ("iptables-restore", "ip6tables-restore"):
            os.symlink("xtables-nft-multi", f"{directory}/{name}")
        self._links = Links()
        self._routing = _Routing()
        self._ruleset = Ruleset()

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Returns a socket that receives the fake kernel's answers, or those of a DHCP daemon."""
        descriptor = self._running.open_socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach()
        if family == socket.AF_UNIX:
            return _Socket(bytes, descriptor)  # no answers before connect()
        answer = self._answer_route if protocol == socket.NETLINK_ROUTE else self._answer_netfilter
        return _Socket(answer, descriptor)

    def enter_netns(self, descriptor: int) -> None:
        """Stays in the network namespace: all namespaces have the same links."""
        with suppress(OSError):
            self._running.enter_netns(_NO_DESCRIPTOR)

    def send_in_background(self, descriptor: int, request: bytes, report: int) -> int:
        """Executes the request now; returns no process ID."""
        with suppress(ValueError):
            self._running.send_in_background(_NO_DESCRIPTOR, request, report)
        self._answer_route(request)
        return 0

    def close_in_background(self, descriptor: int, ended: int, delay_us: int) -> int:
        """Does nothing, since the caller closes the socket, too; returns no process ID."""
        with suppress(ValueError):
            self._running.close_in_background(_NO_DESCRIPTOR, ended, delay_us)
        return 0

    def path(self, path: str) -> str:
        """Returns the same file, with the content "1", for every path."""
        self._running.path(path)
        return self._parameter

    def state_path(self, path: str) -> str:
        """Returns a path in this object's directory."""
        return self._programs + self._running.state_path(path)

    def ioctl(self, descriptor: int, request: int, argument: bytes | int) -> None:
        """Creates a tap device; accepts any other request."""
        with suppress(ValueError):
            self._running.ioctl(_NO_DESCRIPTOR, request, argument)
        if request == _TUNSETIFF and isinstance(argument, bytes):
            self._links.create_tap(argument[:16].rstrip(b"\0").decode())

    def find_program(self, name: str, directories: tuple[str, ...]) -> str:
        """Returns the path of a link as that of iptables-nft's programs."""
        self._running.find_program(name, (self._programs,))
        return f"{self._programs}/{name}"

    def run_programs(self, *commands: ChildCommand, limit_s: float, notice: Notice) -> list[Outcome]:
        """Raises RuntimeError: the verbs run iptables' programs only if netlink fails."""
        raise RuntimeError(f"the warm-up ran {' '.join(commands[0].argv)}: {commands[0].stdin.decode()}")

    def random_bytes(self, size: int) -> bytes:
        """Returns the same bytes each time, from which fake_links.MAC is computed."""
        return bytes(len(self._running.random_bytes(size)) - 1) + b"\x01"

    def _answer_route(self, data: bytes) -> bytes:
        return _answer(data, self._route_answers)

    def _answer_netfilter(self, data: bytes) -> bytes:
        return _answer(data, self._ruleset.answers)

    def _route_answers(self, request: NetlinkRequest) -> Iterator[bytes]:
        """Yields the answers to a request of NETLINK_ROUTE but its acknowledgement."""
        if request.kind in (kernel.link.RTM_NEWLINK, kernel.link.RTM_DELLINK, kernel.link.RTM_GETLINK):
            yield from self._links.answers(request)
        elif request.kind in _KINDS:
            yield from self._routing.answers(request)
        elif request.kind == kernel.address.RTM_GETADDR:
            yield from _addresses(request)
        elif request.kind == kernel.link.RTM_GETNSID:
            yield request.encode(NamespaceMessage, kernel.link.RTM_NEWNSID, {}, [("NETNSA_NSID", 0)])


class _Socket(socket.socket):
    """Receives what a function returns for the data that were sent last."""

    def __init__(self, answer: Callable[[bytes], bytes], descriptor: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM, fileno=descriptor)
        self._answer = answer
        self._answers = b""

    def setsockopt(self, *unused: object) -> None:
        """Accepts any option."""

    def connect(self, address: object) -> None:
        """Accepts the address of the DHCP daemon or of podwire-agent; raises FileNotFoundError for any other."""
        if address == SOCKET_PATH:
            self._answer = Daemon().answers
        elif address == system.current.state_path(GATE_SOCKET):
            self._answer = _answer_gate
        else:  # such as that of D-Bus
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        self._make_readable()

    def bind(self, address: object) -> None:
        """Accepts any address, and notifies subscribers that the links which a verb may delete are deleted."""
        self._make_readable()
        header = kernel.link.RTM_DELLINK, 0, 0
        self._answers = b"".join(encode(LinkMessage, header, {"index": index}, []) for index in _DELETED)

    def send(self, data: bytes) -> int:  # type: ignore[override]
        """Prepares the answers to the data."""
        self._answers = self._answer(bytes(data))
        return len(data)

    def recv(self, size: int) -> bytes:  # type: ignore[override]
        """Returns all answers at once."""
        return self._answers

    def _make_readable(self) -> None:
        super().bind(b"")
        self.sendto(b"notification", self.getsockname())


def _answer_gate(request: bytes) -> bytes:
    """Returns podwire-agent's answer to an ADD that waits for the pod's policies."""
    return b'{"generation": 1}\n'


class _Routing:
    """Routes, policy rules and traffic control: those that verbs have added, and a route in table main.

    There is one pod, so a deletion of a rule or route deletes all rules, or all routes, that verbs have added. Objects
    of traffic control have a position, an interface and a parent.
    """

    def __init__(self) -> None:
        self._added: dict[tuple[int, bytes], list[bytes]] = {}  # contents of messages, by their type and position

    def answers(self, request: NetlinkRequest) -> Iterator[bytes]:
        """Executes a request, and yields its answers but the acknowledgement."""
        create, delete, read = _KINDS[request.kind]
        content = request.content
        position = create, (content[4:8] + content[12:16] if create in _TRAFFIC else b"")
        is_main = create not in _TRAFFIC and content[4] == kernel.route.TABLE_MAIN
        if request.kind == create and not is_main:
            others = [] if create in _TRAFFIC else self._added.get(position, [])
            self._added[position] = [*others, content]
        elif request.kind == delete and not is_main:
            self._added.pop(position, None)
        elif request.kind == read:
            if read == kernel.route.RTM_GETROUTE:
                yield _main_route(request)
            added = self._added.get(position, [])
            yield from (request.answer(create, each) for each in added)
            if create in _TRAFFIC and not added and not request.is_dump:
                yield request.refusal(errno.ENOENT)


def _main_route(request: NetlinkRequest) -> bytes:
    values = {"family": request.content[0] or socket.AF_INET, "table": kernel.route.TABLE_MAIN, "type": 1}
    return request.encode(RouteMessage, kernel.route.RTM_NEWROUTE, values, [("RTA_OIF", VETH)])


def _addresses(request: NetlinkRequest) -> Iterator[bytes]:
    (index,) = _INDEX.unpack_from(request.content, 4)
    for text in _ADDRESSES.get(index, ()):
        cidr = parse_cidr(text)
        values = {"family": _family(cidr), "prefixlen": cidr.network.prefixlen, "index": index}
        attributes: Attributes = [("IFA_LOCAL", cidr.ip.packed), ("IFA_ADDRESS", cidr.ip.packed)]
        yield request.encode(AddressMessage, kernel.address.RTM_NEWADDR, values, attributes)


def _family(cidr: Cidr) -> int:
    return socket.AF_INET if cidr.version == 4 else socket.AF_INET6


def _answer(data: bytes, answers: Callable[[NetlinkRequest], Iterator[bytes]]) -> bytes:
    """Returns all answers to a batch of requests."""
    messages = [message for request in split(data) for message in (*answers(request), request.end())]
    return b"".join(message + bytes(-len(message) % 4) for message in messages)
