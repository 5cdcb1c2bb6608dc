"""Netlink messages: the few attributes we use, as message classes on pyroute2's codec.

One rule: this is the only module that imports pyroute2; kernel.codec_netfilter stands on it. Two decisions, both
measured:

- `pyroute2/__init__.py` loads some 350 modules and asyncio with them, so a bare package takes its place and only
  `pyroute2.netlink`, the codec, is loaded.
- pyroute2's own message classes know every attribute the kernel has; ours on the same `nlmsg` base know those we use,
  and are read by kernel.decoder. The executable is some megabytes smaller. Its full classes are what
  tests/unit/test_codec.py compares ours with.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
import types
from collections.abc import Iterable
from typing import Any

if "pyroute2" not in sys.modules:
    _spec = importlib.util.find_spec("pyroute2")
    if _spec is None:
        raise ImportError("pyroute2 is not installed")
    _package = types.ModuleType("pyroute2")
    _package.__spec__ = _spec
    _package.__path__ = list(_spec.submodule_search_locations or ())
    sys.modules["pyroute2"] = _package

import pyroute2.netlink

from kernel import decoder
from kernel.decoder import decode as decode  # noqa: PLC0414 - handed on

Attributes = list[tuple[str, object]]


class _Plain:
    """A message, or a part of one, whose fields are looked up by their own name, and packed all at once.

    pyroute2 tries each key as a path, in lower case and without its prefix, for each field of each message.
    """

    __slots__ = ()
    form: struct.Struct | None = None  # of the fixed fields, where all are numbers; `prepare` sets it

    def __getitem__(self, key: str) -> Any:
        mapping: Any = self
        return dict.__getitem__(mapping, key) if key in mapping else super().__getitem__(key)  # type: ignore[misc]

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a field, `default` when it is not set."""
        mapping: Any = self
        return dict.get(mapping, key, default)

    def ft_encode(self, offset: int) -> tuple[int, int]:
        """Packs the fixed fields; returns the offset behind them, and how much of that is padding."""
        message: Any = self
        if self.form is None:
            return super().ft_encode(offset)  # type: ignore[misc, no-any-return]
        message.data.extend(self.form.pack(*(dict.get(message, name) or 0 for name, _ in message.fields)))
        padding = -self.form.size % 4
        message.data.extend(bytes(padding))
        return offset + self.form.size + padding, padding


_ATOMS = ("uint8", "uint16", "uint32", "uint64", "int32", "be16", "be32", "sbe32", "asciiz", "cdata", "flag", "none")
_plain_atoms: dict[str, Any] = {
    name: type(name, (_Plain, getattr(pyroute2.netlink.nlmsg, name)), {}) for name in _ATOMS
}


class nla(_Plain, pyroute2.netlink.nla):  # type: ignore[misc]  # noqa: N801 - pyroute2's name
    """A nested attribute: `nla_map` names its own."""


class nlmsg(_Plain, pyroute2.netlink.nlmsg):  # type: ignore[misc]  # noqa: N801 - pyroute2's name
    """A message: `fields` is its fixed struct, `nla_map` names its attributes."""


for _name, _atom in _plain_atoms.items():
    if _name not in ("asciiz", "cdata", "flag", "none"):
        _atom.form = decoder.form(_atom)
    setattr(nla, _name, _atom)
    setattr(nlmsg, _name, _atom)

# Names are the kernel's (linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h); raw bytes ("cdata") for addresses,
# which ipaddress turns into values without a detour through text.
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
)
_LINK_FIELDS = (
    ("family", "B"),
    ("__align", "B"),
    ("ifi_type", "H"),
    ("index", "i"),
    ("flags", "I"),
    ("change", "I"),
)


class _Ipv4Conf(nla):
    """IFLA_INET_CONF: per-interface IPv4 settings by their IPV4_DEVCONF_* number (linux/ip.h)."""

    nla_map = ((1, "IPV4_DEVCONF_FORWARDING", "uint32"), (22, "IPV4_DEVCONF_ARP_NOTIFY", "uint32"))


class _AfInet(nla):
    nla_map = ((1, "IFLA_INET_CONF", "inet_conf"),)
    inet_conf = _Ipv4Conf


class _AfSpec(nla):
    nla_map = ((2, "AF_INET", "af_inet"),)
    af_inet = _AfInet


class _PortData(nla):
    """IFLA_INFO_SLAVE_DATA of a bridge port (IFLA_BRPORT_*)."""

    nla_map = ((4, "IFLA_BRPORT_MODE", "uint8"), (33, "IFLA_BRPORT_ISOLATED", "uint8"))


class _Peer(nla):
    """VETH_INFO_PEER: a whole link message for the other end."""

    fields = _LINK_FIELDS
    nla_map = (*_LINK_ATTRIBUTES[:3], (28, "IFLA_NET_NS_FD", "uint32"))


class _LinkData(nla):
    """IFLA_INFO_DATA, whose numbers mean something else for each kind of link: who reads it knows the kind."""

    nla_map = (
        (1, "VETH_INFO_PEER", "peer"),
        (7, "IFLA_BR_VLAN_FILTERING", "uint8"),
        (39, "IFLA_BR_VLAN_DEFAULT_PVID", "uint16"),
    )
    peer = _Peer


