"""Reads the chains, rules and sets of one whole nftables table, and deletes a table.

Other tables are not decoded: iptables-nft's may have thousands of chains.
"""

from __future__ import annotations

from typing import NamedTuple

from kernel.codec_netfilter import RuleMessage, SetMessage, TableMessage
from kernel.netfilter import nft_chains
from kernel.netfilter.nft import ABSENT_ERRNOS, Chain, NftSocket, Table
from kernel.rtnl import NLM_F_DUMP, Request
from kernel.wire import Attributes

# linux/netfilter/nf_tables.h: NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_*
_DELTABLE, _GETRULE, _GETSET = 0xA02, 0xA07, 0xA0A
_ANONYMOUS = 1  # NFT_SET_ANONYMOUS


class TableContent(NamedTuple):
    """The chains of a table, the expressions of each chain's rules in order, and the names of its sets."""

    chains: dict[str, Chain]
    rules: dict[str, list[bytes]]
    sets: set[str]


def delete_table_request(table: Table) -> Request:
    """Builds the request that deletes a table with everything in it; refused if it is absent (ENOENT)."""
    attributes = [("NFTA_TABLE_NAME", table.name)]
    values = {"family": table.family}
    return Request(f"delete table {table.name}", TableMessage, _DELTABLE, 0, values, attributes, silent=True)


def read_table(socket: NftSocket, table: Table) -> TableContent:
    """Reads a table, nothing if it is absent; raises KernelError.

    The caller checks the ruleset's generation: another process may change the table between the parts.
    """
    name = table.name.encode() + b"\0"
    chains = nft_chains.list_chains(socket, lambda message: name in message)
    rules: dict[str, list[bytes]] = {}
    for message in _dump(socket, RuleMessage, _GETRULE, table, [("NFTA_RULE_TABLE", table.name)]):
        if message.get_attr("NFTA_RULE_TABLE") == table.name:  # kernels before 4.12 send the rules of all tables
            rules.setdefault(message.get_attr("NFTA_RULE_CHAIN") or "", []).append(
                message.get_attr("NFTA_RULE_EXPRESSIONS") or b""
            )
    sets = _dump(socket, SetMessage, _GETSET, table, [("NFTA_SET_TABLE", table.name)])
    return TableContent(
        {chain.name: chain for chain in chains if (chain.table.family, chain.table.name) == (table.family, table.name)},
        rules,
        {
            message.get_attr("NFTA_SET_NAME") or ""
            for message in sets
            if not (message.get_attr("NFTA_SET_FLAGS") or 0) & _ANONYMOUS
        },
    )


def _dump(
    socket: NftSocket, kind: type[object], number: int, table: Table, attributes: Attributes
) -> list[RuleMessage]:
    values = {"family": table.family}
    return socket.dump(Request(f"list table {table.name}", kind, number, NLM_F_DUMP, values, attributes, ABSENT_ERRNOS))
