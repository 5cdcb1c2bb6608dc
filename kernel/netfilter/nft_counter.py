"""Named counters of nftables: they keep their number of packets when the rules that refer to them are replaced.

In this module *_request functions build a Request and do no I/O.
"""

from __future__ import annotations

from kernel.codec_netfilter import ObjectMessage
from kernel.netfilter.nft import ABSENT_ERRNOS, NftSocket, Table
from kernel.netfilter.nft_expression import attribute, parse_content
from kernel.rtnl import NLM_F_CREATE, NLM_F_DUMP, Request
from kernel.wire import Attributes

# linux/netfilter/nf_tables.h: NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_*
_NEWOBJ, _GETOBJ, _DELOBJ = 0xA12, 0xA13, 0xA14
_COUNTER = 1  # NFT_OBJECT_COUNTER
_BYTES, _PACKETS = 1, 2  # NFTA_COUNTER_*


def counter_request(table: Table, name: str, packets: int = 0) -> Request:
    """Builds the request that creates a counter; an existing one keeps its number."""
    content = attribute(_BYTES, bytes(8)) + attribute(_PACKETS, packets.to_bytes(8, "big"))
    attributes = [*_named(table, name), ("NFTA_OBJ_DATA", content)]
    return _request(f"add counter {table.name} {name}", _NEWOBJ, table, attributes, NLM_F_CREATE)


def delete_counter_request(table: Table, name: str) -> Request:
    """Builds the request that deletes a counter; refused if a rule refers to it (EBUSY) or it is absent (ENOENT)."""
    return _request(f"delete counter {table.name} {name}", _DELOBJ, table, _named(table, name))


def list_counters(socket: NftSocket, table: Table) -> dict[str, int]:
    """Lists the packets of each counter of a table, none if the table is absent; raises KernelError."""
    attributes: Attributes = [("NFTA_OBJ_TABLE", table.name), ("NFTA_OBJ_TYPE", _COUNTER)]
    request = _request(f"list the counters of {table.name}", _GETOBJ, table, attributes, NLM_F_DUMP)
    messages = socket.dump(request._replace(ignore=ABSENT_ERRNOS, silent=False), merge_key=_name)
    return {
        _name(message): int.from_bytes(
            parse_content(message.get_attr("NFTA_OBJ_DATA") or b"").get(_PACKETS, b""), "big"
        )
        for message in messages
        if message.get_attr("NFTA_OBJ_TYPE") == _COUNTER
    }


def _name(message: ObjectMessage) -> str:
    return message.get_attr("NFTA_OBJ_NAME") or ""


def _named(table: Table, name: str) -> Attributes:
    return [("NFTA_OBJ_TABLE", table.name), ("NFTA_OBJ_NAME", name), ("NFTA_OBJ_TYPE", _COUNTER)]


def _request(description: str, number: int, table: Table, attributes: Attributes, flags: int = 0) -> Request:
    return Request(description, ObjectMessage, number, flags, {"family": table.family}, attributes, silent=True)
