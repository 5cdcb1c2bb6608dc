"""What loses packets whichever their sender: queues, filters, eBPF programs, no ARP, a bridge's missing entry.

doctor reports the obstacles of every interface on the pods' way, trace those on the way of a lost packet.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from cni.address import parse_mac
from kernel import ebpf, queues, traffic
from kernel.bridge_state import BridgePort
from kernel.link import IFF_NOARP, Link
from kernel.netfilter import nft
from kernel.queues import Queue
from podwire.facts.network import NetworkFacts
from podwire.node.model import format_rate

QUEUE, FILTER, PROGRAM = "queue-loses-packets", "traffic-filter-drops", "traffic-program"
CLASS = "traffic-class-slow"
UNCERTAIN = (PROGRAM, CLASS)  # they may lose no packets, or only others
ARP_OFF, NO_ENTRY = "arp-off", "bridge-entry-missing"
# Attribute of a port, the value that stops frames, the name of `bridge link`, what happens.
_FLAGS = (
    ("broadcast_flood", False, "bcast_flood", "it gets no broadcasts: ARP fails"),
    ("multicast_flood", False, "mcast_flood", "it gets no multicasts: IPv6 does not find it"),
    ("flood", False, "flood", "it gets no frames until it has sent one"),
    ("learning", False, "learning", "its MAC address is not learned"),
    ("neigh_suppress", True, "neigh_suppress", "ARP and NDP requests to it are suppressed"),
    ("locked", True, "locked", "frames from it are dropped"),
)
NEEDLESS_WITH_ENTRY = ("flood", "learning", "locked")  # if the bridge has a static entry for the port
_LOSING = {"netem": "delays, loses or reorders packets", "plug": "holds packets back", "blackhole": "drops all packets"}
_SLOW_BITS_PER_S = 1_000_000  # a page of the web takes more than ten seconds
_HOOKS = dict(enumerate(("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")))
_INGRESS, _EGRESS = 0xFFFFFFF2, 0xFFFFFFF3  # TC_H_MIN_INGRESS and _EGRESS of clsact


class Obstacle(NamedTuple):
    """An obstacle at an interface, or in a network namespace: `name` is that of doctor's fault.

    `command` removes it from an interface of podwire's, "" if nothing is known to be safe; `look` shows it.
    """

    name: str
    text: str
    look: str
    command: str = ""
    advice: str = ""


def list_obstacles(facts: NetworkFacts, link: Link) -> Iterator[Obstacle]:
    """Yields the obstacles at an interface, first those that certainly lose packets; raises KernelError."""
    name = quote(link.name)
    if link.flags & IFF_NOARP and link.kind in ("bridge", "veth"):
        text = "ARP is off: no machine on it learns the MAC address of another"
        yield Obstacle(ARP_OFF, text, f"ip link show {name}", f"ip link set {name} arp on")
    if link.kind == "bridge" and not _has_entry(facts, link):
        text = f"its forwarding database lacks its MAC address {link.mac}: frames to the node are not delivered"
        yield Obstacle(NO_ENTRY, text, f"bridge fdb show br {name}", f"bridge fdb add {link.mac} dev {name} self")
    present = facts.queues.get(link.index, [])
    yield from (obstacle for queue in present if (obstacle := _queue(link, queue)))
    yield from _classes(facts, link, {queue.default for queue in present if queue.default is not None})
    yield from _filters(facts, link, {queue.kind for queue in present})
    if link.index in facts.link_settings.with_xdp:
        advice = f"if no program needs it: ip link set {name} xdp off"
        yield Obstacle(PROGRAM, "an XDP program is attached to it", f"ip link show {name}", advice=advice)
    for direction in facts.call(lambda: ebpf.list_tcx_directions(link.index)):
        look = f"bpftool net show dev {name}"
        yield Obstacle(PROGRAM, f"a program (tcx) filters what it {direction}", look, advice=f"look at: {look}")


def list_namespace_obstacles(facts: NetworkFacts) -> Iterator[Obstacle]:
    """Yields the eBPF programs of a network namespace.

    Those of netfilter are the node's: the kernel does not show in which namespace they run.
    """
    look = "bpftool link show"
    if facts.call(ebpf.has_socket_lookup):
        yield Obstacle(PROGRAM, "a program (sk_lookup) chooses the sockets that get packets here", look)
    for one in ebpf.list_netfilter_programs() if facts.netns is None else ():
        version = 4 if one.family == nft.IPV4 else 6
        hook = f"{_HOOKS.get(one.hook, one.hook)}, priority {one.priority}"
        text = f"a program of netfilter decides about IPv{version} at {hook}"
        where = "here or in another network namespace; no list of rules shows it"
        yield Obstacle(PROGRAM, f"{text}, {where}", look)


def wrong_flags(port: BridgePort) -> list[tuple[str, bool, str, str]]:
    """Returns the flags of a bridge port that stop frames: attribute, value, the name of `bridge link`, the effect."""
    return [flag for flag in _FLAGS if getattr(port, flag[0]) is flag[1]]


def list_port_obstacles(facts: NetworkFacts, link: Link) -> Iterator[Obstacle]:
    """Yields the flags of a bridge's port that stop frames."""
    port = facts.link_settings.ports.get(link.index)
    wrong = wrong_flags(port) if port else []
    if any(one.ifindex == link.index and one.is_static and not one.is_local for one in facts.forwarding if wrong):
        wrong = [flag for flag in wrong if flag[0] not in NEEDLESS_WITH_ENTRY]
    for _, value, word, effect in wrong:
        text = f"it has {word} {'on' if value else 'off'}: {effect}"
        yield Obstacle("port-settings", text, f"bridge -d link show dev {quote(link.name)}")