class _LinkInfo(nla):
    nla_map = (
        (1, "IFLA_INFO_KIND", "asciiz"),
        (2, "IFLA_INFO_DATA", "link_data"),
        (4, "IFLA_INFO_SLAVE_KIND", "asciiz"),
        (5, "IFLA_INFO_SLAVE_DATA", "port_data"),
    )
    link_data = _LinkData
    port_data = _PortData


class LinkMessage(nlmsg):
    """RTM_NEWLINK and its kin: struct ifinfomsg and IFLA_* attributes."""

    prefix = "IFLA_"
    fields = _LINK_FIELDS
    nla_map = _LINK_ATTRIBUTES
    linkinfo = _LinkInfo
    af_spec = _AfSpec


class _VlanDeviceData(nla):
    nla_map = ((1, "IFLA_VLAN_ID", "uint16"),)


class _VlanDeviceInfo(nla):
    nla_map = ((2, "IFLA_INFO_DATA", "link_data"),)
    link_data = _VlanDeviceData


class VlanDeviceMessage(nlmsg):
    """RTM_NEWLINK of an 802.1Q interface: LinkMessage with its VLAN ID."""

    prefix = "IFLA_"
    fields = _LINK_FIELDS
    nla_map = ((18, "IFLA_LINKINFO", "linkinfo"), (29, "IFLA_EXT_MASK", "uint32"))
    linkinfo = _VlanDeviceInfo


class _VlanInfo(nla):
    """IFLA_BRIDGE_VLAN_INFO: struct bridge_vlan_info (linux/if_bridge.h)."""

    fields = (("flags", "H"), ("vid", "H"))


class _BridgeSpec(nla):
    nla_map = ((2, "IFLA_BRIDGE_VLAN_INFO", "vlan_info"),)
    vlan_info = _VlanInfo


class VlanMessage(nlmsg):
    """RTM_SETLINK and its kin of family AF_BRIDGE: struct ifinfomsg and the VLANs of a bridge port."""

    prefix = "IFLA_"
    fields = _LINK_FIELDS
    nla_map = (
        (10, "IFLA_MASTER", "uint32"),
        (26, "IFLA_AF_SPEC", "bridge_spec"),
        (29, "IFLA_EXT_MASK", "uint32"),
    )
    bridge_spec = _BridgeSpec


class NamespaceMessage(nlmsg):
    """RTM_GETNSID: struct rtgenmsg, padded, and NETNSA_* attributes (linux/net_namespace.h)."""

    prefix = "NETNSA_"
    fields = (("family", "B"), ("__pad1", "B"), ("__pad2", "H"))
    nla_map = ((1, "NETNSA_NSID", "int32"), (3, "NETNSA_FD", "uint32"))


class AddressMessage(nlmsg):
    """RTM_NEWADDR and its kin: struct ifaddrmsg and IFA_* attributes."""

    prefix = "IFA_"
    fields = (("family", "B"), ("prefixlen", "B"), ("flags", "B"), ("scope", "B"), ("index", "I"))
    nla_map = (
        (1, "IFA_ADDRESS", "cdata"),
        (2, "IFA_LOCAL", "cdata"),
        (4, "IFA_BROADCAST", "cdata"),
        (8, "IFA_FLAGS", "uint32"),
    )


class _Metrics(nla):
    nla_map = ((2, "RTAX_MTU", "uint32"), (8, "RTAX_ADVMSS", "uint32"))


class RouteMessage(nlmsg):
    """RTM_NEWROUTE and its kin: struct rtmsg and RTA_* attributes."""

    prefix = "RTA_"
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
        (8, "RTA_METRICS", "metrics"),
        (15, "RTA_TABLE", "uint32"),
    )
    metrics = _Metrics


def encode(kind: type[Any], header: tuple[int, int, int], values: dict[str, int], attributes: Attributes) -> bytes:
    """Returns one netlink message: `header` is (type, flags, sequence number), `values` the fixed struct's fields."""
    message = kind()
    message["header"]["type"], message["header"]["flags"], message["header"]["sequence_number"] = header
    message.update(values)
    message["attrs"] = attributes
    message.encode()
    return bytes(message.data)


def prepare(messages: Iterable[type[Any]], nested: Iterable[type[Any]] = ()) -> None:
    """Tells of message classes; each module calls it once, with those that it has.

    pyroute2 compiles a class's attribute table at its first use; done here, it becomes part of the start-up image.
    """
    for kind in messages:
        decoder.prepare(kind)
    for kind in (*messages, *nested):
        kind.form = decoder.form(kind)
        kind()


prepare(
    (LinkMessage, VlanMessage, VlanDeviceMessage, NamespaceMessage, AddressMessage, RouteMessage),
    (_LinkInfo, _LinkData, _Peer, _PortData, _AfSpec, _AfInet, _BridgeSpec, _VlanDeviceInfo, _Ipv4Conf, _Metrics),
)
