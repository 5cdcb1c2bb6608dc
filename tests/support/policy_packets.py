"""A node with pods on a bridge and pods with a routed veth, a host beside it, and raw packets between all of them.

One rule: a packet counts as passed if the namespace of its destination receives it; nothing listens there.
"""

import contextlib
import itertools
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from ipaddress import ip_address

from agent.policy.evaluator import PodConnection
from cni.address import Address
from kernel.checksum import compute_checksum
from tests.support import namespaces
from tests.support.namespaces import Namespace
from tests.support.publishing import disable_dad

# The addresses of policy_world: pods 1 to 7 are on the bridge, within these networks, the others are routed.
PODS = [tuple(map(ip_address, (f"10.0.0.{n}", f"fd00:1::{n}"))) for n in range(1, 13)]
BRIDGED = 7
BRIDGE_NETWORKS = "10.0.0.0/29", "fd00:1::/125"
GATEWAYS = "10.0.0.254", "fd00:1::fe"
NODE_ADDRESSES = tuple(map(ip_address, ("192.0.2.1", "fd00::1")))
REMOTE = tuple(map(ip_address, ("192.0.2.2", "198.51.100.7", "203.0.113.1", "2001:db8::1")))
_LINK6 = "fd00:99::1", "fd00:99::2"  # of the node and of the host beside it

_PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1}
_NAMES = {number: name for name, number in _PROTOCOLS.items()}
_ICMPV6 = 58
_ECHO = {4: 8, 6: 128}
_CHECKSUM_AT = {"tcp": 16, "udp": 6}  # in the header
_ETH_P_ALL = 3
_RCVBUFFORCE, _BUFFER = 33, 1 << 23
_TRANSPARENT = {4: (socket.SOL_IP, 19), 6: (socket.IPPROTO_IPV6, 75)}  # IP_TRANSPARENT, IPV6_TRANSPARENT
_QUIET_S = 0.2  # a packet takes microseconds

Arrival = tuple[str, int, Address]  # protocol, source port, destination


class PacketNode:
    """The namespaces, and a socket that sees all packets of each."""

    def __init__(self, stack: ExitStack) -> None:
        self.host = stack.enter_context(namespaces.temporary_host())
        self.remote = stack.enter_context(namespaces.temporary("remote"))
        self.pods = [stack.enter_context(namespaces.temporary()) for _ in PODS]
        self._connect()
        self.places: dict[Address, Namespace] = {
            **{address: pod for pod, pair in zip(self.pods, PODS, strict=True) for address in pair},
            **dict.fromkeys(REMOTE, self.remote),
            **dict.fromkeys(NODE_ADDRESSES, self.host),
        }
        self._stack = stack
        self._taps = {self._tap(place): place for place in (self.host, self.remote, *self.pods)}
        self._senders: dict[tuple[Namespace, Address, int], socket.socket] = {}
        self.numbers = itertools.cycle(range(20_000, 60_000))

    def passed(self, *connections: PodConnection, source_port: int = 0, place: Namespace | None = None) -> list[bool]:
        """Sends the first packet of each connection; returns whether it arrived at its destination."""
        arrivals = self.arrivals(*connections, source_port=source_port, place=place)
        return [each.destination in arrived for each, arrived in zip(connections, arrivals, strict=True)]

    def arrivals(
        self, *connections: PodConnection, source_port: int = 0, place: Namespace | None = None
    ) -> list[set[Address]]:
        """Sends the first packet of each connection; returns the destinations with which pods and hosts received it.

        Each has a source port of its own, or all have `source_port`. `place` sends in place of the source.
        """
        numbers = [source_port or next(self.numbers) for _ in connections]
        self.receive(0)
        for connection, number in zip(connections, numbers, strict=True):
            self.send(connection, number, place)
        arrived = self.receive()
        return [
            {address for protocol, port, address in arrived if (protocol, port) == (connection.protocol, number)}
            for connection, number in zip(connections, numbers, strict=True)
        ]

    def send(self, connection: PodConnection, number: int, place: Namespace | None = None) -> None:
        """Sends the first packet of a connection; `number` is its source port, or ICMP's ID."""
        source, destination, protocol, _ = connection
        number_of_protocol = _ICMPV6 if protocol == "icmp" and source.version == 6 else _PROTOCOLS[protocol]
        sender = self._sender(place or self.places[source], source, number_of_protocol)
        # An earlier packet was refused, or the node's filter drops this one.
        with contextlib.suppress(ConnectionRefusedError, PermissionError):
            sender.sendto(_packet(connection, number), (str(destination), 0))

    def receive(self, quiet_s: float = _QUIET_S) -> set[Arrival]:
        """Returns the packets that arrived, when none has arrived for a while."""
        arrived = set()
        while ready := select.select(list(self._taps), [], [], quiet_s)[0]:
            for tap in ready:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        data, (_, _, kind, *_) = tap.recvfrom(256)
                        arrival = _parse(data) if kind != socket.PACKET_OUTGOING else None
                        if arrival and self.places.get(arrival[2]) == self._taps[tap]:
                            arrived.add(arrival)
        return arrived

    def _sender(self, place: Namespace, source: Address, protocol: int) -> socket.socket:
        key = place, source, protocol
        if key not in self._senders:
            with place.entered():
                family = socket.AF_INET6 if source.version == 6 else socket.AF_INET
                new = self._stack.enter_context(socket.socket(family, socket.SOCK_RAW, protocol))
            new.setsockopt(*_TRANSPARENT[source.version], 1)  # for a source that is not the sender's
            new.bind((str(source), 0))
            new.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # no process reads it
            self._senders[key] = new
        return self._senders[key]

    def _tap(self, place: Namespace) -> socket.socket:
        with place.entered():
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        tap.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _BUFFER)
        tap.setblocking(False)
        return self._stack.enter_context(tap)

    def _connect(self) -> None:
        host, remote = self.host, self.remote
        for place in (host, remote, *self.pods):
            disable_dad(place)
            place.ip("link", "set", "lo", "up")
        for key in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            host.set_sysctl(key, "1")
        for key in ("iptables", "ip6tables"):
            host.set_sysctl(f"net/bridge/bridge-nf-call-{key}", "1")
        for name in ("all", "default"):
            host.set_sysctl(f"net/ipv4/conf/{name}/send_redirects", "0")
        host.ip("link", "add", "cni0", "type", "bridge")
        self._set_up(host, "cni0", f"{GATEWAYS[0]}/32", f"{GATEWAYS[1]}/128", f"{NODE_ADDRESSES[1]}/128")
        for network in BRIDGE_NETWORKS:
            host.ip("route", "add", network, "dev", "cni0")
        host.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", remote.name)
        self._set_up(host, "uplink", f"{NODE_ADDRESSES[0]}/24", f"{_LINK6[0]}/64")
        self._set_up(remote, "eth0", f"{REMOTE[0]}/24", f"{_LINK6[1]}/64", *map(str, REMOTE[1:]))
        for via_host, via_remote, networks in (
            (str(NODE_ADDRESSES[0]), str(REMOTE[0]), ["10.0.0.0/24"]),
            (*_LINK6, ["fd00:1::/64", "fd00::1/128"]),
        ):
            host.ip("route", "add", "default", "via", via_remote)
            for network in networks:
                remote.ip("route", "add", network, "via", via_host)
        for number, (pod, pair) in enumerate(zip(self.pods, PODS, strict=True)):
            self._attach(number, pod, pair)

    def _attach(self, number: int, pod: Namespace, pair: Sequence[Address]) -> None:
        name, is_bridged = f"veth{number + 1}", number < BRIDGED
        self.host.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", pod.name)
        if is_bridged:
            self.host.ip("link", "set", name, "master", "cni0")
            self.host.ip("link", "set", name, "type", "bridge_slave", "hairpin", "on")  # for Services of the pod itself
        # IPv6 answers only for the addresses of the interface that is asked.
        self._set_up(self.host, name, *([] if is_bridged else [f"{GATEWAYS[1]}/128"]))
        self._set_up(pod, "eth0", *(f"{address}/{address.max_prefixlen}" for address in pair))
        for address, gateway, network in zip(pair, GATEWAYS, BRIDGE_NETWORKS, strict=True):
            if is_bridged:
                pod.ip("route", "add", network, "dev", "eth0")
            else:
                self.host.ip("route", "add", str(address), "dev", name)
            pod.ip("route", "add", gateway, "dev", "eth0")
            pod.ip("route", "add", "default", "via", gateway)

    def _set_up(self, place: Namespace, name: str, *addresses: str) -> None:
        place.ip("link", "set", name, "up")
        for address in addresses:
            place.ip("address", "add", address, "dev", name, *(["nodad"] if ":" in address else []))


