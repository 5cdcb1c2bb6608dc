"""Lists all nftables chains of this namespace, including those of iptables-nft and other programs.

This module only reads.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel.codec_netfilter import ChainMessage
from kernel.netfilter import nft
from kernel.netfilter.nft import Chain, Hook, NftSocket, Table
from kernel.netfilter.nft_rule import parse_comment
from kernel.rtnl import NLM_F_DUMP, Request

_GETCHAIN = 10 << 8 | 4  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETCHAIN
_NF_DROP = 0
FORWARD = 2  # NF_INET_FORWARD


def list_chains(socket: NftSocket, body_filter: Callable[[bytes], object] | None = None) -> list[Chain]:
    """Lists the chains of all families and tables, none if the kernel lacks nf_tables; raises KernelError.

    `body_filter` is a filter on a message's bytes; other chains are not decoded, as there may be thousands.
    """
    request = Request(
        "list the chains of nftables",
        ChainMessage,
        _GETCHAIN,
        NLM_F_DUMP,
        {"family": 0},
        ignore=nft.ABSENT_ERRNOS,
        body_filter=body_filter,
    )
    return [_chain(message) for message in socket.dump(request)]


def _chain(message: ChainMessage) -> Chain:
    get = message.get_attr
    hook = get("NFTA_CHAIN_HOOK")
    return Chain(
        Table(message["family"], get("NFTA_CHAIN_TABLE") or ""),
        get("NFTA_CHAIN_NAME") or "",
        hook
        and Hook(
            get("NFTA_CHAIN_TYPE") or "",
            hook.get_attr("NFTA_HOOK_HOOKNUM") or 0,
            hook.get_attr("NFTA_HOOK_PRIORITY") or 0,
        ),
        parse_comment(get("NFTA_CHAIN_USERDATA") or b""),
        uses=get("NFTA_CHAIN_USE") or 0,
        drops=get("NFTA_CHAIN_POLICY") == _NF_DROP,
    )
