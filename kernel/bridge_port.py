"""Bridge ports and forwarding entries: whether a bridge forwards frames from and to a port. This module only reads."""

from __future__ import annotations

from socket import AF_BRIDGE, AF_INET, AF_INET6
from typing import NamedTuple

from cni.address import Address
from kernel.codec_links import NeighbourMessage
from kernel.link import Link, by_index_request
from kernel.neighbour import RTM_GETNEIGH
from kernel.route import address_of
from kernel.rtnl import NLM_F_DUMP, Request, Socket

STATES = ("disabled", "listening", "learning", "forwarding", "blocking")  # BR_STATE_* (linux/if_bridge.h)
FORWARDING = 3
NUD_INCOMPLETE, NUD_FAILED, NUD_NOARP, NUD_PERMANENT = 0x01, 0x20, 0x40, 0x80  # linux/neighbour.h
_NUD_NAMES = {
    0x01: "incomplete", 0x02: "reachable", 0x04: "stale", 0x08: "delay", 0x10: "probe", 0x20: "failed", 0x40: "noarp",
    0x80: "permanent",
}  # fmt: skip


class Port(NamedTuple):
    """The state of a bridge port: an index into STATES, and its flags."""

    state: int = FORWARDING
    hairpin: bool = False
    learning: bool = True
    flood: bool = True
    isolated: bool = False


class BridgeState(NamedTuple):
    """The settings of a bridge that decide about frames."""

    stp: bool = False
    vlan_filtering: bool = False


class ForwardingEntry(NamedTuple):
    """An entry of a bridge's forwarding table: MAC address, ifindex of the port, VLAN.

    `static`: it was not learned; `local`: the bridge delivers such frames to the host itself.
    """

    mac: bytes
    port: int
    vlan: int
    static: bool
    local: bool = False


class NeighbourEntry(NamedTuple):
    """An entry of the neighbour table; `mac` is b"" while it is unknown; `state` is NUD_*."""

    ifindex: int
    address: Address
    mac: bytes
    state: int

    @property
    def state_name(self) -> str:
        """The state as `ip neighbour` prints it."""
        return _NUD_NAMES.get(self.state, str(self.state))

    @property
    def is_usable(self) -> bool:
        """Whether packets are sent to its MAC address."""
        return not self.state & (NUD_INCOMPLETE | NUD_FAILED) and bool(self.mac)

    @property
    def is_static(self) -> bool:
        """Whether a program set it: the kernel does not ask for the address."""
        return bool(self.state & NUD_PERMANENT)


def get_port(socket: Socket, link: Link) -> Port:
    """Returns the state of a bridge port; of a link that is none, that of a port that forwards. Raises KernelError."""
    (message,) = socket.get(by_index_request(link.index))
    info = message and message.get_attr("IFLA_LINKINFO")
    if not info or info.get_attr("IFLA_INFO_SLAVE_KIND") != "bridge":
        return Port()
    data = info.get_attr("IFLA_INFO_SLAVE_DATA")
    if not data:
        return Port()

    def is_set(name: str, default: int = 0) -> bool:
        value = data.get_attr(name)
        return bool(default if value is None else value)

    state = data.get_attr("IFLA_BRPORT_STATE")
    return Port(
        FORWARDING if state is None else state,
        is_set("IFLA_BRPORT_MODE"),
        is_set("IFLA_BRPORT_LEARNING", 1),
        is_set("IFLA_BRPORT_UNICAST_FLOOD", 1),
        is_set("IFLA_BRPORT_ISOLATED"),
    )


def get_bridge(socket: Socket, link: Link) -> BridgeState:
    """Returns the settings of a bridge; raises KernelError."""
    (message,) = socket.get(by_index_request(link.index))
    info = message and message.get_attr("IFLA_LINKINFO")
    if not info or info.get_attr("IFLA_INFO_KIND") != "bridge":
        return BridgeState()
    data = info.get_attr("IFLA_INFO_DATA")
    if not data:
        return BridgeState()
    return BridgeState(bool(data.get_attr("IFLA_BR_STP_STATE")), bool(data.get_attr("IFLA_BR_VLAN_FILTERING")))


def list_forwarding(socket: Socket, bridge: Link) -> list[ForwardingEntry]:
    """Returns the forwarding entries of a bridge, also those of its ports' own addresses; raises KernelError."""
    request = Request(
        "list the forwarding entries", NeighbourMessage, RTM_GETNEIGH, NLM_F_DUMP, {"family": AF_BRIDGE},
        [("NDA_MASTER", bridge.index)],
    )  # fmt: skip
    entries = []
    for message in socket.dump(request):
        mac = message.get_attr("NDA_LLADDR")
        if mac and message.get_attr("NDA_MASTER") == bridge.index:
            local = bool(message["state"] & NUD_PERMANENT)
            static = local or bool(message["state"] & NUD_NOARP)
            entries.append(ForwardingEntry(mac, message["ifindex"], message.get_attr("NDA_VLAN") or 0, static, local))
    return entries


def list_neighbours(socket: Socket, version: int) -> list[NeighbourEntry]:
    """Returns all entries of the neighbour table for an IP version; raises KernelError."""
    family = AF_INET if version == 4 else AF_INET6
    request = Request("list the neighbours", NeighbourMessage, RTM_GETNEIGH, NLM_F_DUMP, {"family": family})
    entries = []
    for message in socket.dump(request):
        packed = message.get_attr("NDA_DST")
        if packed and message["family"] == family:
            mac = message.get_attr("NDA_LLADDR") or b""
            entries.append(NeighbourEntry(message["ifindex"], address_of(packed), mac, message["state"]))
    return entries
