"""Reads files that other programs write, and that may be of any kind and size.

Reading always ends. It does not wait for a FIFO's writer, and reads a device only up to the limit.
"""

from __future__ import annotations

import os


def read(path: str, max_bytes: int) -> bytes:
    """Returns a file's content (a FIFO's pending data); raises OSError, ValueError for a longer file or a bad path."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        data = b""
        while len(data) <= max_bytes and (chunk := file.read(max_bytes + 1 - len(data))):
            data += chunk
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes >> 10} KiB")
    return data
