"""Sets of nftables and their elements over netlink.

In this module *_request functions build a Request and do no I/O. An element is the bytes of its key and of its
userdata; `nft list` prints both as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from ipaddress import ip_address
from os import fsencode
from typing import NamedTuple

from kernel.codec_netfilter import SetElementsMessage, SetMessage
from kernel.netfilter import nft_rule
from kernel.netfilter.nft import ABSENT_ERRNOS, NftSocket, Table, change, retry
from kernel.netfilter.nft_expression import (
    ATTRIBUTE,
    DATA_VALUE,
    LIST_ELEM,
    attribute,
    attributes,
    nested,
    value,
    verdict_data,
)
from kernel.rtnl import NLM_F_CREATE, NLM_F_DUMP, Request
from kernel.wire import Attributes
from process.values import dataclass

# linux/netfilter/nf_tables.h: NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_*
_NEWSET, _GETSET, _DELSET, _NEWSETELEM, _GETSETELEM, _DELSETELEM = 0xA09, 0xA0A, 0xA0B, 0xA0C, 0xA0D, 0xA0E
_ELEM_KEY, _ELEM_DATA, _ELEM_USERDATA = 1, 2, 6  # NFTA_SET_ELEM_*
# A verdict: NFTA_VERDICT_CODE, then NFTA_VERDICT_CHAIN.
_GOTO = re.compile(
    re.escape(ATTRIBUTE.pack(8, 1) + nft_rule.GOTO.to_bytes(4, "big", signed=True)) + rb"..\x02\0([^\0]*)\0", re.DOTALL
)
_TYPE_BITS = 6  # for each part's type in the type of a concatenation (nft's TYPE_BITS)
_UDATA_KEY_BYTE_ORDER, _UDATA_COMMENT = 0, 7  # NFTNL_UDATA_SET_*
_HOST, _NETWORK, _NONE = 1, 2, 0  # nft's enum byteorder
_INTERVAL, _MAP = 4, 8  # NFT_SET_INTERVAL, NFT_SET_MAP
_VERDICT = 0xFFFFFF00  # NFT_DATA_VERDICT
_IFNAMSIZ = 16
_ID = 1  # required for a new set, but used only for sets without a name
_KEY_AT = 12  # in an encoded element, after the starts of the attributes of element, key, and the key's value
_ELEMENTS_MAX = 200  # in one message: all of them are one attribute, of at most 64 KiB


class Part(NamedTuple):
    """A part of a key: nft's number of its type, size in bytes (in a concatenation a multiple of 4) and byte order."""

    number: int
    size: int
    order: int


IPV4_ADDRESS, IPV6_ADDRESS = Part(7, 4, _NETWORK), Part(8, 16, _NETWORK)
INTERFACE_NAME = Part(41, _IFNAMSIZ, _HOST)
MAC_ADDRESS = Part(9, 8, _NETWORK)  # padded, as a part of a concatenation
ADDRESS = {4: IPV4_ADDRESS, 6: IPV6_ADDRESS}  # by IP version
PORT, PADDED_PORT = Part(13, 2, _NETWORK), Part(13, 4, _NETWORK)  # a whole key, and a part of a concatenation


@dataclass(frozen=True)
class Set:
    """A set of a table; its elements are concatenations of the parts of `key`; the comment is set on creation.

    The elements of an `interval` set, whose key has one part, are in kernel.netfilter.nft_interval. With `verdicts` it
    is a map from keys to verdicts.
    """

    table: Table
    name: str
    key: tuple[Part, ...]
    comment: str = ""
    interval: bool = False
    verdicts: bool = False

    def __str__(self) -> str:
        return f"{self.table.name} {self.name}"


class Element(NamedTuple):
    """An element: its key, and userdata as kernel.netfilter.nft_rule builds and parses it.

    In a map with verdicts `chain` is the chain in which packets continue without returning, "" for another verdict.
    """

    key: bytes
    userdata: bytes = b""
    chain: str = ""


def byte_filter(parts: Iterable[bytes]) -> Callable[[bytes], bool]:
    """Returns a filter that accepts bytes containing one of `parts`, for `list_elements`."""
    known = tuple(parts)
    return lambda data: any(part in data for part in known)


def interface_key(*names: str) -> bytes:
    """Returns interface names as a key, or as a part of one."""
    return b"".join(fsencode(name)[: _IFNAMSIZ - 1].ljust(_IFNAMSIZ, b"\0") for name in names)


