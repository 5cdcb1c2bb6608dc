"""Runs sbr's verbs for pods whose interfaces are connected by hand, and reads rules and tables.

One rule: an interface is connected as an interface plugin does it: addresses, up, routes in table main, a result.
"""

import contextlib
import ipaddress
import json
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tests.support.attaching import Network
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace

IPV4, GATEWAY = "10.1.0.2/24", "10.1.0.1"
IPV6, GATEWAY6 = "fd00:1::2/64", "fd00:1::1"
_CARRIER_S = 20.0
_LATER = ("local fe80:", "anycast ", "multicast ")  # the kernel adds these when the addresses are usable
_ETH_P_ALL, _PACKET_OUTGOING = 3, 4  # linux/if_ether.h, linux/if_packet.h
_SHOWN = ("gateway", "dev", "scope", "prefsrc", "metric")
KERNELS_RULES = ["0: from all lookup local", "32766: from all lookup main", "32767: from all lookup default"]


class Sbr(Network):
    """A network's sbr on one host; podwire's writes nothing to stderr."""

    def run(self, command: str, pod: Namespace | str | None = None, prev_result: object = None, **how: Any) -> Outcome:
        """Runs one verb; a line on stderr fails the test unless the verb fails."""
        outcome = super().run(command, pod, prev_result, **how)
        assert self.bin_dir or outcome.status or outcome.stderr == ""
        return outcome

    def everything(self, pod: Namespace) -> dict[str, list[str]]:
        """Returns the rules and routes of a pod."""
        return state(pod)


def connect(
    peer: Namespace,
    pod: Namespace,
    *addresses: str,
    ifname: str = "eth0",
    peer_name: str = "",
    gateways: Sequence[str] = (),
    defaults: Sequence[str] = (),
    version: str = "1.0.0",
) -> dict[str, Any]:
    """Connects a pod's interface with `peer` and returns the result of the plugin that would have done so.

    `gateways` are those of the addresses in the result, which has none without; the peer gets these addresses.
    `defaults` are the gateways of default routes in table main.
    """
    peer_name = peer_name or f"peer-{ifname}"
    pod.ip("link", "add", ifname, "type", "veth", "peer", "name", peer_name, "netns", peer.name)
    ips = []
    for number, address in enumerate(addresses):
        pod.ip("address", "add", address, "dev", ifname, "nodad")
        gateway = gateways[number] if number < len(gateways) else ""
        if gateway:
            peer.ip("address", "add", f"{gateway}/{address.partition('/')[2]}", "dev", peer_name, "nodad")
        ips.append({"address": address, "interface": 1, **({"gateway": gateway} if gateway else {})})
    peer.ip("link", "set", peer_name, "up")
    pod.ip("link", "set", ifname, "up")
    deadline = time.monotonic() + _CARRIER_S
    while f"fe80::/64 dev {ifname}" not in pod.ip("-6", "route") and time.monotonic() < deadline:
        time.sleep(0.01)  # the kernel adds it when the carrier is up
    for gateway in defaults:
        pod.ip("route", "add", "default", "via", gateway, "dev", ifname)
    interfaces = [{"name": peer_name}, {"name": ifname, "mac": "02:00:00:00:00:01", "sandbox": pod.path}]
    return {"cniVersion": version, "interfaces": interfaces, "ips": ips}


def connect_both(peer: Namespace, pod: Namespace) -> dict[str, Any]:
    """Connects a pod's eth0 with an address, a gateway and a default route of each IP version; returns the result."""
    return connect(peer, pod, IPV4, IPV6, gateways=[GATEWAY, GATEWAY6], defaults=[GATEWAY, GATEWAY6])


def rules(pod: Namespace) -> list[str]:
    """Returns the rules of both IP versions as `ip rule` prints them, without the kernel's own."""
    lines = [" ".join(line.split()) for line in (pod.ip("rule") + pod.ip("-6", "rule")).splitlines()]
    return [line for line in lines if line not in KERNELS_RULES]


def table(pod: Namespace, number: int | str, ifname: str = "") -> list[str]:
    """Returns the routes of a table in the words of `ip route`, both IP versions, with `ifname` those through it."""
    lines = []
    for version in ("-4", "-6"):
        for item in json.loads(pod.ip("-j", version, "route", "show", "table", "all") or "[]"):
            if str(item.get("table", "main")) == str(number) and ifname in ("", item.get("dev")):
                lines.append(" ".join([item["dst"], *(f"{key} {item[key]}" for key in _SHOWN if key in item)]))
    return sorted(lines)


def state(pod: Namespace) -> dict[str, list[str]]:
    """Returns all rules with their priorities, and the routes of all tables, without those that time changes."""
    text = "".join(pod.ip(version, "route", "show", "table", "all") for version in ("-4", "-6"))
    stable = [line.partition(" pref ")[0].strip() for line in text.splitlines() if not line.startswith(_LATER)]
    return {"rules": rules(pod), "routes": sorted(stable)}


@contextlib.contextmanager
def captured(pod: Namespace, *ifnames: str, source: str, destination: str) -> Iterator[set[str]]:
    """Yields a set; after the block it has the interfaces by which the pod sent packets with these addresses."""
    interfaces: set[str] = set()
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed  # adjacent in both headers
    with contextlib.ExitStack() as stack:
        sockets = {}
        with pod.entered():
            for ifname in ifnames:
                sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
                sockets[ifname] = stack.enter_context(sniffer)
                sniffer.bind((ifname, _ETH_P_ALL))
                sniffer.setblocking(False)
        yield interfaces
        for ifname, sniffer in sockets.items():
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame, (_, _, kind, *_) = sniffer.recvfrom(2048)
                    if kind == _PACKET_OUTGOING and ends in frame:
                        interfaces.add(ifname)
