"""Random numbers from the kernel: in each process, a generator's state would be that of the start-up image."""

from __future__ import annotations

import os


def random_fraction() -> float:
    """Returns a random number from 0 to 1."""
    return int.from_bytes(os.urandom(4), "big") / 0xFFFFFFFF


def random_integer(size: int) -> int:
    """Returns a random number of `size` bytes."""
    return int.from_bytes(os.urandom(size), "big")
