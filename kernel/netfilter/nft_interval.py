"""Elements of nftables sets with intervals (`flags interval`), whose key is an address.

The kernel stores an interval as two elements: its first address, and the address after its last one with a flag. An
interval up to the last possible address has no second element. Intervals of a set may be adjacent, but not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import NamedTuple

from cni.address import Network
from kernel.netfilter import nft_set as sets
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_expression import DATA_VALUE, LIST_ELEM, attribute, attributes, nested, value
from kernel.netfilter.nft_set import Set
from kernel.rtnl import Request

_ELEM_KEY, _ELEM_FLAGS = 1, 3  # NFTA_SET_ELEM_*
_ENDS = (1).to_bytes(4, "big")  # NFT_SET_ELEM_INTERVAL_END


class Interval(NamedTuple):
    """The addresses from `first` up to, but not including, `end`, as numbers."""

    first: int
    end: int


def interval_of(network: Network) -> Interval:
    """Returns the interval of a network's addresses."""
    first = int(network.network_address)
    return Interval(first, first + (1 << network.max_prefixlen - network.prefixlen))


def add_interval_requests(nft_set: Set, intervals: Iterable[Interval]) -> list[Request]:
    """Builds the requests that add intervals; existing ones stay. Refused if one overlaps another (EEXIST)."""
    items = list(intervals)
    return sets.add_encoded_requests(
        nft_set, _encode(nft_set, items), lambda start, end: _text(nft_set, items[start:end])
    )


def delete_interval_requests(nft_set: Set, intervals: Iterable[Interval]) -> list[Request]:
    """Builds the requests that delete intervals; refused if one is absent (ENOENT)."""
    items = list(intervals)
    return sets.delete_encoded_requests(
        nft_set, _encode(nft_set, items), lambda start, end: _text(nft_set, items[start:end])
    )


def list_intervals(socket: NftSocket, nft_set: Set) -> set[Interval]:
    """Lists the intervals of a set, none if it is absent; raises KernelError."""
    size = nft_set.key[0].size
    ends: set[tuple[int, bool]] = set()  # an address, and whether an interval starts there
    for content in sets.list_encoded(socket, nft_set):
        fields = {kind: data for kind, _, data in attributes(content)}
        key = {kind: data for kind, _, data in attributes(fields.get(_ELEM_KEY, b""))}.get(DATA_VALUE, b"")
        if len(key) == size:
            ends.add((int.from_bytes(key, "big"), fields.get(_ELEM_FLAGS) != _ENDS))
    existing = set()
    first = None
    for address, starts in sorted(ends):  # at one address the end of an interval precedes the start of the next
        if first is not None:
            existing.add(Interval(first, address))
        first = address if starts else None
    if first is not None:
        existing.add(Interval(first, 1 << size * 8))
    return existing


def _encode(nft_set: Set, intervals: Iterable[Interval]) -> list[bytes]:
    """Returns the encoded elements of each interval."""
    size = nft_set.key[0].size
    limit = 1 << size * 8
    flag = attribute(_ELEM_FLAGS, _ENDS)
    encoded = []
    for first, end in intervals:
        elements = nested(LIST_ELEM, value(_ELEM_KEY, first.to_bytes(size, "big")))
        if end < limit:
            elements += nested(LIST_ELEM, flag, value(_ELEM_KEY, end.to_bytes(size, "big")))
        encoded.append(elements)
    return encoded


def _text(nft_set: Set, intervals: Iterable[Interval]) -> str:
    """Returns intervals as `nft list` shows ranges: "{ 10.1.2.0-10.1.2.255, ... }"."""
    size = nft_set.key[0].size
    addresses = ([ip_address(item.to_bytes(size, "big")) for item in (first, end - 1)] for first, end in intervals)
    return "{ " + ", ".join(f"{first}-{last}" for first, last in addresses) + " }"
