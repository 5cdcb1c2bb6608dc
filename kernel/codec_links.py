"""Netlink messages of links on top of another link, and of neighbours, as pyroute2 message classes.

The attribute numbers in IFLA_INFO_DATA depend on the kind of link, so each kind has a message class of its own.
"""

from __future__ import annotations

from kernel.codec import LinkMessage, nla, nlmsg
from kernel.wire import prepare


class _BridgeData(nla):  # type: ignore[misc]
    """IFLA_INFO_DATA of a bridge (IFLA_BR_*)."""

    nla_map = (
        (4, "IFLA_BR_AGEING_TIME", "uint32"),
        (5, "IFLA_BR_STP_STATE", "uint32"),
        (7, "IFLA_BR_VLAN_FILTERING", "uint8"),
    )


class _BridgePortData(nla):  # type: ignore[misc]
    """IFLA_INFO_SLAVE_DATA of a bridge port (IFLA_BRPORT_*)."""

    nla_map = (
        (1, "IFLA_BRPORT_STATE", "uint8"),
        (4, "IFLA_BRPORT_MODE", "uint8"),
        (8, "IFLA_BRPORT_LEARNING", "uint8"),
        (9, "IFLA_BRPORT_UNICAST_FLOOD", "uint8"),
        (27, "IFLA_BRPORT_MCAST_FLOOD", "uint8"),
        (30, "IFLA_BRPORT_BCAST_FLOOD", "uint8"),
        (32, "IFLA_BRPORT_NEIGH_SUPPRESS", "uint8"),
        (33, "IFLA_BRPORT_ISOLATED", "uint8"),
        (39, "IFLA_BRPORT_LOCKED", "uint8"),
    )


class _BridgeInfo(nla):  # type: ignore[misc]
    nla_map = (
        (1, "IFLA_INFO_KIND", "asciiz"),
        (2, "IFLA_INFO_DATA", "bridge_data"),
        (4, "IFLA_INFO_SLAVE_KIND", "asciiz"),
        (5, "IFLA_INFO_SLAVE_DATA", "port_data"),
    )
    bridge_data = _BridgeData
    port_data = _BridgePortData


class _Xdp(nla):  # type: ignore[misc]
    nla_map = ((2, "IFLA_XDP_ATTACHED", "uint8"),)


class BridgeMessage(LinkMessage):
    """RTM_NEWLINK of a bridge or of its port: the settings that decide whether a frame passes, and programs (XDP)."""

    nla_map = (  # type: ignore[assignment]  # another length
        *(item for item in LinkMessage.nla_map if item[1] != "IFLA_LINKINFO"),
        (18, "IFLA_LINKINFO", "linkinfo"),
        (43, "IFLA_XDP", "xdp"),
    )
    linkinfo = _BridgeInfo
    xdp = _Xdp


class _Properties(nla):  # type: ignore[misc]
    nla_map = ((53, "IFLA_ALT_IFNAME", "asciiz"),)


class DeviceMessage(LinkMessage):
    """RTM_NEWLINK with group, altnames (Linux 5.5), and the address that a device has from its manufacturer (5.6)."""

    nla_map = (  # type: ignore[assignment]  # another length
        *LinkMessage.nla_map,
        (27, "IFLA_GROUP", "uint32"),
        (52, "IFLA_PROP_LIST", "properties|nested"),
        (54, "IFLA_PERM_ADDRESS", "cdata"),
    )
    properties = _Properties


class _MacvlanData(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_MACVLAN_MODE", "uint32"), (7, "IFLA_MACVLAN_BC_QUEUE_LEN", "uint32"))


class _MacvlanInfo(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_INFO_KIND", "asciiz"), (2, "IFLA_INFO_DATA", "macvlan_data"))
    macvlan_data = _MacvlanData


class MacvlanMessage(LinkMessage):
    """RTM_NEWLINK of a macvlan interface: struct ifinfomsg and IFLA_MACVLAN_* attributes."""

    linkinfo = _MacvlanInfo


class _IpvlanData(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_IPVLAN_MODE", "uint16"), (2, "IFLA_IPVLAN_FLAGS", "uint16"))


class _IpvlanInfo(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_INFO_KIND", "asciiz"), (2, "IFLA_INFO_DATA", "ipvlan_data"))
    ipvlan_data = _IpvlanData


class IpvlanMessage(LinkMessage):
    """RTM_NEWLINK of an ipvlan interface: struct ifinfomsg and IFLA_IPVLAN_* attributes."""

    linkinfo = _IpvlanInfo


class _PriorityMap(nla):  # type: ignore[misc]
    """IFLA_VLAN_QOS_MAPPING: struct ifla_vlan_qos_mapping (linux/if_link.h)."""

    fields = (("from", "I"), ("to", "I"))


class _PriorityMaps(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_VLAN_QOS_MAPPING", "mapping"),)
    mapping = _PriorityMap


class _VlanData(nla):  # type: ignore[misc]
    nla_map = (
        (1, "IFLA_VLAN_ID", "uint16"),
        (3, "IFLA_VLAN_EGRESS_QOS", "priorities"),
        (4, "IFLA_VLAN_INGRESS_QOS", "priorities"),
        (5, "IFLA_VLAN_PROTOCOL", "be16"),
    )
    priorities = _PriorityMaps


class _VlanInfo(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_INFO_KIND", "asciiz"), (2, "IFLA_INFO_DATA", "vlan_data"))
    vlan_data = _VlanData


class VlanDeviceMessage(LinkMessage):
    """RTM_NEWLINK of an 802.1Q interface: struct ifinfomsg and IFLA_VLAN_* attributes."""

    linkinfo = _VlanInfo


class NeighbourMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWNEIGH and related messages: struct ndmsg and NDA_* attributes (linux/neighbour.h)."""

    fields = (
        ("family", "B"),
        ("__pad1", "B"),
        ("__pad2", "H"),
        ("ifindex", "i"),
        ("state", "H"),
        ("flags", "B"),
        ("ndm_type", "B"),
    )
    nla_map = (
        (1, "NDA_DST", "cdata"),
        (2, "NDA_LLADDR", "cdata"),
        (5, "NDA_VLAN", "uint16"),
        (8, "NDA_IFINDEX", "uint32"),
        (9, "NDA_MASTER", "uint32"),
    )


class _TunData(nla):  # type: ignore[misc]
    nla_map = (
        (1, "IFLA_TUN_OWNER", "uint32"),
        (2, "IFLA_TUN_GROUP", "uint32"),
        (3, "IFLA_TUN_TYPE", "uint8"),
        (6, "IFLA_TUN_PERSIST", "uint8"),
        (7, "IFLA_TUN_MULTI_QUEUE", "uint8"),
    )


class _TunInfo(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_INFO_KIND", "asciiz"), (2, "IFLA_INFO_DATA", "tun_data"))
    tun_data = _TunData


class TunMessage(LinkMessage):
    """RTM_NEWLINK of a tun or tap device: struct ifinfomsg and IFLA_TUN_* attributes."""

    linkinfo = _TunInfo


prepare(BridgeMessage, DeviceMessage, MacvlanMessage, IpvlanMessage, TunMessage, VlanDeviceMessage, NeighbourMessage)
