"""Domain names as DHCP and router advertisements carry them (RFC 1035, sections 3.1 and 4.1.4): bytes <-> text.

One rule: only names of letters, digits, "-" and "_" leave this module, since they are written to resolv.conf.
"""

from __future__ import annotations

import re

from ipam.dhcp.packet import Malformed

_NAMES_MAX = 64
_NAME_STEPS_MAX = 255  # labels and pointers of a name of at most 255 bytes
_NAME_MAX_CHARACTERS = 253
_LABEL_MAX_BYTES, _POINTER = 63, 0xC0  # RFC 1035, section 4.1.4
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


def is_valid(name: str) -> bool:
    """Returns whether a name consists of labels of letters, digits, "-" and "_"."""
    return len(name) <= _NAME_MAX_CHARACTERS and all(map(_LABEL.fullmatch, name.split(".")))


def decode_list(data: bytes) -> tuple[str, ...]:
    """Returns the names in an option, at most 64; none if one of them is malformed or no valid name."""
    names: list[str] = []
    position = 0
    try:
        while position < len(data) and len(names) < _NAMES_MAX:
            name, position = _read(data, position)
            names.append(name)
    except Malformed:
        return ()
    return tuple(names)


def encode_list(names: tuple[str, ...]) -> bytes:
    """Returns valid names as bytes, uncompressed."""
    labels = (bytes((len(label),)) + label.encode("ascii") for name in names for label in (*name.split("."), ""))
    return b"".join(labels)


def _read(data: bytes, start: int) -> tuple[str, int]:
    """Returns the name at `start` and the position after it; raises Malformed.

    A pointer must point before all bytes of the name read so far, so a name cannot contain itself.
    """
    labels: list[str] = []
    position, first, after = start, start, 0
    for _ in range(_NAME_STEPS_MAX):
        length = int.from_bytes(data[position : position + 1], "big")
        following = position + 1 + length
        if length >= _POINTER:
            following = position + 2
        if position >= len(data) or following > len(data):
            raise Malformed("a domain name is truncated")
        if length >= _POINTER:
            after = after or following
            position = int.from_bytes(data[position:following], "big") & 0x3FFF
            if position >= first:
                raise Malformed("a domain name's pointer does not point backwards")
            first = position
        elif length > _LABEL_MAX_BYTES:
            raise Malformed("a domain name's label has an unknown type")
        elif length:
            labels.append(data[position + 1 : following].decode("latin-1"))
            position = following
        else:
            name = ".".join(labels)
            if not all(map(_LABEL.fullmatch, labels)) or not is_valid(name):
                raise Malformed("a domain name has invalid characters or a wrong length")
            return name, after or following
    raise Malformed("a domain name is too long")
