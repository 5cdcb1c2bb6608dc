"""Reads the content of one nftables table, deletes a table, and creates, lists and deletes its named counters.

Messages about other tables are not decoded: those of iptables-nft may have thousands of chains. A named counter keeps
its number of packets while the rules that refer to it are replaced. *_request functions build a Request and do no I/O.
"""

from __future__ import annotations

from typing import NamedTuple

from kernel.codec_netfilter import ObjectMessage, RuleMessage, SetMessage, TableMessage
from kernel.netfilter import nft_chains
from kernel.netfilter.nft import ABSENT_ERRNOS, Chain, NftSocket, Table
from kernel.netfilter.nft_expression import attribute, parse_content
from kernel.rtnl import NLM_F_CREATE, NLM_F_DUMP, Request
from kernel.wire import Attributes

# linux/netfilter/nf_tables.h: NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_*
_DELTABLE, _GETRULE, _GETSET, _NEWOBJ, _GETOBJ, _DELOBJ = 0xA02, 0xA07, 0xA0A, 0xA12, 0xA13, 0xA14
_COUNTER = 1  # NFT_OBJECT_COUNTER
_BYTES, _PACKETS = 1, 2  # NFTA_COUNTER_*
_ANONYMOUS_SET = 1  # NFT_SET_ANONYMOUS


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
    """Reads the content of a table, empty if it is absent; raises KernelError.

    It sends several requests: if another process changes the table meanwhile, the parts may not match.
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
            if not (message.get_attr("NFTA_SET_FLAGS") or 0) & _ANONYMOUS_SET
        },
    )


def counter_request(table: Table, name: str, packets: int = 0) -> Request:
    """Builds the request that creates a counter; an existing counter keeps its number of packets."""
    content = attribute(_BYTES, bytes(8)) + attribute(_PACKETS, packets.to_bytes(8, "big"))
    attributes = [*_counter_attributes(table, name), ("NFTA_OBJ_DATA", content)]
    return _object_request(f"add counter {table.name} {name}", _NEWOBJ, table, attributes, NLM_F_CREATE)


def delete_counter_request(table: Table, name: str) -> Request:
    """Builds the request that deletes a counter; refused if a rule refers to it (EBUSY) or it is absent (ENOENT)."""
    return _object_request(f"delete counter {table.name} {name}", _DELOBJ, table, _counter_attributes(table, name))


def list_counters(socket: NftSocket, table: Table) -> dict[str, int]:
    """Lists the counters of a table with their numbers of packets, none if it is absent; raises KernelError."""
    attributes: Attributes = [("NFTA_OBJ_TABLE", table.name), ("NFTA_OBJ_TYPE", _COUNTER)]
    request = _object_request(f"list the counters of {table.name}", _GETOBJ, table, attributes, NLM_F_DUMP)
    messages = socket.dump(request._replace(ignore=ABSENT_ERRNOS, silent=False), merge_key=_counter_name)
    return {
        _counter_name(message): int.from_bytes(
            parse_content(message.get_attr("NFTA_OBJ_DATA") or b"").get(_PACKETS, b""), "big"
        )
        for message in messages
        if message.get_attr("NFTA_OBJ_TYPE") == _COUNTER
    }


def _counter_name(message: ObjectMessage) -> str:
    return message.get_attr("NFTA_OBJ_NAME") or ""


def _counter_attributes(table: Table, name: str) -> Attributes:
    return [("NFTA_OBJ_TABLE", table.name), ("NFTA_OBJ_NAME", name), ("NFTA_OBJ_TYPE", _COUNTER)]


def _object_request(
    description: str, message_type: int, table: Table, attributes: Attributes, flags: int = 0
) -> Request:
    return Request(description, ObjectMessage, message_type, flags, {"family": table.family}, attributes, silent=True)


def _dump(
    socket: NftSocket, kind: type[object], message_type: int, table: Table, attributes: Attributes
) -> list[RuleMessage]:
    values = {"family": table.family}
    return socket.dump(
        Request(f"list table {table.name}", kind, message_type, NLM_F_DUMP, values, attributes, ABSENT_ERRNOS)
    )
