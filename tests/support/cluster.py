"""The nodes of a cluster as network namespaces, each with a bridge and one pod, and packets between them.

In one segment the nodes' uplinks are ports of one bridge; otherwise a router is between each two of them. Reverse path
filtering is strict everywhere.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Self

from agent.node import Node
from agent.route_plan import RouteOptions
from agent.routes import Routes
from kernel import notifications
from kernel.notifications import Notifications
from kernel.route import RTM_DELROUTE
from kernel.rtnl import Socket
from tests.support.namespaces import Namespace, temporary
from tests.support.publishing import disable_dad

UPLINK, BRIDGE, PORT = "eth0", "cni0", 7000
_TIMEOUT_S = 20.0
_RECEIVE_BUFFER_FORCE = 33  # SO_RCVBUFFORCE (asm-generic/socket.h)


@dataclass
class TestNode:
    """A node: its number, namespace and pod; in one segment if `is_joined`."""

    __test__ = False

    number: int
    host: Namespace
    pod: Namespace
    is_joined: bool
    versions: tuple[int, ...]
    log: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The node's name."""
        return f"node-{self.number}"

    def address(self, version: int) -> str:
        """Returns the node's internal address."""
        segment = 0 if self.is_joined else self.number
        text = f"192.0.{segment}.{self.number + 10}" if version == 4 else f"2001:db8:{segment}::{self.number + 10}"
        return str(ip_address(text))

    def network(self, version: int) -> str:
        """Returns the network of the node's pods."""
        return f"10.244.{self.number}.0/24" if version == 4 else f"fd00:244:{self.number}::/64"

    def pod_address(self, version: int) -> str:
        """Returns the pod's address."""
        return f"10.244.{self.number}.10" if version == 4 else f"fd00:244:{self.number}::10"

    def node(self, **changes: object) -> Node:
        """Returns the node as the API server describes it, with changes."""
        networks = tuple(ip_network(self.network(version)) for version in self.versions)
        addresses = tuple(ip_address(self.address(version)) for version in self.versions)
        return Node(self.name, f"uid-{self.number}", networks, addresses)._replace(**changes)  # type: ignore[arg-type]

    def routes(self, options: RouteOptions) -> Routes:
        """Opens the routes of this node."""
        with self.host.entered():
            return Routes(options, self.log.append)

    def set_pod_mtu(self, mtu: int) -> None:
        """Sets the MTU of the pod, as the plugins do."""
        self.host.ip("link", "set", "pod0", "mtu", str(mtu))
        self.pod.ip("link", "set", "eth0", "mtu", str(mtu))


@dataclass
class Cluster:
    """The nodes, and the machine that connects them."""

    nodes: list[TestNode]
    middle: Namespace

    def peers(self) -> dict[str, Node]:
        """Returns all nodes as the API server describes them."""
        return {each.name: each.node() for each in self.nodes}

    @contextlib.contextmanager
    def routed(self, options: RouteOptions) -> Iterator[list[Routes]]:
        """Runs the routes of all nodes, synchronized once."""
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(each.routes(options)) for each in self.nodes]
            for node, routes in zip(self.nodes, running, strict=True):
                routes.set_node(node.node())
                routes.replace_peers(self.peers())
            yield running


@contextlib.contextmanager
def cluster(count: int, *, is_joined: bool, versions: tuple[int, ...] = (4, 6)) -> Iterator[Cluster]:
    """Yields a cluster; `versions` are the IP versions of pods and nodes."""
    with contextlib.ExitStack() as stack:
        middle = stack.enter_context(temporary("middle"))
        _prepare(middle)
        if is_joined:
            middle.ip("link", "add", "br0", "type", "bridge")
            middle.ip("link", "set", "br0", "up")
        nodes = []
        for number in range(1, count + 1):
            host, pod = stack.enter_context(temporary("node")), stack.enter_context(temporary("pod"))
            nodes.append(TestNode(number, host, pod, is_joined, versions))
            _connect(nodes[-1], middle)
        yield Cluster(nodes, middle)


def _prepare(namespace: Namespace) -> None:
    disable_dad(namespace)
    namespace.ip("link", "set", "lo", "up")
    for key, value in (
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv4/conf/all/rp_filter", "1"),
        ("ipv4/conf/default/rp_filter", "1"),
    ):
        namespace.set_sysctl(f"net/{key}", value)


