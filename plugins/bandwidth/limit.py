"""From what is asked for, bits and bits/s, to what the kernel takes.

One rule: the numbers are the reference's wherever it does not overflow, so that each CHECK accepts the other's work.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.traffic import TICK_NS, UINT32_MAX, Bucket

# What runtimes send as burst when all that they know is a rate: kubelet, containerd, CRI-O. As they stand, the first
# hundreds of megabytes would pass at full speed.
INVENTED = frozenset({(1 << 31) - 1, (1 << 32) - 1, 8 * ((1 << 32) - 1) - 1})

_AUTOMATIC_MS = 50  # of the rate, instead of an invented burst
_AUTOMATIC_FRAMES = 10  # and at least these
_LATENCY_US = 25_000  # what may wait in the queue besides a burst (reference)
_ETHERNET_HEADER = 14  # the kernel compares whole frames with the bucket
_TICKS_PER_US = 1000 / TICK_NS
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Limit:
    """A rate in bits/s, at least 8, and a burst in bits."""

    rate: int
    burst: int


@dataclass(frozen=True)
class Shape:
    """The bucket for a limit, and why its burst is not the one that was asked for, "" when it is."""

    bucket: Bucket
    note: str = ""


def shape(limit: Limit, mtu: int, max_burst: int) -> Shape:
    """Returns the bucket for `limit` on an interface of `mtu` bytes; `max_burst` in bits, 0 for none.

    It holds a frame at least, since a larger one than the bucket is dropped, and never more than the kernel's number
    can say: nothing wraps around.
    """
    rate, burst, frame = limit.rate // 8, limit.burst // 8, mtu + _ETHERNET_HEADER
    note = ""
    if max_burst:
        if limit.burst > max_burst:
            burst, note = max_burst // 8, 'it is cut to "maxBurst"'
    elif limit.burst in INVENTED:
        burst = min(burst, max(rate * _AUTOMATIC_MS // 1000, _AUTOMATIC_FRAMES * frame))
        note = "it is what runtimes send when they know none"
    if burst < frame:
        burst, note = frame, f"a frame of {frame} bytes would never pass"
    size = max(_size(rate, burst), -(-frame * _NS_PER_S // (rate * TICK_NS)))
    if size > UINT32_MAX:
        size, burst = UINT32_MAX, UINT32_MAX * TICK_NS * rate // _NS_PER_S
        note = "the kernel cannot hold more at this rate"
    queue = min(_queue(rate) + burst, UINT32_MAX)
    return Shape(Bucket(rate, size, queue), note and f"its burst is {burst} bytes, not {limit.burst // 8}: {note}")


def references(limit: Limit) -> tuple[Bucket, Bucket]:
    """Returns what the reference makes of a limit: where its 32 bits overflow it wraps (amd64) or saturates (arm64)."""
    rate, burst = limit.rate // 8, limit.burst // 8
    us = int(burst * 1e6 / rate)
    queue = (_queue(rate) + burst) & UINT32_MAX
    wrapped = int((us & UINT32_MAX) * _TICKS_PER_US) & UINT32_MAX
    saturated = min(int(min(us, UINT32_MAX) * _TICKS_PER_US), UINT32_MAX)
    cut = (min(_queue(rate), UINT32_MAX) + burst) & UINT32_MAX
    return Bucket(rate, wrapped, queue), Bucket(rate, saturated, cut)


def _size(rate: int, burst: int) -> int:
    """Returns a burst as ticks, by way of whole microseconds (reference)."""
    return int(int(burst * 1e6 / rate) * _TICKS_PER_US)


def _queue(rate: int) -> int:
    return int(rate * float(_LATENCY_US) / 1e6)
