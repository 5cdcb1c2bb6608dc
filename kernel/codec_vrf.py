"""Netlink messages of VRF devices, and of addresses that are copied, as message classes like those of kernel.codec."""

from __future__ import annotations

from kernel.codec import AddressMessage, LinkMessage, nla, nlmsg
from kernel.wire import prepare


class _VrfData(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_VRF_TABLE", "uint32"),)


class _VrfInfo(nla):  # type: ignore[misc]
    nla_map = ((1, "IFLA_INFO_KIND", "asciiz"), (2, "IFLA_INFO_DATA", "vrf_data"))
    vrf_data = _VrfData


class VrfMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWLINK of a VRF device: struct ifinfomsg, and its routing table."""

    fields = LinkMessage.fields
    nla_map = (
        (3, "IFLA_IFNAME", "asciiz"),
        (18, "IFLA_LINKINFO", "vrf_info"),
        (20, "IFLA_IFALIAS", "asciiz"),
        (29, "IFLA_EXT_MASK", "uint32"),
    )
    vrf_info = _VrfInfo


class WholeAddressMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWADDR: struct ifaddrmsg and all IFA_* attributes as bytes, so that a message can be sent back unchanged."""

    fields = AddressMessage.fields
    nla_map = (
        (1, "IFA_ADDRESS", "cdata"),
        (2, "IFA_LOCAL", "cdata"),
        (6, "IFA_CACHEINFO", "cdata"),
        (8, "IFA_FLAGS", "cdata"),
        (9, "IFA_RT_PRIORITY", "cdata"),
        (11, "IFA_PROTO", "cdata"),
    )


prepare(VrfMessage, WholeAddressMessage)
