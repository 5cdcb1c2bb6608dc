"""Netlink messages of links, addresses and routes, as pyroute2 message classes.

This is the only module that imports pyroute2; kernel.codec_netfilter and kernel.codec_traffic import it from here. It
differs from the usual way in three points, each chosen by measurement:

- `pyroute2/__init__.py` loads some 350 modules, asyncio among them. An empty package replaces it, so that only
  `pyroute2.netlink` is loaded.
- pyroute2's message classes have every attribute of the kernel. The classes here have the same `nlmsg` base, but only
  the attributes that podwire uses, which makes the executable some megabytes smaller. tests/unit/test_codec.py compares
  both.
- kernel.wire encodes and decodes messages by these classes, in a tenth of pyroute2's time or less.
"""

from __future__ import annotations

import importlib.util
import sys
import types

if "pyroute2" not in sys.modules:
    _spec = importlib.util.find_spec("pyroute2")
    if _spec is None:
        raise ImportError("pyroute2 is not installed")
    _package = types.ModuleType("pyroute2")
    _package.__spec__ = _spec
    _package.__path__ = list(_spec.submodule_search_locations or ())
    sys.modules["pyroute2"] = _package

# Imported after the replacement above; the `as` form exports them again for the other message modules (PEP 484).
from pyroute2.netlink import nla as nla  # noqa: PLC0414
from pyroute2.netlink import nlmsg as nlmsg  # noqa: PLC0414

from kernel.wire import prepare

# Names are the kernel's (linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h). Addresses are bytes ("cdata"), from
# which ipaddress creates objects without parsing text.
_LINK_ATTRIBUTES = (
    (1, "IFLA_ADDRESS", "cdata"),
    (3, "IFLA_IFNAME", "asciiz"),
    (4, "IFLA_MTU", "uint32"),
    (5, "IFLA_LINK", "int32"),
    (10, "IFLA_MASTER", "uint32"),
    (13, "IFLA_TXQLEN", "uint32"),
    (16, "IFLA_OPERSTATE", "uint8"),
    (18, "IFLA_LINKINFO", "linkinfo"),
    (20, "IFLA_IFALIAS", "asciiz"),
    (26, "IFLA_AF_SPEC", "af_spec"),
    (28, "IFLA_NET_NS_FD", "uint32"),
    (29, "IFLA_EXT_MASK", "uint32"),
    (37, "IFLA_LINK_NETNSID", "int32"),
    (46, "IFLA_TARGET_NETNSID", "int32"),
    (50, "IFLA_MIN_MTU", "uint32"),
    (51, "IFLA_MAX_MTU", "uint32"),
    (53, "IFLA_ALT_IFNAME", "asciiz"),
)
_LINK_FIELDS = (
    ("family", "B"),
    ("__align", "B"),
    ("ifi_type", "H"),
    ("index", "i"),
    ("flags", "I"),
    ("change", "I"),
)


class _Ipv4Conf(nla):  # type: ignore[misc]
    """IFLA_INET_CONF: per-interface IPv4 settings by their IPV4_DEVCONF_* number (linux/ip.h)."""

    nla_map = ((1, "IPV4_DEVCONF_FORWARDING", "uint32"), (22, "IPV4_DEVCONF_ARP_NOTIFY", "uint32"))