@contextlib.contextmanager
def packet_node() -> Iterator[PacketNode]:
    """Yields a node; deletes it afterwards."""
    with ExitStack() as stack:
        yield PacketNode(stack)


def _packet(connection: PodConnection, number: int) -> bytes:
    """Returns the first packet of a connection, after the IP header; `number` is its source port, or ICMP's ID."""
    source, destination, protocol, port = connection
    ports = struct.pack(">HH", number, port)
    if protocol == "icmp":
        data = struct.pack(">BBHHH", _ECHO[source.version], 0, 0, number, 1)
        pseudo = b"" if source.version == 4 else _pseudo_header(source, destination, _ICMPV6, len(data))
        return data[:2] + compute_checksum(pseudo + data).to_bytes(2, "big") + data[4:]
    if protocol == "sctp":
        return ports + bytes(8) + struct.pack(">BBHIIHHI", 1, 0, 20, 1, 65536, 1, 1, 1)  # INIT
    rest = struct.pack(">HH", 8, 0) if protocol == "udp" else struct.pack(">IIBBHHH", 1, 0, 0x50, 2, 1024, 0, 0)  # SYN
    data, at = ports + rest, _CHECKSUM_AT[protocol]
    checksum = compute_checksum(_pseudo_header(source, destination, _PROTOCOLS[protocol], len(data)) + data)
    return data[:at] + (checksum or 0xFFFF).to_bytes(2, "big") + data[at + 2 :]


def _pseudo_header(source: Address, destination: Address, protocol: int, length: int) -> bytes:
    return source.packed + destination.packed + struct.pack(">II", length, protocol)


def _parse(data: bytes) -> Arrival | None:
    """Returns the protocol, the source port or ICMP's ID, and the destination of an IP packet; None for another one."""
    version = data[0] >> 4 if data else 0
    if version not in (4, 6):
        return None
    start, number = ((data[0] & 15) * 4, data[9]) if version == 4 else (40, data[6])
    destination = ip_address(data[16:20] if version == 4 else data[24:40])
    if number in (_PROTOCOLS["icmp"], _ICMPV6):
        is_echo = data[start] == _ECHO[version]
        return ("icmp", int.from_bytes(data[start + 4 : start + 6], "big"), destination) if is_echo else None
    protocol = _NAMES.get(number)
    return (protocol, int.from_bytes(data[start : start + 2], "big"), destination) if protocol else None