def _connect(node: TestNode, middle: Namespace) -> None:
    host, pod, wire = node.host, node.pod, f"wire{node.number}"
    _prepare(host)
    _prepare(pod)
    host.ip("link", "add", UPLINK, "type", "veth", "peer", "name", wire, "netns", middle.name)
    middle.ip("link", "set", wire, "up")
    if node.is_joined:
        middle.ip("link", "set", wire, "master", "br0")
    host.ip("link", "add", BRIDGE, "type", "bridge")
    host.ip("link", "add", "pod0", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    host.ip("link", "set", "pod0", "master", BRIDGE)
    for name in (UPLINK, BRIDGE, "pod0"):
        host.ip("link", "set", name, "up")
    pod.ip("link", "set", "eth0", "up")
    for version in node.versions:
        add_addresses(node, version, middle)


def add_addresses(node: TestNode, version: int, middle: Namespace) -> None:
    """Adds the addresses and default routes of one IP version to a node and its pod."""
    length, flags = (24, ()) if version == 4 else (64, ("nodad",))
    gateway = node.pod_address(version).removesuffix("0")
    node.host.ip("address", "add", f"{node.address(version)}/{length}", "dev", UPLINK, *flags)
    node.host.ip("address", "add", f"{gateway}/{length}", "dev", BRIDGE, *flags)
    node.pod.ip("address", "add", f"{node.pod_address(version)}/{length}", "dev", "eth0", *flags)
    node.pod.ip(f"-{version}", "route", "add", "default", "via", gateway)
    if not node.is_joined:
        router = node.address(version).removesuffix(str(node.number + 10)) + "1"
        middle.ip("address", "add", f"{router}/{length}", "dev", f"wire{node.number}", *flags)
        node.host.ip(f"-{version}", "route", "add", "default", "via", router)


def mtu_of(namespace: Namespace, name: str) -> int:
    """Returns the MTU of a link."""
    return int(json.loads(namespace.ip("-j", "link", "show", name))[0]["mtu"])


def _open(namespace: Namespace, kind: socket.SocketKind, address: str) -> socket.socket:
    with namespace.entered():
        opened = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    opened.settimeout(_TIMEOUT_S)
    return opened


def ask(source: Namespace, target: Namespace, address: str, size: int = 1, *, within_s: float = _TIMEOUT_S) -> str:
    """Sends a UDP packet of `size` bytes; returns the source address that the target sees, "" without a reply."""
    with _open(target, socket.SOCK_DGRAM, address) as server, _open(source, socket.SOCK_DGRAM, address) as client:
        for each in (server, client):
            each.settimeout(within_s)
        server.bind((address, PORT))
        client.connect((address, PORT))
        try:
            client.send(bytes(size))
            data, caller = server.recvfrom(65536)
            server.sendto(data, caller)
            return str(caller[0]) if client.recv(65536) == bytes(size) else ""
        except OSError:
            return ""


def transfer(source: Namespace, target: Namespace, address: str, size: int) -> tuple[int, int]:
    """Sends `size` bytes by TCP; returns how many arrived, and the segments that were sent again."""
    received = 0

    def serve() -> None:
        nonlocal received
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(1 << 16):
                    received += len(data)

    with _open(target, socket.SOCK_STREAM, address) as server, _open(source, socket.SOCK_STREAM, address) as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, PORT))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            client.connect((address, PORT))
            client.sendall(bytes(size))
            client.shutdown(socket.SHUT_WR)
        finally:
            thread.join(timeout=200)
        # struct tcp_info: tcpi_total_retrans
        resent = int.from_bytes(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)[100:104], "little")
    return received, resent


class Stream:
    """A stream of UDP packets, one each 2 ms, while the block runs; afterwards `lost` counts the missing ones."""

    def __init__(self, source: Namespace, target: Namespace, address: str) -> None:
        self._server = _open(target, socket.SOCK_DGRAM, address)
        self._client = _open(source, socket.SOCK_DGRAM, address)
        self._server.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, 16 << 20)  # they are read at the end
        self._server.bind((address, PORT))
        self._client.connect((address, PORT))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent = self.lost = 0

    def _send(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                self._client.send(b"x")
            self.sent += 1
            time.sleep(0.002)

    def wait(self, count: int) -> None:
        """Waits until `count` more packets were sent."""
        end = self.sent + count
        while self.sent < end:
            time.sleep(0.002)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._server.settimeout(0.3)
        received = 0
        with contextlib.suppress(OSError):
            while self._server.recv(16):
                received += 1
        self.lost = self.sent - received
        self._server.close()
        self._client.close()


class RouteMonitor:
    """Collects the kernel's notifications about routes while the block runs: "Added" (or replaced) and "Deleted"."""

    def __init__(self, host: Namespace) -> None:
        self._host = host
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        with self._host.entered():
            self._socket = Socket()
            groups = (notifications.IPV4_ROUTE, notifications.IPV6_ROUTE)
            self._news = Notifications(groups, self._socket, buffer_bytes=1 << 20)
        return self

    def __exit__(self, *_: object) -> None:
        for item in self._news.receive() or []:
            self.lines.append("Deleted" if item.type == RTM_DELROUTE else "Added")
        self._news.close()
        self._socket.close()
