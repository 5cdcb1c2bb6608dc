"""Runs a campaign of hostile packets, and checks that reading them does not let the memory grow."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable

NIGHTLY, SAMPLE = 1_000_000, 10_000  # packets
_WARM_UP = 2_000
_GROWTH_MAX_BYTES = 32 << 10


def run(read: Callable[[int], str], *, nightly: bool) -> Counter[str]:
    """Calls `read` with the number of each packet; returns how often it returned each outcome.

    Each night has other packets. A failed assertion means that memory has grown.
    """
    first = int(time.strftime("%Y%m%d")) * 10_000_000 if nightly else 0
    _count(read, first, _WARM_UP)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        outcomes = _count(read, first + _WARM_UP, SAMPLE)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if nightly:
        outcomes += _count(read, first + _WARM_UP + SAMPLE, NIGHTLY - SAMPLE)  # untraced, which is much faster
    print(f"packets from {first}: {dict(outcomes)}, grown by {after - before} bytes")
    assert after - before < _GROWTH_MAX_BYTES
    return outcomes


def _count(read: Callable[[int], str], first: int, count: int) -> Counter[str]:
    return Counter(map(read, range(first, first + count)))
