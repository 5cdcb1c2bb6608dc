"""Rates of the node's pods between two moments: traffic, packets that limits dropped, tracked connections."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_interface

from cni.errors import CniError
from kernel import counters
from kernel.counters import Conntrack, Traffic
from kernel.netns import Netns, entered
from kernel.rtnl import Socket
from plugins.bandwidth.ifb_owner import IfbOwner
from podwire.node.model import Pod
from podwire.node.snapshot import Snapshot

_MOST_CONNECTIONS = 50_000  # that are listed each time: a fifth of a second
_BITS = 8


@dataclass(frozen=True)
class Counts:
    """The counters at a moment: traffic from the pod's point of view by number of the pod, drops by interface."""

    time_s: float
    traffic: Mapping[int, Traffic]
    drops: Mapping[str, int]
    conntrack: Conntrack | None


@dataclass(frozen=True)
class Rate:
    """A pod's rates per second between two moments, None if they are unknown; `connections` are those tracked now."""

    pod: Pod
    receives_bits: float | None = None
    receives_packets: float | None = None
    sends_bits: float | None = None
    sends_packets: float | None = None
    receives_drops: float | None = None
    sends_drops: float | None = None
    connections: int | None = None

    @property
    def drops(self) -> float | None:
        """The packets that limits dropped in both directions, None without a limit."""
        known = [number for number in (self.receives_drops, self.sends_drops) if number is not None]
        return sum(known) if known else None

    @property
    def bits(self) -> float:
        """The traffic in both directions, for sorting."""
        return (self.receives_bits or 0) + (self.sends_bits or 0)


def read_counts(snapshot: Snapshot, pods: tuple[Pod, ...]) -> Counts:
    """Reads the counters of pods; one whose namespace is gone has none. Raises CniError, OSError."""
    host = counters.read_traffic()
    traffic = {}
    for number, pod in enumerate(pods):
        if veth := host.get(pod.host_interface):  # what the host receives from the veth, the pod has sent
            traffic[number] = Traffic(veth.sent_bytes, veth.sent_packets, veth.received_bytes, veth.received_packets)
        elif pod.netns and not pod.leaked:
            try:
                with Netns(pod.netns) as namespace, entered(namespace):
                    inner = counters.read_traffic().get(pod.attachment.ifname)
            except (CniError, OSError):
                continue
            traffic |= {number: inner} if inner else {}
    with Socket() as socket:
        drops = counters.list_drops(socket)
    names = {link.index: link.name for link in snapshot.kernel.links}
    by_name = {names[index]: number for index, number in drops.items() if index in names}
    return Counts(time.monotonic(), traffic, by_name, counters.read_conntrack(_MOST_CONNECTIONS))


def compute_rates(pods: tuple[Pod, ...], before: Counts, now: Counts) -> list[Rate]:
    """Returns the rates of pods between two moments."""
    seconds = max(now.time_s - before.time_s, 0.001)
    return [_rate(number, pod, before, now, seconds) for number, pod in enumerate(pods)]


def _rate(number: int, pod: Pod, before: Counts, now: Counts, seconds: float) -> Rate:
    ifbs = IfbOwner(pod.network, *pod.attachment).names
    connections = None
    if now.conntrack and (now.conntrack.by_address or not now.conntrack.count):
        addresses = {ip_interface(text).ip for text in pod.addresses}
        connections = sum(now.conntrack.by_address.get(address, 0) for address in addresses)
    rate = Rate(
        pod,
        receives_drops=_difference((pod.host_interface,), before, now, seconds),
        sends_drops=_difference(ifbs, before, now, seconds),
        connections=connections,
    )
    old, new = before.traffic.get(number), now.traffic.get(number)
    if not old or not new:
        return rate
    return replace(
        rate,
        receives_bits=max(new.received_bytes - old.received_bytes, 0) * _BITS / seconds,
        receives_packets=max(new.received_packets - old.received_packets, 0) / seconds,
        sends_bits=max(new.sent_bytes - old.sent_bytes, 0) * _BITS / seconds,
        sends_packets=max(new.sent_packets - old.sent_packets, 0) / seconds,
    )


def _difference(names: tuple[str, ...], before: Counts, now: Counts, seconds: float) -> float | None:
    known = [now.drops[name] - before.drops.get(name, now.drops[name]) for name in names if name in now.drops]
    return sum(known) / seconds if known else None
