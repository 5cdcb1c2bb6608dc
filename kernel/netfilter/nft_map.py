"""Verdict maps of nftables: an element maps a key to the chain in which the packet continues, without returning.

A map is a `nft_set.Set` with `verdicts`; `nft_set` creates maps, and deletes elements by their keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernel.netfilter import nft_rule
from kernel.netfilter import nft_set as sets
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_expression import ATTRIBUTE, LIST_ELEM, nested, value, verdict_data
from kernel.netfilter.nft_set import Set
from kernel.rtnl import Request

_ELEM_KEY, _ELEM_DATA = 1, 2  # NFTA_SET_ELEM_*
# NFTA_VERDICT_CODE, then NFTA_VERDICT_CHAIN.
_CODE = ATTRIBUTE.pack(8, 1) + nft_rule.GOTO.to_bytes(4, "big", signed=True)
_GOTO = re.compile(re.escape(_CODE) + rb"..\x02\0([^\0]*)\0", re.DOTALL)


def add_goto_requests(nft_map: Set, chains: Mapping[bytes, str]) -> list[Request]:
    """Builds the requests that map keys to chains; refused if a key exists with another chain (EEXIST)."""
    encoded = [
        nested(LIST_ELEM, value(_ELEM_KEY, key), verdict_data(_ELEM_DATA, nft_rule.GOTO, chain))
        for key, chain in chains.items()
    ]
    texts = [f"{sets.key_text(nft_map, key)} : goto {chain}" for key, chain in chains.items()]
    return sets.add_encoded_requests(nft_map, encoded, lambda start, end: "{ " + ", ".join(texts[start:end]) + " }")


def list_gotos(socket: NftSocket, nft_map: Set) -> dict[bytes, str]:
    """Lists the chain of each key, "" for another verdict; nothing if the map is absent. Raises KernelError."""
    start = ATTRIBUTE.size * 2  # of the attributes of the key, and of its value
    end = start + sum(part.size for part in nft_map.key)
    chains = {}
    for content in sets.list_encoded(socket, nft_map):
        match = _GOTO.search(content, end)
        chains[content[start:end]] = match[1].decode(errors="replace") if match else ""
    return chains
