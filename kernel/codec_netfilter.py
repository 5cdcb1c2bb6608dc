"""Netlink messages of netfilter, as message classes like those of kernel.codec: batches, nftables, conntrack.

The classes have only the attributes that podwire uses, with the kernel's names.
"""

from __future__ import annotations

from kernel.codec import nla, nlmsg
from kernel.wire import prepare

_FIELDS = (("family", "B"), ("version", "B"), ("subsystem", ">H"))  # struct nfgenmsg (nfnetlink.h)


class BatchMessage(nlmsg):  # type: ignore[misc]
    """NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END: struct nfgenmsg, and the expected generation of the rules."""

    fields = _FIELDS
    nla_map = ((1, "NFNL_BATCH_GENID", "be32"),)


class GenerationMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_NEWGEN and related messages: struct nfgenmsg and NFTA_GEN_* attributes (linux/netfilter/nf_tables.h)."""

    fields = _FIELDS
    nla_map = ((1, "NFTA_GEN_ID", "be32"),)


class TableMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_NEWTABLE and related messages: struct nfgenmsg and NFTA_TABLE_* attributes (nf_tables.h)."""

    fields = _FIELDS
    nla_map = (
        (1, "NFTA_TABLE_NAME", "asciiz"),
        (2, "NFTA_TABLE_FLAGS", "be32"),
        (6, "NFTA_TABLE_USERDATA", "cdata"),
    )


class _Hook(nla):  # type: ignore[misc]
    nla_map = (
        (1, "NFTA_HOOK_HOOKNUM", "be32"),
        (2, "NFTA_HOOK_PRIORITY", "sbe32"),
        (3, "NFTA_HOOK_DEV", "asciiz"),
        (4, "NFTA_HOOK_DEVS", "cdata|nested"),
    )


class ChainMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_NEWCHAIN and related messages: struct nfgenmsg and NFTA_CHAIN_* attributes."""

    fields = _FIELDS
    nla_map = (
        (1, "NFTA_CHAIN_TABLE", "asciiz"),
        (3, "NFTA_CHAIN_NAME", "asciiz"),
        (4, "NFTA_CHAIN_HOOK", "hook|nested"),
        (5, "NFTA_CHAIN_POLICY", "be32"),
        (6, "NFTA_CHAIN_USE", "be32"),
        (7, "NFTA_CHAIN_TYPE", "asciiz"),
        (12, "NFTA_CHAIN_USERDATA", "cdata"),
    )
    hook = _Hook


class RuleMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_NEWRULE and related messages: struct nfgenmsg and NFTA_RULE_* attributes.

    Expressions are bytes (kernel.netfilter.nft_rule encodes them).
    """

    fields = _FIELDS
    nla_map = (
        (1, "NFTA_RULE_TABLE", "asciiz"),
        (2, "NFTA_RULE_CHAIN", "asciiz"),
        (3, "NFTA_RULE_HANDLE", "be64"),
        (4, "NFTA_RULE_EXPRESSIONS", "cdata|nested"),
        (5, "NFTA_RULE_COMPAT", "cdata|nested"),
        (6, "NFTA_RULE_POSITION", "be64"),
        (7, "NFTA_RULE_USERDATA", "cdata"),
    )


class SetMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_NEWSET and related messages: struct nfgenmsg and NFTA_SET_* attributes."""

    fields = _FIELDS
    nla_map = (
        (1, "NFTA_SET_TABLE", "asciiz"),
        (2, "NFTA_SET_NAME", "asciiz"),
        (3, "NFTA_SET_FLAGS", "be32"),
        (4, "NFTA_SET_KEY_TYPE", "be32"),
        (5, "NFTA_SET_KEY_LEN", "be32"),
        (6, "NFTA_SET_DATA_TYPE", "be32"),
        (7, "NFTA_SET_DATA_LEN", "be32"),
        (10, "NFTA_SET_ID", "be32"),
        (13, "NFTA_SET_USERDATA", "cdata"),
    )


class SetElementsMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_NEWSETELEM and related messages: struct nfgenmsg and NFTA_SET_ELEM_LIST_* attributes.

    Elements are bytes (kernel.netfilter.nft_set encodes and decodes them).
    """

    fields = _FIELDS
    nla_map = (
        (1, "NFTA_SET_ELEM_LIST_TABLE", "asciiz"),
        (2, "NFTA_SET_ELEM_LIST_SET", "asciiz"),
        (3, "NFTA_SET_ELEM_LIST_ELEMENTS", "cdata|nested"),
    )


class ObjectMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_NEWOBJ and related messages: struct nfgenmsg and NFTA_OBJ_* attributes.

    The content of an object is bytes (kernel.netfilter.nft_table encodes and decodes it).
    """

    fields = _FIELDS
    nla_map = (
        (1, "NFTA_OBJ_TABLE", "asciiz"),
        (2, "NFTA_OBJ_NAME", "asciiz"),
        (3, "NFTA_OBJ_TYPE", "be32"),
        (4, "NFTA_OBJ_DATA", "cdata|nested"),
    )


class _TupleAddresses(nla):  # type: ignore[misc]
    nla_map = (
        (1, "CTA_IP_V4_SRC", "cdata"),
        (2, "CTA_IP_V4_DST", "cdata"),
        (3, "CTA_IP_V6_SRC", "cdata"),
        (4, "CTA_IP_V6_DST", "cdata"),
    )


class _TuplePorts(nla):  # type: ignore[misc]
    nla_map = ((1, "CTA_PROTO_NUM", "uint8"), (2, "CTA_PROTO_SRC_PORT", "be16"), (3, "CTA_PROTO_DST_PORT", "be16"))


class _Tuple(nla):  # type: ignore[misc]
    """CTA_TUPLE_*: one direction of a connection of a protocol with ports."""

    nla_map = (
        (1, "CTA_TUPLE_IP", "addresses|nested"),
        (2, "CTA_TUPLE_PROTO", "ports|nested"),
        (3, "CTA_TUPLE_ZONE", "be16"),
    )
    addresses = _TupleAddresses
    ports = _TuplePorts


class _Filter(nla):  # type: ignore[misc]
    nla_map = ((1, "CTA_FILTER_ORIG_FLAGS", "uint32"),)


class ConntrackMessage(nlmsg):  # type: ignore[misc]
    """IPCTNL_MSG_CT_NEW and related messages: struct nfgenmsg and CTA_* attributes (nfnetlink_conntrack.h)."""

    fields = _FIELDS
    nla_map = (
        (1, "CTA_TUPLE_ORIG", "tuple|nested"),
        (2, "CTA_TUPLE_REPLY", "tuple|nested"),
        (12, "CTA_ID", "be32"),
        (18, "CTA_ZONE", "be16"),
        (25, "CTA_FILTER", "filter|nested"),
    )
    tuple = _Tuple
    filter = _Filter


prepare(BatchMessage, GenerationMessage, TableMessage, ChainMessage, RuleMessage, SetMessage, SetElementsMessage)
prepare(ObjectMessage, ConntrackMessage)
