"""Converts a limit, in bits and bits/s, to the numbers of the kernel's token bucket.

One rule: the numbers equal the reference plugin's unless its arithmetic overflows, so that the CHECK of both accepts
them.
"""

from __future__ import annotations

from kernel.traffic import NS_PER_S, TICK_NS, UINT32_MAX, Bucket
from process.values import dataclass

# The burst that kubelet, containerd and CRI-O send if the user configured only a rate. It would let the first hundreds
# of megabytes pass at full speed.
PLACEHOLDER_BURSTS = frozenset({(1 << 31) - 1, (1 << 32) - 1, 8 * ((1 << 32) - 1) - 1})

# Replaces a placeholder burst. Measured from 8 Mbit/s to 1 Gbit/s: in its first second TCP gets 99 to 100 % of the rate
# with 50 ms; with 25 or 100 ms it may lose a whole train of segments and get 75 or 82 %. With 10 ms it gets 96 %, but
# several connections on a busy machine get between 84 and 121 %. 100 ms would also add 100 ms of latency.
_AUTOMATIC_MS = 50  # of the rate
_AUTOMATIC_FRAMES = 10  # at least this many frames: the initial window of TCP (RFC 6928)
_LATENCY_US = 25_000  # how much of the rate may wait in the queue, besides a burst: the reference plugin's value
_ETHERNET_HEADER = 14  # the kernel compares whole frames with the bucket; the outer VLAN tag is not part of them
# A frame that takes longer than this at the rate never passes, whatever the bucket's size: tbf_change stores the
# largest frame as nanoseconds in 32 bits (net/sched/sch_tbf.c).
_FRAME_NS_MAX = UINT32_MAX
# Above this rate, 1.15 Ebit/s, the kernel's 64-bit arithmetic overflows: it refuses the bucket as empty, or drops all
# larger frames (psched_ns_t2l, net/sched/sch_tbf.c).
_RATE_MAX = 1 << 57  # bytes/s
_TICKS_PER_US = 1000 / TICK_NS


@dataclass(frozen=True)
class Limit:
    """A rate in bits/s, at least 8, and a burst in bits."""

    rate: int
    burst: int


@dataclass(frozen=True)
class Shape:
    """The bucket for a limit, and a note for the operator if it differs from the configured limit, else ""."""

    bucket: Bucket
    note: str = ""


def compute_shape(limit: Limit, mtu: int, max_burst: int) -> Shape:
    """Returns the bucket for `limit` on an interface with an MTU of `mtu` bytes; `max_burst` in bits, 0 for none.

    The bucket holds at least one frame, since the kernel drops larger frames, and no number overflows.
    """
    rate, frame = min(limit.rate // 8, _RATE_MAX), mtu + _ETHERNET_HEADER
    burst = max(_burst(limit, max_burst, frame), frame)
    why = f"a frame of {frame} bytes would never pass" if burst > limit.burst // 8 else ""
    size = int(_microseconds(rate, burst) * _TICKS_PER_US)
    least = -(-frame * NS_PER_S // (rate * TICK_NS))
    if size < least:  # whole microseconds are too coarse for this rate
        size = max(burst * NS_PER_S // (rate * TICK_NS), least)
    bucket = Bucket(rate, min(size, UINT32_MAX), min(_queue(rate) + burst, UINT32_MAX))
    if size > UINT32_MAX:
        burst, why = bucket.capacity, "the kernel cannot hold more at this rate"
    notes = [f"its burst is {burst} bytes, not {limit.burst // 8}: {why}"] if why else []
    if (passing := _bytes(rate, min(size * TICK_NS, _FRAME_NS_MAX))) < frame:
        notes.append(f"no frame of more than {passing} bytes passes: none may take more than 4.3 s")
    return Shape(bucket, "; ".join(notes))


def reference_buckets(limit: Limit) -> tuple[Bucket, Bucket]:
    """Returns the reference plugin's buckets for a limit: a 32-bit overflow wraps on amd64 and saturates on arm64."""
    rate, burst = limit.rate // 8, limit.burst // 8
    us, queue = _microseconds(rate, burst), _queue(rate)
    wrapped = int((us & UINT32_MAX) * _TICKS_PER_US) & UINT32_MAX
    saturated = min(int(min(us, UINT32_MAX) * _TICKS_PER_US), UINT32_MAX)
    return (
        Bucket(rate, wrapped, (queue + burst) & UINT32_MAX),
        Bucket(rate, saturated, (min(queue, UINT32_MAX) + burst) & UINT32_MAX),  # a sum of integers wraps on both
    )


def _burst(limit: Limit, max_burst: int, frame: int) -> int:
    """Returns the burst in bytes: the configured one, at most `max_burst`; an automatic one replaces a placeholder."""
    configured = limit.burst // 8
    if max_burst:
        return min(configured, max_burst // 8)
    if limit.burst in PLACEHOLDER_BURSTS:
        return min(configured, max(limit.rate // 8 * _AUTOMATIC_MS // 1000, _AUTOMATIC_FRAMES * frame))
    return configured


def _microseconds(rate: int, burst: int) -> int:
    """Returns how long a burst takes in whole microseconds; the float arithmetic is the reference plugin's."""
    return int(burst * 1e6 / rate)


def _queue(rate: int) -> int:
    """Returns how many bytes may wait besides a burst; the float arithmetic is the reference plugin's."""
    return int(rate * float(_LATENCY_US) / 1e6)


def _bytes(rate: int, duration_ns: int) -> int:
    return rate * duration_ns // NS_PER_S
