"""Netlink messages of traffic control, as message classes like those of kernel.codec: qdiscs and filters.

The classes have only the attributes that podwire uses, with the kernel's names. An attribute that is a C struct is
bytes here; kernel.traffic packs it.
"""

from __future__ import annotations

from typing import Any

from kernel.codec import nla, nlmsg
from kernel.wire import prepare

_FIELDS = (
    ("family", "B"),
    ("__pad1", "B"),
    ("__pad2", "H"),
    ("index", "i"),
    ("handle", "I"),
    ("parent", "I"),
    ("info", "I"),
)  # struct tcmsg (linux/rtnetlink.h)


class TbfOptions(nla):  # type: ignore[misc]
    """TCA_OPTIONS of a token bucket filter (linux/pkt_sched.h); the first is struct tc_tbf_qopt."""

    nla_map = ((1, "TCA_TBF_PARMS", "cdata"), (4, "TCA_TBF_RATE64", "uint64"), (6, "TCA_TBF_BURST", "uint32"))


class _HtbOptions(nla):  # type: ignore[misc]
    """TCA_OPTIONS of an HTB qdisc, struct tc_htb_glob, and of its classes, struct tc_htb_opt (linux/pkt_sched.h)."""

    nla_map = (
        (1, "TCA_HTB_PARMS", "cdata"),
        (2, "TCA_HTB_INIT", "cdata"),
        (5, "TCA_HTB_DIRECT_QLEN", "uint32"),
        (6, "TCA_HTB_RATE64", "uint64"),
        (7, "TCA_HTB_CEIL64", "uint64"),
    )


class QdiscMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWQDISC, RTM_NEWTCLASS and their kin: struct tcmsg; the options depend on the kind, which precedes them."""

    fields = _FIELDS
    nla_map = ((1, "TCA_KIND", "asciiz"), (2, "TCA_OPTIONS", "options"), (3, "TCA_STATS", "cdata"))

    @staticmethod
    def options(message: Any, **_unused: object) -> Any:
        """Returns the class of the options."""
        return {"tbf": TbfOptions, "htb": _HtbOptions}.get(message.get_attr("TCA_KIND"), nla.cdata)


class MirredOptions(nla):  # type: ignore[misc]
    """TCA_ACT_OPTIONS of mirred: struct tc_mirred (linux/tc_act/tc_mirred.h)."""

    nla_map = ((2, "TCA_MIRRED_PARMS", "cdata"),)


class Action(nla):  # type: ignore[misc]
    """An action: its kind, and options that depend on it; only mirred's are decoded."""

    nla_map = ((1, "TCA_ACT_KIND", "asciiz"), (2, "TCA_ACT_OPTIONS", "mirred_options"))
    mirred_options = MirredOptions


class Actions(nla):  # type: ignore[misc]
    """TCA_U32_ACT: a filter's actions, numbered from 1 in their order; only the first is decoded."""

    nla_map = ((1, "TCA_ACT_PRIO_1", "action"),)
    action = Action


class U32Options(nla):  # type: ignore[misc]
    """TCA_OPTIONS of a u32 filter; TCA_U32_SEL is struct tc_u32_sel with its keys (linux/pkt_cls.h)."""

    nla_map = ((1, "TCA_U32_CLASSID", "uint32"), (5, "TCA_U32_SEL", "cdata"), (7, "TCA_U32_ACT", "actions"))
    actions = Actions


class FilterMessage(nlmsg):  # type: ignore[misc]
    """RTM_NEWTFILTER and related messages: struct tcmsg, whose `info` is priority and protocol, and TCA_* attributes.

    TCA_OPTIONS depends on the kind of filter.
    """

    fields = _FIELDS
    nla_map = ((1, "TCA_KIND", "asciiz"), (2, "TCA_OPTIONS", "options"), (11, "TCA_CHAIN", "uint32"))

    @staticmethod
    def options(message: Any, **_unused: object) -> Any:
        """Returns the class of the options."""
        return U32Options if message.get_attr("TCA_KIND") == "u32" else nla.cdata


prepare(QdiscMessage, FilterMessage, TbfOptions, _HtbOptions, U32Options)
