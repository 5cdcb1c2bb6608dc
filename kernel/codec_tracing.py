"""Netlink messages that only the operator's tool uses, as message classes like those of kernel.codec.

They describe the way of a packet: events of nftables' trace, whole policy rules, route look-ups. Plugins do not import
this module.
"""

from __future__ import annotations

from kernel.codec import RouteMessage, nla, nlmsg
from kernel.codec_routing import FibRuleMessage
from kernel.wire import prepare

_NETFILTER_FIELDS = (("family", "B"), ("version", "B"), ("subsystem", ">H"))  # struct nfgenmsg


class _Verdict(nla):  # type: ignore[misc]
    nla_map = ((1, "NFTA_VERDICT_CODE", "sbe32"), (2, "NFTA_VERDICT_CHAIN", "asciiz"))


class TraceMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_TRACE: struct nfgenmsg and NFTA_TRACE_* attributes (linux/netfilter/nf_tables.h)."""

    fields = _NETFILTER_FIELDS
    nla_map = (
        (1, "NFTA_TRACE_TABLE", "asciiz"),
        (2, "NFTA_TRACE_CHAIN", "asciiz"),
        (3, "NFTA_TRACE_RULE_HANDLE", "be64"),
        (4, "NFTA_TRACE_TYPE", "be32"),
        (5, "NFTA_TRACE_VERDICT", "verdict|nested"),
        (6, "NFTA_TRACE_ID", "be32"),
        (14, "NFTA_TRACE_MARK", "be32"),
        (16, "NFTA_TRACE_POLICY", "be32"),
    )
    verdict = _Verdict


class PolicyRuleMessage(FibRuleMessage):
    """RTM_NEWRULE with every condition of a rule."""

    nla_map = (  # type: ignore[assignment]  # another length
        (1, "FRA_DST", "cdata"),
        (3, "FRA_IIFNAME", "asciiz"),
        (4, "FRA_GOTO", "uint32"),
        (10, "FRA_FWMARK", "uint32"),
        (16, "FRA_FWMASK", "uint32"),
        (17, "FRA_OIFNAME", "asciiz"),
        (20, "FRA_UID_RANGE", "cdata"),
        (22, "FRA_IP_PROTO", "uint8"),
        (23, "FRA_SPORT_RANGE", "cdata"),
        (24, "FRA_DPORT_RANGE", "cdata"),
        (28, "FRA_SPORT_MASK", "uint16"),
        (29, "FRA_DPORT_MASK", "uint16"),
        *FibRuleMessage.nla_map,
    )


class LookupMessage(nlmsg):  # type: ignore[misc]
    """RTM_GETROUTE with the packet's properties, and its answer: struct rtmsg and RTA_* attributes."""

    fields = RouteMessage.fields
    nla_map = (
        *RouteMessage.nla_map,
        (2, "RTA_SRC", "cdata"),
        (3, "RTA_IIF", "uint32"),
        (16, "RTA_MARK", "uint32"),
        (18, "RTA_VIA", "cdata"),
        (27, "RTA_IP_PROTO", "uint8"),
        (28, "RTA_SPORT", "be16"),
        (29, "RTA_DPORT", "be16"),
    )
    metrics = RouteMessage.metrics


prepare(TraceMessage, PolicyRuleMessage, LookupMessage)
