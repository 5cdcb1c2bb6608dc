"""Puts the dump of Python's memory into a copy of the seed, which thereby becomes the program.

One rule: of the writable segment only the dumped parts are replaced; libc's keeps the bytes the linker gave it, and
so starts afresh.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path

# elf.h: Elf64_Phdr, and where Elf64_Ehdr keeps the tables' places and sizes.
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PHOFF, _SHOFF, _PHENTSIZE, _SHENTSIZE = 32, 40, 54, 58
_PT_LOAD, _PF_W = 1, 2
_DUMP_HEADER = struct.Struct("<QQ")
_PAGE = 4096


@dataclass(frozen=True)
class _Segment:
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    alignment: int


def write_image(seed: Path, dump: Path, out: Path) -> None:
    """Writes the executable made of the static ELF `seed` and the memory in `dump`."""
    elf = bytearray(seed.read_bytes())
    header, segment = _writable_segment(elf)
    data = _filled(segment, bytes(elf[segment.offset : segment.offset + segment.file_size]), dump.read_bytes())
    # The larger segment goes to the end; file offset and address must agree within a page.
    elf += bytes((segment.address - len(elf)) % max(segment.alignment, _PAGE))
    moved = replace(segment, offset=len(elf), file_size=len(data))
    _PROGRAM_HEADER.pack_into(elf, header, *vars(moved).values())
    # The section headers described the old file; nothing but a linker needs them.
    struct.pack_into("<Q", elf, _SHOFF, 0)
    struct.pack_into("<HHH", elf, _SHENTSIZE, 0, 0, 0)
    out.write_bytes(elf + data)
    out.chmod(0o755)


def _writable_segment(elf: bytearray) -> tuple[int, _Segment]:
    """Returns where the header of the one writable segment is, and what it says."""
    (table,) = struct.unpack_from("<Q", elf, _PHOFF)
    size, count = struct.unpack_from("<HH", elf, _PHENTSIZE)
    found = []
    for position in range(table, table + size * count, size):
        segment = _Segment(*_PROGRAM_HEADER.unpack_from(elf, position))
        if segment.kind == _PT_LOAD and segment.flags & _PF_W:
            found.append((position, segment))
    if len(found) != 1:
        raise ValueError(f"the seed has {len(found)} writable segments, not one")
    return found[0]


def _filled(segment: _Segment, initial: bytes, dump: bytes) -> bytes:
    """Returns the segment's bytes with every part of the dump in its place, without the zeros at its end."""
    memory = bytearray(segment.memory_size)
    memory[: len(initial)] = initial
    position = 0
    while position < len(dump):
        address, size = _DUMP_HEADER.unpack_from(dump, position)
        position += _DUMP_HEADER.size
        start = address - segment.address
        if not 0 <= start <= start + size <= segment.memory_size:
            raise ValueError(f"dumped memory at {address:#x} lies outside the writable segment")
        memory[start : start + size] = dump[position : position + size]
        position += size
    return bytes(memory).rstrip(b"\0")