def _has_entry(facts: NetworkFacts, bridge: Link) -> bool:
    mac = parse_mac(bridge.mac)
    return any(one.mac == mac and one.is_local and one.master == bridge.index for one in facts.forwarding)


def _queue(link: Link, queue: Queue) -> Obstacle | None:
    name, effect = quote(link.name), _LOSING.get(queue.kind, "")
    is_slow = queue.rate is not None and _is_slow(queue.rate)
    if queue.rate is not None and is_slow:
        effect = f"passes only {format_rate(8 * queue.rate)}"
    elif queue.largest is not None and queue.largest < link.mtu:
        effect = f"passes no packet larger than {queue.largest} bytes" if queue.largest else "passes no packet"
    if not effect:
        return None
    look = f"tc qdisc show dev {name}"
    if queue.is_of_class:
        return Obstacle(CLASS, f"its queue {queue.kind}, of packets that a filter chooses, {effect}", look)
    command = f"tc qdisc del dev {name} root"
    if is_slow:  # the limit may be intended
        return Obstacle(QUEUE, f"its queue {queue.kind} {effect}", look, advice=f"if that is not intended: {command}")
    return Obstacle(QUEUE, f"its queue {queue.kind} {effect}", look, command)


def _is_slow(bytes_per_s: int) -> bool:
    return 8 * bytes_per_s < _SLOW_BITS_PER_S


def _classes(facts: NetworkFacts, link: Link, defaults: set[int]) -> Iterator[Obstacle]:
    """Yields the slow classes that have held packets back; `defaults`: the default class of each HTB, empty without."""
    look = f"tc -s class show dev {quote(link.name)}"
    for one in queues.list_holding_classes(facts.socket, link.index) if defaults else ():
        if _is_slow(one.rate):
            is_default = one.classid in defaults
            text = f"its class {one.name} (htb{', the default' if is_default else ''}) passes only "
            text += f"{format_rate(8 * one.rate)}, and has held packets back"
            yield Obstacle(QUEUE if is_default else CLASS, text, look)


def _filters(facts: NetworkFacts, link: Link, kinds: set[str]) -> Iterator[Obstacle]:
    """Yields filters that drop or redirect packets, and programs, whose effect is not known."""
    directions = {"receives": _INGRESS if "clsact" in kinds else traffic.RECEIVED} if "ingress" in kinds else {}
    if "clsact" in kinds:
        directions = {"receives": _INGRESS, "sends": _EGRESS}
    for direction, parent in directions.items():
        look = f"tc filter show dev {quote(link.name)} {'ingress' if direction == 'receives' else 'egress'}"
        targets = {one.target for one in traffic.list_filters(facts.socket, link.index, parent)}
        if 0 in targets:
            text = f"a filter redirects packets that it {direction} to an interface that is gone: they are lost"
            yield Obstacle(FILTER, text, look, advice="remove the container and create it again")
        for other in facts.links_at(index for index in targets if index):
            if other.kind != "ifb":  # a limit of podwire, and of others
                text = f"a filter redirects packets that it {direction} to {other.name}: they go nowhere else"
                yield Obstacle(FILTER, text, look, advice=f"mirror them in place of redirecting; to list it: {look}")
        for kind in dict.fromkeys(traffic.list_dropping_filters(facts.socket, link.index, parent)):
            if kind == "bpf":
                yield Obstacle(PROGRAM, f"a program filters what it {direction}", look, advice=f"look at: {look}")
            else:
                advice = f"change it in the program that created it; to list it: {look}"
                yield Obstacle(FILTER, f"a filter ({kind}) drops packets that it {direction}", look, advice=advice)
