"""Reading files of others, which need not be what they should be.

One rule: reading ends. A FIFO is not waited for, and of a device or a file without end no more is read than asked for.
"""

from __future__ import annotations

import os


def read(path: str, most_bytes: int) -> bytes:
    """Returns what a file holds, of a FIFO what is in it; raises OSError, ValueError for a longer one or no path."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        data = b""
        while len(data) <= most_bytes and (more := file.read(most_bytes + 1 - len(data))):
            data += more
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes >> 10} KiB")
    return data
