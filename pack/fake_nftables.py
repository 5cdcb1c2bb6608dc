"""nftables in the warm-up's fake kernel: chains, rules, sets and elements.

One rule: there is one pod, so deleting its elements deletes all elements of the set.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Iterator

import kernel.netfilter.iptables
from kernel.codec_netfilter import GenerationMessage
from kernel.netfilter import nft
from pack.fake_request import HEADER_BYTES, NetlinkRequest

# linux/netfilter/nf_tables.h
_NEWCHAIN, _GETCHAIN, _DELCHAIN, _NEWRULE, _GETRULE, _DELRULE = 0xA03, 0xA04, 0xA05, 0xA06, 0xA07, 0xA08
_NEWSET, _GETSET, _NEWSETELEM, _GETSETELEM, _DELSETELEM = 0xA09, 0xA0A, 0xA0C, 0xA0D, 0xA0E
_NEWGEN, _GETGEN = 0xA0F, 0xA10
_HANDLE = struct.Struct(">4sQ")  # NFTA_RULE_HANDLE, which the kernel assigns
_HANDLE_START = b"\x0c\0\x03\0"
_NAME_START = struct.Struct("=HH")  # of a chain's name in its rules and in jumps to it: both have type 2
_ELEMENTS_START = b"\x03\x80"  # NFTA_SET_ELEM_LIST_ELEMENTS, nested, after its length
_USE = struct.Struct("=HH4s")  # NFTA_CHAIN_USE, of type 6


class Ruleset:
    """The nftables objects that verbs have created, and the built-in chains of iptables-nft."""

    def __init__(self) -> None:
        self._objects: dict[int, tuple[int, bytes]] = {}  # by handle: the type and content of their messages
        self._handles = itertools.count(1)
        for family in nft.NFPROTO.values():
            for (table, name), hook in kernel.netfilter.iptables.BUILT_IN_CHAINS.items():
                chain = nft.Chain(nft.Table(family, table), name, hook)
                self._store(_NEWCHAIN, nft.chain_request(chain).encode(0)[HEADER_BYTES:])

    def answers(self, request: NetlinkRequest) -> Iterator[bytes]:
        """Executes a request, and yields its answers but the acknowledgement; ignores those of other subsystems."""
        kind, content = request.kind, request.content
        if kind in (_NEWCHAIN, _NEWRULE, _NEWSET, _NEWSETELEM):
            self._store(kind, content)
        elif kind == _GETGEN:
            yield request.encode(GenerationMessage, _NEWGEN, {}, [("NFTA_GEN_ID", 1)])
        elif kind == _DELSETELEM:  # there is one pod: delete all elements
            self._delete(_set_of(content))
        elif kind == _GETSETELEM and not request.is_dump:  # a look-up of one element: the set has it, or is empty
            elements = self._stored(_NEWSETELEM, _set_of(content))
            yield request.answer(_NEWSETELEM, elements[0][1]) if elements else request.refusal(errno.ENOENT)
        elif kind == _GETSETELEM:
            yield from (request.answer(_NEWSETELEM, stored) for _, stored in self._stored(_NEWSETELEM, content))
        elif kind == _GETSET:
            yield self._first(request, _NEWSET)
        elif kind in (_DELCHAIN, _DELRULE):
            start, handle = _HANDLE.unpack(content[-_HANDLE.size :]) if len(content) > _HANDLE.size else (b"", 0)
            if start == _HANDLE_START:
                self._objects.pop(handle, None)
            else:
                self._delete(content)
        elif kind == _GETRULE:
            for handle, stored in self._stored(_NEWRULE, content):
                yield request.answer(_NEWRULE, stored + _HANDLE.pack(_HANDLE_START, handle))
        elif kind == _GETCHAIN:
            yield self._first(request, _NEWCHAIN)

    def _stored(self, kind: int, start: bytes) -> list[tuple[int, bytes]]:
        """Returns the handles and contents of the messages of a kind that begin with `start`."""
        objects = self._objects.items()
        return [(handle, stored) for handle, (of, stored) in objects if of == kind and stored.startswith(start)]

    def _first(self, request: NetlinkRequest, kind: int) -> bytes:
        """Returns the answer with the first object of a kind that a request names, or ENOENT."""
        stored = self._stored(kind, request.content)
        if not stored:
            return request.refusal(errno.ENOENT)
        return request.answer(kind, stored[0][1] + (self._uses(request.content) if kind == _NEWCHAIN else b""))

    def _store(self, kind: int, content: bytes) -> None:
        if kind == _NEWRULE or not any(stored.startswith(content) for _, stored in self._objects.values()):
            self._objects[next(self._handles)] = kind, content

    def _delete(self, start: bytes) -> None:
        self._objects = {handle: each for handle, each in self._objects.items() if not each[1].startswith(start)}

    def _uses(self, chain: bytes) -> bytes:
        """Returns the attribute with the number of a chain's rules plus the jumps to it, as the kernel counts them."""
        name = chain.rstrip(b"\0").rpartition(b"\0")[2] + b"\0"
        mark = _NAME_START.pack(_NAME_START.size + len(name), 2) + name
        rules = [rule for kind, rule in self._objects.values() if kind == _NEWRULE and rule[0] == chain[0]]
        return _USE.pack(_USE.size, 6, sum(mark in rule for rule in rules).to_bytes(4, "big"))


def _set_of(content: bytes) -> bytes:
    """Returns the start of a message about elements, which names their set."""
    return content[: content.rindex(_ELEMENTS_START) - 2]  # before the attribute's length