class _AfInet(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_INET_CONF", "inet_conf"),)
    inet_conf = _Ipv4Conf


class _AfSpec(nla):  # type: ignore[misc]
    nla_map = ((2, "AF_INET", "af_inet"),)
    af_inet = _AfInet


class _PortData(nla):  # type: ignore[misc]
    """IFLA_INFO_SLAVE_DATA of a bridge port (IFLA_BRPORT_*)."""

    nla_map = (
        (1, "IFLA_BRPORT_STATE", "uint8"),
        (4, "IFLA_BRPORT_MODE", "uint8"),
        (8, "IFLA_BRPORT_LEARNING", "uint8"),
        (9, "IFLA_BRPORT_UNICAST_FLOOD", "uint8"),
        (33, "IFLA_BRPORT_ISOLATED", "uint8"),
    )


class _Peer(nla):  # type: ignore[misc]
    """VETH_INFO_PEER: a whole link message for the other end."""

    fields = _LINK_FIELDS
    nla_map = (*_LINK_ATTRIBUTES[:3], (28, "IFLA_NET_NS_FD", "uint32"))


class _LinkData(nla):  # type: ignore[misc]
    """IFLA_INFO_DATA, whose attribute numbers depend on the kind of link: check the kind before reading it."""

    nla_map = (
        (1, "VETH_INFO_PEER", "peer"),
        (5, "IFLA_BR_STP_STATE", "uint32"),
        (7, "IFLA_BR_VLAN_FILTERING", "uint8"),
        (8, "IFLA_BR_VLAN_PROTOCOL", "be16"),
        (39, "IFLA_BR_VLAN_DEFAULT_PVID", "uint16"),
    )
    peer = _Peer


class _LinkInfo(nla):  # type: ignore[misc]
    nla_map = (
        (1, "IFLA_INFO_KIND", "asciiz"),
        (2, "IFLA_INFO_DATA", "link_data"),
        (4, "IFLA_INFO_SLAVE_KIND", "asciiz"),
        (5, "IFLA_INFO_SLAVE_DATA", "port_data"),
    )
    link_data = _LinkData
    port_data = _PortData


class LinkMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWLINK and related messages: struct ifinfomsg and IFLA_* attributes."""

    fields = _LINK_FIELDS
    nla_map = _LINK_ATTRIBUTES
    linkinfo = _LinkInfo
    af_spec = _AfSpec


class _VlanInfo(nla):  # type: ignore[misc]
    """IFLA_BRIDGE_VLAN_INFO: struct bridge_vlan_info (linux/if_bridge.h)."""

    fields = (("flags", "H"), ("vid", "H"))


class _BridgeSpec(nla):  # type: ignore[misc]
    nla_map = ((2, "IFLA_BRIDGE_VLAN_INFO", "vlan_info"),)
    vlan_info = _VlanInfo


class VlanMessage(nlmsg):  # type: ignore[misc]
    """RTM_SETLINK and related messages of family AF_BRIDGE: struct ifinfomsg and the VLANs of a bridge port."""

    fields = _LINK_FIELDS
    nla_map = (
        (10, "IFLA_MASTER", "uint32"),
        (26, "IFLA_AF_SPEC", "bridge_spec"),
        (29, "IFLA_EXT_MASK", "uint32"),
    )
    bridge_spec = _BridgeSpec


class NamespaceMessage(nlmsg):  # type: ignore[misc]
    """RTM_GETNSID: struct rtgenmsg, padded, and NETNSA_* attributes (linux/net_namespace.h)."""

    fields = (("family", "B"), ("__pad1", "B"), ("__pad2", "H"))
    nla_map = ((1, "NETNSA_NSID", "int32"), (3, "NETNSA_FD", "uint32"))


class AddressMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWADDR and related messages: struct ifaddrmsg and IFA_* attributes."""

    fields = (("family", "B"), ("prefixlen", "B"), ("flags", "B"), ("scope", "B"), ("index", "I"))
    nla_map = (
        (1, "IFA_ADDRESS", "cdata"),
        (2, "IFA_LOCAL", "cdata"),
        (4, "IFA_BROADCAST", "cdata"),
        (8, "IFA_FLAGS", "uint32"),
    )


class _Metrics(nla):  # type: ignore[misc]
    nla_map = ((2, "RTAX_MTU", "uint32"), (8, "RTAX_ADVMSS", "uint32"))


class RouteMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWROUTE and related messages: struct rtmsg and RTA_* attributes."""

    fields = (
        ("family", "B"),
        ("dst_len", "B"),
        ("src_len", "B"),
        ("tos", "B"),
        ("table", "B"),
        ("proto", "B"),
        ("scope", "B"),
        ("type", "B"),
        ("flags", "I"),
    )
    nla_map = (
        (1, "RTA_DST", "cdata"),
        (4, "RTA_OIF", "uint32"),
        (5, "RTA_GATEWAY", "cdata"),
        (6, "RTA_PRIORITY", "uint32"),
        (7, "RTA_PREFSRC", "cdata"),
        (8, "RTA_METRICS", "metrics"),
        (9, "RTA_MULTIPATH", "cdata"),
        (15, "RTA_TABLE", "uint32"),
        (30, "RTA_NH_ID", "uint32"),
    )
    metrics = _Metrics


prepare(LinkMessage, VlanMessage, NamespaceMessage, AddressMessage, RouteMessage)
