"""The settings of bridges and their ports that decide whether a frame passes: reading only."""

from __future__ import annotations

from kernel.codec_links import BridgeMessage
from kernel.link import RTM_GETLINK, Link
from kernel.rtnl import NLM_F_DUMP, Request, Socket
from process.values import dataclass

FORWARDING = 3  # BR_STATE_FORWARDING (linux/if_bridge.h)
STATES = ("disabled", "listening", "learning", "forwarding", "blocking")
_SKIP_STATISTICS = 8


@dataclass(frozen=True)
class BridgePort:
    """A port: its state and flags, None for a flag that this kernel does not have."""

    index: int
    state: int
    hairpin: bool
    learning: bool | None
    flood: bool | None
    multicast_flood: bool | None
    broadcast_flood: bool | None
    neigh_suppress: bool | None
    isolated: bool | None
    locked: bool | None

    @property
    def state_name(self) -> str:
        """The state as `bridge link` prints it."""
        return STATES[self.state] if self.state < len(STATES) else str(self.state)


@dataclass(frozen=True)
class BridgeSettings:
    """A bridge: spanning tree and VLAN filtering."""

    index: int
    stp: bool
    vlan_filtering: bool


@dataclass(frozen=True)
class LinkSettings:
    """The bridges and the ports of a namespace by ifindex, and the interfaces with an XDP program."""

    bridges: dict[int, BridgeSettings]
    ports: dict[int, BridgePort]
    with_xdp: frozenset[int]

    def has_stp(self, bridge: Link) -> bool:
        """Returns whether the spanning tree protocol is on for a bridge."""
        return bridge.index in self.bridges and self.bridges[bridge.index].stp

    def filters_vlans(self, bridge: Link) -> bool:
        """Returns whether a bridge filters VLANs."""
        return bridge.index in self.bridges and self.bridges[bridge.index].vlan_filtering


def read_link_settings(socket: Socket) -> LinkSettings:
    """Reads the settings of all interfaces; raises KernelError."""
    attributes = [("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    request = Request("list the interfaces", BridgeMessage, RTM_GETLINK, NLM_F_DUMP, {}, attributes)
    bridges, ports, with_xdp = {}, {}, set()
    for message in socket.dump(request):
        index = message["index"]
        xdp = message.get_attr("IFLA_XDP")
        if xdp and xdp.get_attr("IFLA_XDP_ATTACHED"):
            with_xdp.add(index)
        info = message.get_attr("IFLA_LINKINFO")
        if not info:
            continue
        if info.get_attr("IFLA_INFO_KIND") == "bridge" and (data := info.get_attr("IFLA_INFO_DATA")):
            stp, filtering = data.get_attr("IFLA_BR_STP_STATE"), data.get_attr("IFLA_BR_VLAN_FILTERING")
            bridges[index] = BridgeSettings(index, bool(stp), bool(filtering))
        if info.get_attr("IFLA_INFO_SLAVE_KIND") == "bridge" and (data := info.get_attr("IFLA_INFO_SLAVE_DATA")):
            names = ("LEARNING", "UNICAST_FLOOD", "MCAST_FLOOD", "BCAST_FLOOD", "NEIGH_SUPPRESS", "ISOLATED", "LOCKED")
            values = (data.get_attr(f"IFLA_BRPORT_{name}") for name in names)
            flags = [None if value is None else bool(value) for value in values]
            state = data.get_attr("IFLA_BRPORT_STATE")
            ports[index] = BridgePort(
                index, FORWARDING if state is None else state, bool(data.get_attr("IFLA_BRPORT_MODE")), *flags
            )
    return LinkSettings(bridges, ports, frozenset(with_xdp))
