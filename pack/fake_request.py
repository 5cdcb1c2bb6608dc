"""A netlink request that the warm-up's fake kernel receives, with the messages that may answer it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from kernel.rtnl import NLM_F_ACK, NLM_F_DUMP
from kernel.wire import Attributes, encode

HEADER_BYTES = 16  # struct nlmsghdr
_NLM_F_MULTI, _NLMSG_ERROR, _NLMSG_DONE = 2, 2, 3  # linux/netlink.h
_HEADER, _LENGTH, _INT = struct.Struct("=IHHII"), struct.Struct("=I"), struct.Struct("=i")


class NetlinkRequest:
    """A request: its message type `kind`, its NLM_F_* `flags`, and its `content` after the header."""

    def __init__(self, data: bytes) -> None:
        _, self.kind, self.flags, self._sequence, _ = _HEADER.unpack_from(data)
        self.content = data[_HEADER.size :]
        self.is_dump = self.flags & NLM_F_DUMP == NLM_F_DUMP
        self._multi = _NLM_F_MULTI if self.is_dump else 0

    def answer(self, kind: int, content: bytes) -> bytes:
        """Returns an answer of the type `kind`."""
        return _HEADER.pack(_HEADER.size + len(content), kind, self._multi, self._sequence, 0) + content

    def encode(self, message: type, kind: int, values: Mapping[str, int], attributes: Attributes) -> bytes:
        """Returns an answer of the class `message` and the type `kind`."""
        return encode(message, (kind, self._multi, self._sequence), values, attributes)

    def refusal(self, number: int) -> bytes:
        """Returns the answer that the request failed with an errno."""
        return self.answer(_NLMSG_ERROR, _INT.pack(-number))

    def end(self) -> bytes:
        """Returns what ends the answers: the end of a dump, the acknowledgement, or b""."""
        if not (self.is_dump or self.flags & NLM_F_ACK):
            return b""
        return self.answer(_NLMSG_DONE if self.is_dump else _NLMSG_ERROR, bytes(4))


def split(data: bytes) -> Iterator[NetlinkRequest]:
    """Yields the requests of a batch."""
    offset = 0
    while offset < len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        yield NetlinkRequest(data[offset : offset + length])
        offset += (length + 3) & ~3
