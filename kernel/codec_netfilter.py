"""Netfilter's messages: batches and nftables' objects, as message classes on kernel.codec.

One rule: as there, only the attributes that we use; their names are the kernel's.
"""

from __future__ import annotations

from kernel.codec import nla, nlmsg, prepare

_FIELDS = (("family", "B"), ("version", "B"), ("subsystem", ">H"))  # struct nfgenmsg (nfnetlink.h)


class BatchMessage(nlmsg):  # type: ignore[misc]
    """NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END: struct nfgenmsg alone."""

    fields = _FIELDS


class TableMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_NEWTABLE and its kin: struct nfgenmsg and NFTA_TABLE_* attributes (linux/netfilter/nf_tables.h)."""

    prefix = "NFTA_TABLE_"
    fields = _FIELDS
    nla_map = ((1, "NFTA_TABLE_NAME", "asciiz"), (6, "NFTA_TABLE_USERDATA", "cdata"))


class _Hook(nla):  # type: ignore[misc]
    nla_map = ((1, "NFTA_HOOK_HOOKNUM", "be32"), (2, "NFTA_HOOK_PRIORITY", "sbe32"))


class ChainMessage(nlmsg):  # type: ignore[misc]
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


class RuleMessage(nlmsg):  # type: ignore[misc]
    """NFT_MSG_NEWRULE and its kin: struct nfgenmsg and NFTA_RULE_* attributes.

    Expressions are bytes here (kernel.nft_rule makes them): as pyroute2 objects they would be thirty a rule.
    """

    prefix = "NFTA_RULE_"
    fields = _FIELDS
    nla_map = (
        (1, "NFTA_RULE_TABLE", "asciiz"),
        (2, "NFTA_RULE_CHAIN", "asciiz"),
        (3, "NFTA_RULE_HANDLE", "be64"),
        (4, "NFTA_RULE_EXPRESSIONS", "cdata|nested"),
        (7, "NFTA_RULE_USERDATA", "cdata"),
    )


prepare((BatchMessage, TableMessage, ChainMessage, RuleMessage), (_Hook,))