def set_request(nft_set: Set) -> Request:
    """Builds the request that creates a set; an existing one is left unchanged (EEXIST: its key differs)."""
    number, size = _type(nft_set)
    order = nft_set.key[0].order if len(nft_set.key) == 1 else _NONE
    userdata = bytes((_UDATA_KEY_BYTE_ORDER, 4)) + order.to_bytes(4, "little")
    if nft_set.comment:
        text = fsencode(nft_set.comment)[: nft_rule.COMMENT_MAX] + b"\0"
        userdata += bytes((_UDATA_COMMENT, len(text))) + text
    attributes: Attributes = [
        ("NFTA_SET_TABLE", nft_set.table.name),
        ("NFTA_SET_NAME", nft_set.name),
        ("NFTA_SET_FLAGS", (_INTERVAL if nft_set.interval else 0) | (_MAP if nft_set.verdicts else 0)),
        ("NFTA_SET_KEY_TYPE", number),
        ("NFTA_SET_KEY_LEN", size),
        *([("NFTA_SET_DATA_TYPE", _VERDICT), ("NFTA_SET_DATA_LEN", 0)] if nft_set.verdicts else ()),
        ("NFTA_SET_ID", _ID),
        ("NFTA_SET_USERDATA", userdata),
    ]
    return _request(f"add set {nft_set}", SetMessage, _NEWSET, nft_set, attributes, NLM_F_CREATE)


def add_element_requests(nft_set: Set, elements: Iterable[Element]) -> list[Request]:
    """Builds the requests that add elements; existing keys are left unchanged (EEXIST: the key has another chain)."""
    items = list(elements)
    encoded = []
    for item in items:
        userdata = attribute(_ELEM_USERDATA, item.userdata) if item.userdata else b""
        verdict = verdict_data(_ELEM_DATA, nft_rule.GOTO, item.chain) if item.chain else b""
        encoded.append(nested(LIST_ELEM, value(_ELEM_KEY, item.key), verdict, userdata))
    return add_encoded_requests(nft_set, encoded, lambda start, end: _text(nft_set, items[start:end]))


def delete_element_requests(nft_set: Set, keys: Iterable[bytes]) -> list[Request]:
    """Builds the requests that delete elements; refused if one is absent (ENOENT)."""
    removed = list(map(Element, keys))
    encoded = [nested(LIST_ELEM, value(_ELEM_KEY, item.key)) for item in removed]
    return delete_encoded_requests(nft_set, encoded, lambda start, end: _text(nft_set, removed[start:end]))


def delete_existing(socket: NftSocket, keys: Sequence[tuple[Set, bytes]]) -> None:
    """Deletes those elements that exist, in one transaction; absent sets are success. Raises KernelError."""

    def attempt() -> None:
        existing = socket.get(*(_look_up(nft_set, key) for nft_set, key in keys))
        present = [pair for pair, message in zip(keys, existing, strict=True) if message is not None]
        change(socket, *(request for nft_set, key in present for request in delete_element_requests(nft_set, [key])))

    retry(attempt)


def _look_up(nft_set: Set, key: bytes) -> Request:
    attributes = [*_named(nft_set), ("NFTA_SET_ELEM_LIST_ELEMENTS", nested(LIST_ELEM, value(_ELEM_KEY, key)))]
    request = _request(f"look up in set {nft_set}", SetElementsMessage, _GETSETELEM, nft_set, attributes)
    return request._replace(ignore=ABSENT_ERRNOS, silent=False)


def add_encoded_requests(nft_set: Set, encoded: Sequence[bytes], describe: Callable[[int, int], str]) -> list[Request]:
    """Builds the requests that add encoded elements; `describe` returns the text of a slice of them."""
    return _element_requests(f"add to set {nft_set}", _NEWSETELEM, nft_set, encoded, describe, NLM_F_CREATE)


def delete_encoded_requests(
    nft_set: Set, encoded: Sequence[bytes], describe: Callable[[int, int], str]
) -> list[Request]:
    """Builds the requests that delete encoded elements, as above; refused if one is absent (ENOENT)."""
    return _element_requests(f"delete from set {nft_set}", _DELSETELEM, nft_set, encoded, describe)


def delete_set_request(nft_set: Set) -> Request:
    """Builds the request that deletes a set; refused if a rule refers to it (EBUSY) or it is absent (ENOENT)."""
    named: Attributes = [("NFTA_SET_TABLE", nft_set.table.name), ("NFTA_SET_NAME", nft_set.name)]
    return _request(f"delete set {nft_set}", SetMessage, _DELSET, nft_set, named)


def get_key_matches(socket: NftSocket, *sets: Set) -> list[bool | None]:
    """Returns whether each existing set has the desired key type, None for an absent set; raises KernelError."""
    requests = []
    for nft_set in sets:
        named: Attributes = [("NFTA_SET_TABLE", nft_set.table.name), ("NFTA_SET_NAME", nft_set.name)]
        request = _request(f"look up set {nft_set}", SetMessage, _GETSET, nft_set, named)
        requests.append(request._replace(ignore=ABSENT_ERRNOS, silent=False))
    return [
        message and (message.get_attr("NFTA_SET_KEY_TYPE"), message.get_attr("NFTA_SET_KEY_LEN")) == _type(nft_set)
        for nft_set, message in zip(sets, socket.get(*requests), strict=True)
    ]


