"""Netlink messages of VXLAN devices and of reverse path filters, as message classes like those of kernel.codec."""

from __future__ import annotations

from kernel.codec import LinkMessage, nla, nlmsg
from kernel.wire import prepare


class _VxlanData(nla):  # type: ignore[misc]
    nla_map = (
        (1, "IFLA_VXLAN_ID", "uint32"),
        (4, "IFLA_VXLAN_LOCAL", "cdata"),
        (7, "IFLA_VXLAN_LEARNING", "uint8"),
        (15, "IFLA_VXLAN_PORT", "be16"),
        (17, "IFLA_VXLAN_LOCAL6", "cdata"),
    )


class _VxlanInfo(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_INFO_KIND", "asciiz"), (2, "IFLA_INFO_DATA", "vxlan_data"))
    vxlan_data = _VxlanData


class _AfInet(nla):  # type: ignore[misc]
    # The kernel sends IFLA_INET_CONF as an array of numbers and expects attributes in it, so both are bytes here.
    nla_map = ((1, "IFLA_INET_CONF", "cdata"),)


class _AfInet6(nla):  # type: ignore[misc]
    nla_map = ((8, "IFLA_INET6_ADDR_GEN_MODE", "uint8"),)


class _AfSpec(nla):  # type: ignore[misc]
    nla_map = ((2, "AF_INET", "af_inet"), (10, "AF_INET6", "af_inet6"))
    af_inet = _AfInet
    af_inet6 = _AfInet6


class VxlanMessage(LinkMessage):
    """RTM_NEWLINK of a VXLAN device: struct ifinfomsg, IFLA_VXLAN_* attributes, and its IP settings."""

    linkinfo = _VxlanInfo
    af_spec = _AfSpec


class NetconfMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWNETCONF: struct netconfmsg, with its padding, and NETCONFA_* attributes (linux/netconf.h)."""

    fields = (("family", "B"), ("__align", "B"), ("__pad", "H"))
    nla_map = ((1, "NETCONFA_IFINDEX", "int32"), (3, "NETCONFA_RP_FILTER", "int32"))


prepare(VxlanMessage, NetconfMessage)
