"""The networks that the self-test tries: together they run every plugin. Each says which packets must arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_interface

from kernel.netns import Netns
from podwire.selftest import dhcp, packets
from podwire.selftest.node import BIN_DIR, PrivateNode
from podwire.selftest.packets import LostError

Config = Mapping[str, object]
_NODE, _NEIGHBOUR = "192.0.2.1", "192.0.2.2"
_HOST_PORT, _PORT = 8080, 80
_RATE, _BURST = 20_000_000, 500_000  # bits: half a second of a stream shows the rate, not the burst
_STREAM_BYTES = 1_250_000
_LEAST, _MOST = 0.02, 1.3  # of the rate: a busy machine is slower, an unlimited stream a hundred times as fast
_VLAN = 5
_BACKENDS = ("nftables", "iptables")


@dataclass(frozen=True)
class Measurement:
    """The value that packets had: what was sent, the number, its unit."""

    what: str
    value: float
    unit: str


@dataclass(frozen=True)
class TestPod:
    """An attached pod: its namespace, its addresses as in ADD's result."""

    netns: Netns
    ips: tuple[Mapping[str, str], ...]

    @property
    def addresses(self) -> list[str]:
        """The addresses without the prefix length."""
        return [ip["address"].partition("/")[0] for ip in self.ips]

    @property
    def ipv4(self) -> str:
        """The first address, which is IPv4 in every trial."""
        return self.addresses[0]


Packets = Callable[[PrivateNode, list[TestPod]], Iterator[Measurement]]


def _none(node: PrivateNode, pods: list[TestPod]) -> Iterator[Measurement]:
    yield from ()


@dataclass(frozen=True)
class Trial:
    """A network to try: its plugins, its number of pods, and generators of the packets that are sent.

    `prepare` creates what the network needs on the node, in a context that lasts as long as the network. `leaves`:
    links that a network keeps on the node without pods.
    """

    name: str
    plugins: tuple[Config, ...]
    packets: Packets = _none
    pods: int = 2
    ifname: str = "eth0"
    prepare: Callable[[PrivateNode], AbstractContextManager[None]] = lambda node: nullcontext()
    leaves: tuple[str, ...] = ()
    capability_args: Mapping[str, object] = field(default_factory=dict)

    @property
    def kinds(self) -> list[str]:
        """The types of the plugins, IPAM plugins after those that run them."""
        kinds = []
        for plugin in self.plugins:
            ipam = plugin.get("ipam")
            kinds += [str(plugin["type"]), *([str(ipam["type"])] if isinstance(ipam, Mapping) else [])]
        return kinds


def list_trials(*, ipv6: bool) -> list[Trial]:
    """Returns the trials; without `ipv6` the networks have IPv4 only."""
    static = {"type": "static", "addresses": [{"address": "10.209.9.2/24"}]}
    return [
        Trial("loopback", ({"type": "loopback"},), _ping_itself, pods=1, ifname="lo"),
        *(_bridge(number, backend, ipv6) for number, backend in enumerate(_BACKENDS)),
        Trial("ptp", ({"type": "ptp", "ipam": _ranges(2, ipv6)}, {"type": "sbr"}), _ping_node_and_pods),
        Trial(
            "vrf", (_routed("pwvrf0", 3, ipv6), {"type": "vrf", "vrfname": "blue"}), _ping_gateway, leaves=("pwvrf0",)
        ),
        Trial("macvlan", (_child("macvlan", 4),), _ping_outer(4), prepare=_uplink(4)),
        Trial("ipvlan", (_child("ipvlan", 5),), _ping_outer(5), prepare=_uplink(5)),
        Trial("vlan", (_child("vlan", 6, vlanId=_VLAN),), _ping_outer(6), pods=1, prepare=_vlan_uplink),
        Trial(
            "host-device", (_child("host-device", 7, link_key="device"),), _ping_outer(7), pods=1, prepare=_uplink(7)
        ),
        Trial(
            "dhcp",
            ({"type": "bridge", "bridge": "pwdhcp0", "ipam": {"type": "dhcp"}},),
            _ping_outer(8),
            pods=1,
            prepare=_dhcp_uplink,
            leaves=("pwdhcp0",),
        ),
        Trial("dummy", ({"type": "dummy", "ipam": static},), _ping_itself, pods=1),
        Trial("tap", ({"type": "tap"},), pods=1),
    ]


def _bridge(number: int, backend: str, ipv6: bool) -> Trial:
    """Returns the trial of the plugins that most nodes run, with one packet filter."""
    name = f"pwbridge{number}"
    limits = {"ingressRate": _RATE, "ingressBurst": _BURST, "egressRate": _RATE, "egressBurst": _BURST}
    plugins: tuple[Config, ...] = (
        {**_routed(name, number, ipv6), "ipMasq": True, "ipMasqBackend": backend, "hairpinMode": True},
        {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "mtu": 1400},
        {"type": "firewall", "backend": backend, "ingressPolicy": "same-bridge"},
        {"type": "portmap", "backend": backend, "capabilities": {"portMappings": True}},
        {"type": "bandwidth", **limits},
    )
    mapping = {"hostPort": _HOST_PORT, "containerPort": _PORT, "protocol": "tcp"}
    arguments = {"portMappings": [mapping]}

    def prepare(node: PrivateNode) -> AbstractContextManager[None]:
        node.add_uplink("pwup0", f"{_NEIGHBOUR}/24", inner=(f"{_NODE}/24",))
        return nullcontext()

    return Trial(
        f"bridge, {backend}", plugins, _bridge_packets, prepare=prepare, leaves=(name,), capability_args=arguments
    )


