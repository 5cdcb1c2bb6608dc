"""Verdict maps of nftables: an element maps a key to the chain in which the packet continues, without returning.

A map is a `nft_set.Set` with `verdicts`; `nft_set` creates maps, and deletes elements by their keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernel.netfilter import nft_rule
from kernel.netfilter import nft_set as sets
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_expression import DATA_VALUE, LIST_ELEM, nested, parse_content, value, verdict_data
from kernel.netfilter.nft_set import Set
from kernel.rtnl import Request

_ELEM_KEY, _ELEM_DATA = 1, 2  # NFTA_SET_ELEM_*
_VERDICT, _CODE, _CHAIN = 2, 1, 2  # NFTA_DATA_VERDICT, NFTA_VERDICT_*
_GOTO = nft_rule.GOTO.to_bytes(4, "big", signed=True)


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
    chains = {}
    for content in sets.list_encoded(socket, nft_map):
        element = parse_content(content)
        verdict = parse_content(parse_content(element.get(_ELEM_DATA, b"")).get(_VERDICT, b""))
        is_goto = verdict.get(_CODE) == _GOTO
        key = parse_content(element.get(_ELEM_KEY, b"")).get(DATA_VALUE, b"")
        chains[key] = verdict.get(_CHAIN, b"").rstrip(b"\0").decode(errors="replace") if is_goto else ""
    return chains
