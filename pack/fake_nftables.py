"""nftables in the warm-up's fake kernel: chains, rules, sets and elements.

One rule: there is one pod, so deleting its elements deletes all elements of the set.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Iterator

import kernel.netfilter.iptables
import kernel.netfilter.nft
from kernel.codec_netfilter import GenerationMessage
from kernel.wire import encode

_NLMSG_ERROR = 2  # linux/netlink.h
# linux/netfilter/nf_tables.h
_NEWCHAIN, _GETCHAIN, _DELCHAIN, _NEWRULE, _GETRULE, _DELRULE = 0xA03, 0xA04, 0xA05, 0xA06, 0xA07, 0xA08
_NEWSET, _GETSET, _NEWSETELEM, _GETSETELEM, _DELSETELEM = 0xA09, 0xA0A, 0xA0C, 0xA0D, 0xA0E
_NEWGEN, _GETGEN = 0xA0F, 0xA10
_HEADER, _INT = struct.Struct("=IHHII"), struct.Struct("=i")
_HANDLE = struct.Struct(">4sQ")  # NFTA_RULE_HANDLE, which the kernel assigns
_HANDLE_START = b"\x0c\0\x03\0"
_NAME_START = struct.Struct("=HH")  # of a chain's name in its rules and in jumps to it: both have type 2
_ELEMENTS_START = b"\x03\x80"  # NFTA_SET_ELEM_LIST_ELEMENTS, nested, after its length
_USE = struct.Struct("=HH4s")  # NFTA_CHAIN_USE, of type 6

# The nftables objects that a scenario created, by handle: type and content of their messages.
_netfilter: dict[int, tuple[int, bytes]] = {}
_handles = itertools.count(1)


def is_request(kind: int) -> bool:
    """Returns whether a message type is one of nftables."""
    return kind >> 8 == _NEWCHAIN >> 8


def answers(kind: int, header: tuple[int, int, int], content: bytes) -> Iterator[bytes]:
    """Yields the answers to a request but its acknowledgement, and stores, lists and deletes objects."""
    if kind in (_NEWCHAIN, _NEWRULE, _NEWSET, _NEWSETELEM):
        _store(kind, content)
    elif kind == _GETGEN:
        yield encode(GenerationMessage, (_NEWGEN, 0, header[1]), {}, [("NFTA_GEN_ID", 1)])
    elif kind == _DELSETELEM:  # there is one pod: delete all elements
        named = content[: content.rindex(_ELEMENTS_START)]
        for number in [number for number, message in _netfilter.items() if message[1].startswith(named)]:
            _netfilter.pop(number)
    elif kind == _GETSETELEM:
        for stored_kind, stored in _netfilter.values():
            if stored_kind == _NEWSETELEM and stored.startswith(content):
                yield _HEADER.pack(_HEADER.size + len(stored), stored_kind, *header) + stored
    elif kind == _GETSET:
        existing = _first_stored(_NEWSET, content)
        answer = existing or _INT.pack(-errno.ENOENT)
        yield _HEADER.pack(_HEADER.size + len(answer), _NEWSET if existing else _NLMSG_ERROR, *header) + answer
    elif kind in (_DELCHAIN, _DELRULE):
        start, handle = _HANDLE.unpack(content[-_HANDLE.size :]) if len(content) > _HANDLE.size else (b"", 0)
        one = [handle] if start == _HANDLE_START else None
        for number in one or [number for number, message in _netfilter.items() if message[1].startswith(content)]:
            _netfilter.pop(number, None)
    elif kind == _GETRULE:
        for number, (stored_kind, stored) in _netfilter.items():
            if stored_kind == _NEWRULE and stored.startswith(content):
                answer = stored + _HANDLE.pack(_HANDLE_START, number)
                yield _HEADER.pack(_HEADER.size + len(answer), stored_kind, *header) + answer
    elif kind == _GETCHAIN:
        existing = _first_stored(_NEWCHAIN, content)
        answer = existing + _uses(content) if existing else _INT.pack(-errno.ENOENT)
        yield _HEADER.pack(_HEADER.size + len(answer), _NEWCHAIN if existing else _NLMSG_ERROR, *header) + answer


def create_built_in_chains() -> None:
    """Creates iptables-nft's built-in chains, which a host has before its first pod."""
    for family in kernel.netfilter.nft.NFPROTO.values():
        for (table, name), hook in kernel.netfilter.iptables._BUILT_IN.items():
            chain = kernel.netfilter.nft.Chain(kernel.netfilter.nft.Table(family, table), name, hook)
            _store(_NEWCHAIN, kernel.netfilter.nft.chain_request(chain).encode(0)[_HEADER.size :])


def clear() -> None:
    """Deletes all objects."""
    _netfilter.clear()


def _first_stored(kind: int, start: bytes) -> bytes:
    """Returns the first stored message of a kind that begins with `start`, b"" for none."""
    return next(
        (stored for stored_kind, stored in _netfilter.values() if stored_kind == kind and stored.startswith(start)), b""
    )


def _store(kind: int, content: bytes) -> None:
    if kind == _NEWRULE or not any(stored.startswith(content) for _, stored in _netfilter.values()):
        _netfilter[next(_handles)] = kind, content


def _uses(chain: bytes) -> bytes:
    """Returns the attribute with the number of a chain's rules plus the jumps to it, as the kernel counts them."""
    name = chain.rstrip(b"\0").rpartition(b"\0")[2] + b"\0"
    mark = _NAME_START.pack(_NAME_START.size + len(name), 2) + name
    rules = [rule for kind, rule in _netfilter.values() if kind == _NEWRULE and rule[0] == chain[0]]
    return _USE.pack(_USE.size, 6, sum(mark in rule for rule in rules).to_bytes(4, "big"))
