"""Gives debuggers the unwinding tables of Python's functions, which are not in the executable.

One rule: only the twin with symbols has them, in a section that is not loaded, so the executable does not grow.

libpython.py renames the sections .eh_frame to SECTION, and the linker puts their addresses in. There cannot be two
sections .eh_frame, and libc's is in the executable; so the tables become a section .debug_frame (DWARF 3, 6.4.1).
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SECTION = "pyunwind"
_WORDS, _FUNCTION = struct.Struct("<II"), struct.Struct("<ii")
_CIE, _FDE = struct.Struct("<IIBB"), struct.Struct("<IIQQ")
_NO_CIE_POINTER = 0xFFFFFFFF  # marks a common part (CIE) in .debug_frame; in .eh_frame 0 does
_ADDRESS_BYTES = 8
# The only augmentation of C: the encoding of addresses, 4 bytes relative to themselves (DW_EH_PE_pcrel | sdata4).
_AUGMENTATION, _ENCODING = b"zR\0", b"\x01\x1b"


def write_twin(tools: str, linked: Path, twin: Path) -> None:
    """Writes a copy of the linked program with a section .debug_frame, with the objcopy of this prefix."""
    tables = twin.with_suffix(".frames")
    loaded = ("-O", "binary", f"--only-section={SECTION}", f"--set-section-flags={SECTION}=alloc,load,contents")
    subprocess.run([f"{tools}objcopy", *loaded, linked, tables], check=True)
    tables.write_bytes(debug_frame(tables.read_bytes()))
    replaced = (f"--remove-section={SECTION}", f"--add-section=.debug_frame={tables}")
    subprocess.run([f"{tools}objcopy", *replaced, linked, twin], check=True)
    tables.unlink()


class _Record(NamedTuple):
    start: int
    pointer: int  # 0: a common part (CIE); otherwise the distance back from this field to the function's CIE
    body: int
    end: int


def debug_frame(tables: bytes) -> bytes:
    """Returns the content of .debug_frame for the content of linked .eh_frame sections; raises ValueError."""
    out = bytearray()
    common: dict[int, int] = {}  # the offset of each CIE in `tables`, and in `out`
    for record in _records(tables):
        if record.pointer:
            out += _function(tables, record, common[record.body - 4 - record.pointer])
        else:
            common[record.start] = len(out)
            out += _common_part(tables, record)
    return bytes(out)


def _records(tables: bytes) -> Iterator[_Record]:
    start = 0
    while start + _WORDS.size <= len(tables):
        size, pointer = _WORDS.unpack_from(tables, start)
        end = start + 4 + size
        if size:  # else padding between two objects
            yield _Record(start, pointer, start + 8, end)
        start = end


def _common_part(tables: bytes, record: _Record) -> bytes:
    content = tables[record.body : record.end]
    version, augmentation, rest = content[0], content[1:4], content[4:]
    numbers, encoding, instructions = rest[:3], rest[3:5], rest[5:]  # alignments and return address, a byte each
    if (version, augmentation, encoding) != (1, _AUGMENTATION, _ENCODING) or max(numbers) > 0x7F:
        raise ValueError(f"unknown unwinding table: {content[:16]!r}")
    return _padded(_CIE.pack(0, _NO_CIE_POINTER, version, 0) + numbers + instructions)


def _function(tables: bytes, record: _Record, common: int) -> bytes:
    offset, size = _FUNCTION.unpack_from(tables, record.body)
    augmentation = record.body + _FUNCTION.size
    if tables[augmentation]:
        raise ValueError("an unwinding table has additional data")
    return _padded(_FDE.pack(0, common, record.body + offset, size) + tables[augmentation + 1 : record.end])


def _padded(record: bytes) -> bytes:
    """Returns the record with its size in the first word; DW_CFA_nop (0) fills it."""
    record += bytes(-(len(record) - 4) % _ADDRESS_BYTES)
    return _WORDS.pack(len(record) - 4, 0)[:4] + record[4:]
