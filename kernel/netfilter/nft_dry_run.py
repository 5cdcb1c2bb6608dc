"""Makes the kernel validate changes of nftables without making them, for STATUS."""

from __future__ import annotations

from kernel.codec_netfilter import TableMessage
from kernel.netfilter import nft
from kernel.netfilter.nft import NftSocket
from kernel.rtnl import Request

_GETTABLE = 10 << 8 | 1  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETTABLE
_DORMANT = ("NFTA_TABLE_FLAGS", 1)  # NFT_TABLE_F_DORMANT


def dry_run(socket: NftSocket, *requests: Request) -> None:
    """Makes the kernel validate requests without committing them; raises KernelError for the first refused one.

    A table that does not exist yet is dormant, so that its chains get no hook: when a hook is removed, the kernel
    discards all packets that wait in queues (NFQUEUE) of the namespace, also those of an intrusion prevention system.
    """
    tables = [request for request in requests if request.kind is TableMessage]
    existing = socket.get(*map(_read_request, tables))
    missing = [request for request, table in zip(tables, existing, strict=True) if table is None]
    dormant = [
        request._replace(attributes=[*request.attributes, _DORMANT]) if request in missing else request
        for request in requests
    ]
    nft.send(socket, dormant, commit=False)


def _read_request(creation: Request) -> Request:
    """Returns the request that reads the table of a creation."""
    name = creation.attributes[:1]
    return Request(creation.description, TableMessage, _GETTABLE, 0, creation.values, name, nft.ABSENT_ERRNOS)