def list_elements(
    socket: NftSocket, nft_set: Set, body_filter: Callable[[bytes], object] | None = None
) -> list[Element]:
    """Lists the elements of a set, unordered; none if the set is absent or its keys have another size.

    `body_filter` is a filter on an element's bytes; the others are not decoded. Raises KernelError.
    """
    _, size = _type(nft_set)
    existing: dict[bytes, Element] = {}
    for content in list_encoded(socket, nft_set, body_filter):
        if body_filter is None or body_filter(content):
            element = _read(content)
            if len(element.key) == size:
                existing[element.key] = element
    return list(existing.values())


def list_keys(socket: NftSocket, nft_set: Set) -> set[bytes]:
    """Lists the keys of a set as `list_elements` does, faster for large sets without userdata; raises KernelError."""
    _, size = _type(nft_set)
    keys: set[bytes] = set()
    for content in _list_contents(socket, nft_set, None):
        items = _split_keys(content, size)
        if items is None:
            items = [key for _, _, element in attributes(content) if len(key := _read(element).key) == size]
        keys.update(items)
    return keys


def _split_keys(content: bytes, size: int) -> list[bytes] | None:
    """Returns the keys of elements that have nothing but a key of `size` bytes, None for other elements.

    Such elements differ in the key only, so what precedes the key splits them. If they have more, or if a key contains
    the same bytes, the parts have other sizes.
    """
    first, *keys = content.split(content[:_KEY_AT])
    return keys if not first and set(map(len, keys)) == {size} else None


def list_encoded(
    socket: NftSocket, nft_set: Set, body_filter: Callable[[bytes], object] | None = None
) -> Iterator[bytes]:
    """Yields the encoded elements of a set, unordered, some perhaps twice; none if it is absent. Raises KernelError.

    `body_filter` is a filter on the bytes of a message, which has many elements.
    """
    for elements in _list_contents(socket, nft_set, body_filter):
        for _, _, content in attributes(elements):
            yield content


def _list_contents(socket: NftSocket, nft_set: Set, body_filter: Callable[[bytes], object] | None) -> Iterator[bytes]:
    """Yields the encoded elements of a set, many at once."""
    request = _request(
        f"list set {nft_set}", SetElementsMessage, _GETSETELEM, nft_set, _named(nft_set), NLM_F_DUMP
    )._replace(
        ignore=ABSENT_ERRNOS,
        silent=False,
        body_filter=body_filter,
    )
    for message in socket.dump(request, merge_key=id):
        if content := message.get_attr("NFTA_SET_ELEM_LIST_ELEMENTS"):
            yield content


def _type(nft_set: Set) -> tuple[int, int]:
    """Returns type and length of a set's key."""
    number = 0
    for part in nft_set.key:
        number = number << _TYPE_BITS | part.number
    return number, sum(part.size for part in nft_set.key)


def _named(nft_set: Set) -> Attributes:
    return [("NFTA_SET_ELEM_LIST_TABLE", nft_set.table.name), ("NFTA_SET_ELEM_LIST_SET", nft_set.name)]


def _request(
    description: str, kind: type[object], number: int, nft_set: Set, attributes: Attributes, flags: int = 0
) -> Request:
    return Request(description, kind, number, flags, {"family": nft_set.table.family}, attributes, silent=True)


def _element_requests(
    description: str,
    number: int,
    nft_set: Set,
    encoded: Sequence[bytes],
    describe: Callable[[int, int], str],
    flags: int = 0,
) -> list[Request]:
    """Builds the requests for elements, as many as their number needs."""
    requests = []
    for start in range(0, len(encoded), _ELEMENTS_MAX):
        end = start + _ELEMENTS_MAX
        attributes = [*_named(nft_set), ("NFTA_SET_ELEM_LIST_ELEMENTS", b"".join(encoded[start:end]))]
        request = _request(description, SetElementsMessage, number, nft_set, attributes, flags)
        requests.append(request._replace(details=partial(describe, start, end)))
    return requests


def _text(nft_set: Set, elements: Iterable[Element]) -> str:
    """Returns elements as `nft list` shows them: "{ 10.1.2.3 . eth0, ... }"."""
    texts = (" . ".join(_parts(nft_set, item.key)) + f" : goto {item.chain}" * bool(item.chain) for item in elements)
    return "{ " + ", ".join(texts) + " }"


def _parts(nft_set: Set, key: bytes) -> Iterator[str]:
    for part in nft_set.key:
        text, key = key[: part.size], key[part.size :]
        if part is INTERFACE_NAME:
            yield text.rstrip(b"\0").decode("utf-8", "replace")
        elif part is MAC_ADDRESS:
            yield text[:6].hex(":")
        elif part in (PORT, PADDED_PORT):
            yield str(int.from_bytes(text[:2], "big"))
        else:
            yield str(ip_address(text))


def _read(element: bytes) -> Element:
    existing = {kind: content for kind, _, content in attributes(element)}
    data = {kind: content for kind, _, content in attributes(existing.get(_ELEM_KEY, b""))}
    goto = _GOTO.search(existing.get(_ELEM_DATA, b""))
    chain = goto[1].decode(errors="replace") if goto else ""
    return Element(data.get(DATA_VALUE, b""), existing.get(_ELEM_USERDATA, b""), chain)
