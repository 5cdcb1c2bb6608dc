"""Writes the executable: a copy of the image builder with the dump of Python's memory.

One rule: only the dumped parts of the writable segment are replaced. libc's part keeps the linker's bytes, so libc is
initialised in each process.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path

# elf.h: Elf64_Phdr, and the offsets of e_phoff, e_shoff, e_phentsize, e_shentsize in Elf64_Ehdr.
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PHOFF, _SHOFF, _PHENTSIZE, _SHENTSIZE = 32, 40, 54, 58
_PT_LOAD, _PF_W = 1, 2
_DUMP_HEADER = struct.Struct("<QQ")


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


def write_image(builder: Path, dump: Path, out: Path) -> None:
    """Writes the executable: the static ELF file `builder` with the memory in `dump`."""
    elf = bytearray(builder.read_bytes())
    header, segment = _writable_segment(elf)
    data = _filled(segment, bytes(elf[segment.offset : segment.offset + segment.file_size]), dump.read_bytes())
    _PROGRAM_HEADER.pack_into(elf, header, *vars(replace(segment, file_size=len(data))).values())
    # The section headers, after the segment, described the old file; only a linker needs them.
    struct.pack_into("<Q", elf, _SHOFF, 0)
    struct.pack_into("<HHH", elf, _SHENTSIZE, 0, 0, 0)
    out.write_bytes(elf[: segment.offset] + data)
    out.chmod(0o755)


def _writable_segment(elf: bytearray) -> tuple[int, _Segment]:
    """Returns the offset of the writable segment's header, and the segment, which must be the last one."""
    (table,) = struct.unpack_from("<Q", elf, _PHOFF)
    size, count = struct.unpack_from("<HH", elf, _PHENTSIZE)
    headers = [(at, _Segment(*_PROGRAM_HEADER.unpack_from(elf, at))) for at in range(table, table + size * count, size)]
    loaded = [(at, segment) for at, segment in headers if segment.kind == _PT_LOAD]
    if [bool(segment.flags & _PF_W) for _, segment in loaded] != [False] * (len(loaded) - 1) + [True]:
        raise ValueError("the image builder must have one writable segment, the last one")
    return loaded[-1]


def _filled(segment: _Segment, initial: bytes, dump: bytes) -> bytes:
    """Returns the segment's bytes with the parts of the dump, up to the end of the last part."""
    memory = bytearray(segment.memory_size)
    memory[: len(initial)] = initial
    position = 0
    while position < len(dump):
        address, size = _DUMP_HEADER.unpack_from(dump, position)
        position += _DUMP_HEADER.size
        start = address - segment.address
        if not 0 <= start <= start + size <= segment.memory_size:
            raise ValueError(f"dumped memory at {address:#x} is outside the writable segment")
        memory[start : start + size] = dump[position : position + size]
        position += size
    return bytes(memory[: start + size])
