"""Sets of nftables and their elements over netlink.

One rule: *_request functions build a Request and do no I/O. An element is the bytes of its key and of its userdata;
`nft list` prints both as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from ipaddress import ip_address
from os import fsencode
from typing import NamedTuple

from kernel.codec_netfilter import SetElementsMessage, SetMessage
from kernel.netfilter import nft_rule
from kernel.netfilter.nft import ABSENT_ERRNOS, NftSocket, Table
from kernel.netfilter.nft_expression import DATA_VALUE, LIST_ELEM, attribute, attributes, nested, value
from kernel.rtnl import NLM_F_CREATE, NLM_F_DUMP, Request
from kernel.wire import Attributes
from process.values import dataclass

# linux/netfilter/nf_tables.h: NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_*
_NEWSET, _GETSET, _NEWSETELEM, _GETSETELEM, _DELSETELEM = 0xA09, 0xA0A, 0xA0C, 0xA0D, 0xA0E
_ELEM_KEY, _ELEM_USERDATA = 1, 6  # NFTA_SET_ELEM_*
_TYPE_BITS = 6  # of each part of a key in the number of their concatenation (nft's TYPE_BITS)
_UDATA_KEY_BYTE_ORDER, _UDATA_COMMENT = 0, 7  # NFTNL_UDATA_SET_*
_HOST, _NETWORK, _NONE = 1, 2, 0  # nft's enum byteorder
_IFNAMSIZ = 16
_ID = 1  # demanded for a new set, and only of use where it has no name
_AT_ONCE = 200  # elements in one message, of the largest, as all of it is one attribute: no more than 64 KiB


class Part(NamedTuple):
    """What a key is made of: nft's number of the type, bytes and their order (a multiple of 4)."""

    number: int
    size: int
    order: int


IPV4_ADDRESS, IPV6_ADDRESS = Part(7, 4, _NETWORK), Part(8, 16, _NETWORK)
INTERFACE_NAME = Part(41, _IFNAMSIZ, _HOST)
ADDRESS = {4: IPV4_ADDRESS, 6: IPV6_ADDRESS}  # by IP version


@dataclass(frozen=True)
class Set:
    """A set of a table: single values of the parts of its `key`, concatenated; the comment is set on creation."""

    table: Table
    name: str
    key: tuple[Part, ...]
    comment: str = ""

    def __str__(self) -> str:
        return f"{self.table.name} {self.name}"


class Element(NamedTuple):
    """An element: its key, and userdata as kernel.netfilter.nft_rule builds and parses it."""

    key: bytes
    userdata: bytes = b""


def byte_filter(parts: Iterable[bytes]) -> Callable[[bytes], bool]:
    """Returns what tells by an element's bytes whether one of `parts` stands in it, for `elements`."""
    known = tuple(parts)
    return lambda data: any(part in data for part in known)


def interface_key(*names: str) -> bytes:
    """Returns interface names as a key, or as a part of one."""
    return b"".join(fsencode(name)[: _IFNAMSIZ - 1].ljust(_IFNAMSIZ, b"\0") for name in names)


def set_request(own: Set) -> Request:
    """Builds the request that creates a set; an existing one is left unchanged (EEXIST: its key differs)."""
    number, size = _type(own)
    order = own.key[0].order if len(own.key) == 1 else _NONE
    userdata = bytes((_UDATA_KEY_BYTE_ORDER, 4)) + order.to_bytes(4, "little")
    if own.comment:
        text = fsencode(own.comment)[: nft_rule.COMMENT_MAX] + b"\0"
        userdata += bytes((_UDATA_COMMENT, len(text))) + text
    attributes: Attributes = [
        ("NFTA_SET_TABLE", own.table.name),
        ("NFTA_SET_NAME", own.name),
        ("NFTA_SET_FLAGS", 0),
        ("NFTA_SET_KEY_TYPE", number),
        ("NFTA_SET_KEY_LEN", size),
        ("NFTA_SET_ID", _ID),
        ("NFTA_SET_USERDATA", userdata),
    ]
    return _request(f"add set {own}", SetMessage, _NEWSET, own, attributes, NLM_F_CREATE)


