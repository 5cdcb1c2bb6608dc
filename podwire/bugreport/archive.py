"""Writes a tar archive (POSIX ustar), compressed by the host's gzip; without that program it is stored uncompressed.

The executable has neither zlib nor the modules tarfile and gzip, which would make it larger. An archive that is
stored is a gzip file, too: every program unpacks it.
"""

from __future__ import annotations

import binascii
import os
import struct
from collections.abc import Mapping
from contextlib import suppress

from cni.errors import CniError, Code
from podwire.node.programs import find_program
from process import child, durable

_BLOCK = 512
_STORED_BYTES = 0xFFFF  # of a block of DEFLATE without compression (RFC 1951, section 3.2.4)


def build_tar(directory: str, files: Mapping[str, bytes], time_s: int) -> bytes:
    """Returns a tar archive of `files` below `directory`."""
    parts = []
    for name, data in files.items():
        parts += [_header(f"{directory}/{name}", len(data), time_s), data, bytes(-len(data) % _BLOCK)]
    return b"".join((*parts, bytes(2 * _BLOCK)))


def write(path: str, tar: bytes, env: Mapping[str, str]) -> None:
    """Writes a compressed archive that only its owner can read, replacing the file; raises CniError(5)."""
    try:
        durable.write(path, _compress(tar, env), 0o600, draft=f"{path}.{os.getpid()}")
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot write {path}: {error.strerror}") from error


def _compress(tar: bytes, env: Mapping[str, str]) -> bytes:
    if program := find_program("gzip", env.get("PATH", "")):
        with suppress(OSError):
            (outcome,) = child.run(child.ChildCommand((program, "-c"), {}, tar))
            if outcome.status == 0:
                return outcome.stdout
    return _store(tar)


def _store(data: bytes) -> bytes:
    """Returns a gzip file (RFC 1952) with `data` uncompressed."""
    parts = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]
    for start in range(0, len(data), _STORED_BYTES):
        block = data[start : start + _STORED_BYTES]
        is_last = start + _STORED_BYTES >= len(data)
        parts += [struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF), block]
    return b"".join((*parts, struct.pack("<II", binascii.crc32(data), len(data) & 0xFFFFFFFF)))


def _header(name: str, size: int, time_s: int) -> bytes:
    """Returns the header of a file: mode 0600, owner root; a name of more than 100 bytes is split after a directory."""
    encoded = name.encode("utf-8", "surrogateescape")
    prefix = b""
    if len(encoded) > 100:
        position = encoded.rindex(b"/", 0, 156)
        prefix, encoded = encoded[:position], encoded[position + 1 :][-100:]
    fields = struct.pack(
        "100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x",
        encoded,
        *(b"%07o\0" % number for number in (0o600, 0, 0)),
        *(b"%011o\0" % number for number in (size, time_s)),
        b" " * 8,
        *(b"0", b"", b"ustar\0", b"00", b"root", b"root", b"", b"", prefix),
    )
    return fields.replace(b" " * 8, b"%06o\0 " % sum(fields), 1)
