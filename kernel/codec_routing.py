"""Netlink messages of policy rules, and of routes that are copied, as message classes like those of kernel.codec."""

from __future__ import annotations

from kernel.codec import RouteMessage, nlmsg
from kernel.wire import prepare


class FibRuleMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWRULE and related messages: struct fib_rule_hdr and FRA_* attributes (linux/fib_rules.h)."""

    fields = (
        ("family", "B"),
        ("dst_len", "B"),
        ("src_len", "B"),
        ("tos", "B"),
        ("table", "B"),
        ("res1", "B"),
        ("res2", "B"),
        ("action", "B"),
        ("flags", "I"),
    )
    nla_map = (
        (2, "FRA_SRC", "cdata"),
        (6, "FRA_PRIORITY", "uint32"),
        (14, "FRA_SUPPRESS_PREFIXLEN", "uint32"),
        (15, "FRA_TABLE", "uint32"),
        (19, "FRA_L3MDEV", "uint8"),
        (21, "FRA_PROTOCOL", "uint8"),
    )


class RouteCopyMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWROUTE and related messages with all attributes that define a route, most of them as bytes.

    A route is copied by sending these attributes again.
    """

    fields = RouteMessage.fields
    nla_map = (
        (1, "RTA_DST", "cdata"),
        (4, "RTA_OIF", "uint32"),
        (5, "RTA_GATEWAY", "cdata"),
        (6, "RTA_PRIORITY", "uint32"),
        (7, "RTA_PREFSRC", "cdata"),
        (8, "RTA_METRICS", "cdata"),
        (9, "RTA_MULTIPATH", "cdata"),
        (11, "RTA_FLOW", "uint32"),
        (15, "RTA_TABLE", "uint32"),
        (18, "RTA_VIA", "cdata"),
        (20, "RTA_PREF", "uint8"),
        (21, "RTA_ENCAP_TYPE", "uint16"),
        (22, "RTA_ENCAP", "cdata"),
    )


prepare(FibRuleMessage, RouteCopyMessage)