def add_element_requests(own: Set, elements: Iterable[Element]) -> list[Request]:
    """Builds the requests that add elements; existing keys are left unchanged."""
    written, keys = [], []
    for item in elements:
        keys.append(item.key)
        userdata = attribute(_ELEM_USERDATA, item.userdata) if item.userdata else b""
        written.append(nested(LIST_ELEM, value(_ELEM_KEY, item.key), userdata))
    return _of_many(f"add to set {own}", _NEWSETELEM, own, written, keys, NLM_F_CREATE)


def delete_element_requests(own: Set, keys: Iterable[bytes]) -> list[Request]:
    """Builds the requests that delete elements; refused if one is absent (ENOENT)."""
    gone = list(keys)
    written = [nested(LIST_ELEM, value(_ELEM_KEY, key)) for key in gone]
    return _of_many(f"delete from set {own}", _DELSETELEM, own, written, gone)


def get_key_matches(socket: NftSocket, *sets: Set) -> list[bool | None]:
    """Returns whether each existing set has the desired key type, None for an absent set; raises KernelError."""
    requests = []
    for own in sets:
        named: Attributes = [("NFTA_SET_TABLE", own.table.name), ("NFTA_SET_NAME", own.name)]
        asked = _request(f"look up set {own}", SetMessage, _GETSET, own, named)
        requests.append(asked._replace(ignore=ABSENT_ERRNOS, silent=False))
    return [
        message and (message.get_attr("NFTA_SET_KEY_TYPE"), message.get_attr("NFTA_SET_KEY_LEN")) == _type(own)
        for own, message in zip(sets, socket.get(*requests), strict=True)
    ]


def list_elements(socket: NftSocket, own: Set, wanted: Callable[[bytes], object] | None = None) -> list[Element]:
    """Lists the elements of a set, unordered; none if the set is absent or its keys have another size.

    `wanted` is a filter on an element's bytes; the others are not decoded. Raises KernelError.
    """
    asked = _request(f"list set {own}", SetElementsMessage, _GETSETELEM, own, _named(own), NLM_F_DUMP)._replace(
        ignore=ABSENT_ERRNOS,
        silent=False,
        body_filter=wanted,
    )
    _, size = _type(own)
    found: dict[bytes, Element] = {}
    for message in socket.dump(asked, merge_key=id):
        for _, _, content in attributes(message.get_attr("NFTA_SET_ELEM_LIST_ELEMENTS") or b""):
            if wanted is None or wanted(content):
                element = _read(content)
                if len(element.key) == size:
                    found[element.key] = element
    return list(found.values())


def _type(own: Set) -> tuple[int, int]:
    """Returns number and length of a set's key."""
    number = 0
    for part in own.key:
        number = number << _TYPE_BITS | part.number
    return number, sum(part.size for part in own.key)


def _named(own: Set) -> Attributes:
    return [("NFTA_SET_ELEM_LIST_TABLE", own.table.name), ("NFTA_SET_ELEM_LIST_SET", own.name)]


def _request(doing: str, kind: type[object], number: int, own: Set, attributes: Attributes, flags: int = 0) -> Request:
    return Request(doing, kind, number, flags, {"family": own.table.family}, attributes, silent=True)


def _of_many(
    doing: str, number: int, own: Set, written: Sequence[bytes], keys: Sequence[bytes], flags: int = 0
) -> list[Request]:
    """Builds the requests for elements, several if one message has no room for all."""
    requests = []
    for start in range(0, len(written), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        attributes = [*_named(own), ("NFTA_SET_ELEM_LIST_ELEMENTS", b"".join(written[part]))]
        made = _request(doing, SetElementsMessage, number, own, attributes, flags)
        requests.append(made._replace(details=partial(_text, own, keys[part])))
    return requests


def _text(own: Set, keys: Sequence[bytes]) -> str:
    """Returns keys as `nft list` shows them: "{ 10.1.2.3 . eth0, ... }"."""
    return "{ " + ", ".join(" . ".join(_parts(own, key)) for key in keys) + " }"


def _parts(own: Set, key: bytes) -> Iterator[str]:
    for part in own.key:
        text, key = key[: part.size], key[part.size :]
        if part is INTERFACE_NAME:
            yield text.rstrip(b"\0").decode("utf-8", "replace")
        else:
            yield str(ip_address(text))


def _read(element: bytes) -> Element:
    found = {kind: content for kind, _, content in attributes(element)}
    data = {kind: content for kind, _, content in attributes(found.get(_ELEM_KEY, b""))}
    return Element(data.get(DATA_VALUE, b""), found.get(_ELEM_USERDATA, b""))