def _bridge_packets(node: PrivateNode, pods: list[TestPod]) -> Iterator[Measurement]:
    yield from _ping_node_and_pods(node, pods)
    web = pods[0]  # the only one with a host port
    ms, seen = packets.connect(web.netns, _PORT, node.fabric, (_NODE, _HOST_PORT))
    if seen != _NEIGHBOUR:
        raise LostError(f"a connection from {_NEIGHBOUR} to the host port appears to come from {seen}")
    yield Measurement(f"TCP from outside through host port {_HOST_PORT}", ms, "ms")
    ms, seen = packets.connect(node.fabric, _PORT, web.netns, (_NEIGHBOUR, _PORT))
    if seen != _NODE:
        raise LostError(f"a connection from the pod to the outside appears to come from {seen}, not from {_NODE}")
    yield Measurement("TCP from the pod to the outside, masqueraded", ms, "ms")
    for to_pod, name in ((True, "received by"), (False, "sent by")):
        rate = packets.stream(web.netns, _PORT, node.home, (web.ipv4, _PORT), _STREAM_BYTES, to_server=to_pod)
        if not _LEAST * _RATE < rate < _MOST * _RATE:
            raise LostError(f"{rate / 1e6:.1f} Mbit/s {name} the pod, with a limit of {_RATE / 1e6:.0f} Mbit/s")
        yield Measurement(f"stream {name} the pod, limit {_RATE / 1e6:.0f} Mbit/s", rate / 1e6, "Mbit/s")


def _ping_node_and_pods(node: PrivateNode, pods: list[TestPod]) -> Iterator[Measurement]:
    for target in pods[1].addresses:
        yield _ping(pods[0], target, "another pod")
    for ip in pods[0].ips:
        yield _ping(pods[0], ip["gateway"], "the gateway")


def _ping_gateway(node: PrivateNode, pods: list[TestPod]) -> Iterator[Measurement]:
    for ip in pods[0].ips:
        yield _ping(pods[0], ip["gateway"], "the gateway, in the VRF", "eth0")


def _ping_itself(node: PrivateNode, pods: list[TestPod]) -> Iterator[Measurement]:
    for target in pods[0].addresses:
        yield _ping(pods[0], target, "itself")


def _ping_outer(number: int) -> Packets:
    def send(node: PrivateNode, pods: list[TestPod]) -> Iterator[Measurement]:
        yield _ping(pods[0], _outer(number).partition("/")[0], "a host outside")
        for other in pods[1:]:
            yield _ping(pods[0], other.ipv4, "another pod")

    return send


def _ping(pod: TestPod, target: str, what: str, device: str = "") -> Measurement:
    source = next(address for address in pod.addresses if (":" in address) == (":" in target))
    ms = packets.ping(pod.netns, source, target, device)
    return Measurement(f"ping {what}, IPv{6 if ':' in target else 4}", ms, "ms")


def _routed(bridge: str, number: int, ipv6: bool) -> Config:
    return {
        "type": "bridge",
        "bridge": bridge,
        "isGateway": True,
        "isDefaultGateway": True,
        "ipam": _ranges(number, ipv6),
    }


def _child(kind: str, number: int, link_key: str = "master", **keys: object) -> Config:
    return {"type": kind, link_key: f"pwup{number}", **keys, "ipam": _ranges(number, ipv6=False, start=10)}


def _ranges(number: int, ipv6: bool, start: int = 0) -> Config:
    """Returns host-local's configuration; from `start` on, since an address outside is in the same subnet."""
    first: dict[str, object] = {"subnet": f"10.209.{number}.0/24"}
    if start:
        first["rangeStart"] = f"10.209.{number}.{start}"
    ranges = [[first], *([[{"subnet": f"fd00:209:{number}::/64"}]] if ipv6 else [])]
    return {"type": "host-local", "ranges": ranges}


def _outer(number: int) -> str:
    return f"10.209.{number}.1/24"


def _uplink(number: int) -> Callable[[PrivateNode], AbstractContextManager[None]]:
    def prepare(node: PrivateNode) -> AbstractContextManager[None]:
        node.add_uplink(f"pwup{number}", _outer(number))
        return nullcontext()

    return prepare


def _vlan_uplink(node: PrivateNode) -> AbstractContextManager[None]:
    node.add_uplink("pwup6")
    node.add_outer_vlan("pwup6", _VLAN, _outer(6))
    return nullcontext()


def _dhcp_uplink(node: PrivateNode) -> AbstractContextManager[None]:
    node.add_uplink("pwup8", _outer(8), master="pwdhcp0")
    server = ip_interface(_outer(8)).ip
    return dhcp.running(f"{BIN_DIR}/dhcp", node.fabric, "pwup8", IPv4Address(server), IPv4Address("10.209.8.20"))
