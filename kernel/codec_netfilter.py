"""Netfilter's messages: batches, nftables' objects, and connections, as message classes on kernel.codec.

One rule: as there, only the attributes that we use; their names are the kernel's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kernel.codec import nla, nlmsg, prepare
from kernel.nft_expression import NESTED, attribute

_FIELDS = (("family", "B"), ("version", "B"), ("subsystem", ">H"))  # struct nfgenmsg (nfnetlink.h)
_HEADER, _NFGENMSG = struct.Struct("=IHHII"), struct.Struct(">BBH")
_BE64 = struct.Struct(">Q")


class BatchMessage(nlmsg):
    """NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END: struct nfgenmsg alone."""

    fields = _FIELDS


class TableMessage(nlmsg):
    """NFT_MSG_NEWTABLE and its kin: struct nfgenmsg and NFTA_TABLE_* attributes (linux/netfilter/nf_tables.h)."""

    prefix = "NFTA_TABLE_"
    fields = _FIELDS
    nla_map = ((1, "NFTA_TABLE_NAME", "asciiz"), (6, "NFTA_TABLE_USERDATA", "cdata"))


class _Hook(nla):
    nla_map = ((1, "NFTA_HOOK_HOOKNUM", "be32"), (2, "NFTA_HOOK_PRIORITY", "sbe32"))


class ChainMessage(nlmsg):
    """NFT_MSG_NEWCHAIN and its kin: struct nfgenmsg and NFTA_CHAIN_* attributes."""

    prefix = "NFTA_CHAIN_"
    fields = _FIELDS
    nla_map = (
        (1, "NFTA_CHAIN_TABLE", "asciiz"),
        (3, "NFTA_CHAIN_NAME", "asciiz"),
        (4, "NFTA_CHAIN_HOOK", "hook|nested"),
        (6, "NFTA_CHAIN_USE", "be32"),
        (7, "NFTA_CHAIN_TYPE", "asciiz"),
        (12, "NFTA_CHAIN_USERDATA", "cdata"),
    )
    hook = _Hook


class RuleMessage(dict[str, Any]):
    """NFT_MSG_NEWRULE and its kin: struct nfgenmsg and NFTA_RULE_* attributes.

    Packed here, with what `encode` uses of nlmsg: a verb may send a thousand rules, and pyroute2 takes a tenth of a
    millisecond for each. Expressions are bytes (kernel.nft_rule makes them).
    """

    fields = _FIELDS
    nla_map = (
        (1, "NFTA_RULE_TABLE", "asciiz"),
        (2, "NFTA_RULE_CHAIN", "asciiz"),
        (3, "NFTA_RULE_HANDLE", "be64"),
        (4, "NFTA_RULE_EXPRESSIONS", "cdata|nested"),
        (6, "NFTA_RULE_POSITION", "be64"),
        (7, "NFTA_RULE_USERDATA", "cdata"),
    )

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(header={})
        self.data = data

    def encode(self) -> None:
        """Makes `data` of the content."""
        parts = [_NFGENMSG.pack(self["family"], 0, 0)]
        for name, value in self["attrs"]:
            kind, pack = _RULE_BY_NAME[name]
            parts.append(attribute(kind, pack(value)))
        body, header = b"".join(parts), self["header"]
        numbers = header["type"], header["flags"], header["sequence_number"]
        self.data = _HEADER.pack(_HEADER.size + len(body), *numbers, 0) + body


# By the names of pyroute2's types: whether it is nested, and what packs a value.
_FLAT_TYPES: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "asciiz": (0, lambda text: text.encode() + b"\0"),
    "be64": (0, _BE64.pack),
    "cdata": (0, bytes),
    "cdata|nested": (NESTED, bytes),
}
_RULE_BY_NAME = {name: (kind | _FLAT_TYPES[how][0], _FLAT_TYPES[how][1]) for kind, name, how in RuleMessage.nla_map}


class _TupleAddresses(nla):
    nla_map = (
        (1, "CTA_IP_V4_SRC", "cdata"),
        (2, "CTA_IP_V4_DST", "cdata"),
        (3, "CTA_IP_V6_SRC", "cdata"),
        (4, "CTA_IP_V6_DST", "cdata"),
    )


class _TuplePorts(nla):
    nla_map = ((1, "CTA_PROTO_NUM", "uint8"), (2, "CTA_PROTO_SRC_PORT", "be16"), (3, "CTA_PROTO_DST_PORT", "be16"))


class _Tuple(nla):
    """CTA_TUPLE_*: one direction of a connection of a protocol with ports."""

    nla_map = (
        (1, "CTA_TUPLE_IP", "addresses|nested"),
        (2, "CTA_TUPLE_PROTO", "ports|nested"),
        (3, "CTA_TUPLE_ZONE", "be16"),
    )
    addresses = _TupleAddresses
    ports = _TuplePorts


class _Filter(nla):
    nla_map = ((1, "CTA_FILTER_ORIG_FLAGS", "uint32"),)


class ConntrackMessage(nlmsg):
    """IPCTNL_MSG_CT_NEW and its kin: struct nfgenmsg and CTA_* attributes (linux/netfilter/nfnetlink_conntrack.h)."""

    prefix = "CTA_"
    fields = _FIELDS
    nla_map = (
        (1, "CTA_TUPLE_ORIG", "tuple|nested"),
        (12, "CTA_ID", "be32"),
        (18, "CTA_ZONE", "be16"),
        (25, "CTA_FILTER", "filter|nested"),
    )
    tuple = _Tuple
    filter = _Filter


prepare(
    (BatchMessage, TableMessage, ChainMessage, RuleMessage, ConntrackMessage),
    (_Hook, _Tuple, _TupleAddresses, _TuplePorts, _Filter),
)
