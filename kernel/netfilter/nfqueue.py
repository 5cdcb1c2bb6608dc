"""The queues of netfilter (NFQUEUE), in which packets wait for the verdict of a program."""

from __future__ import annotations

from pathlib import Path

_QUEUES = Path("/proc/thread-self/net/netfilter/nfnetlink_queue")


def list_queues() -> frozenset[int]:
    """Returns the queues of the current namespace that a program reads; raises OSError if they cannot be read."""
    try:
        lines = _QUEUES.read_text().splitlines()
    except FileNotFoundError:  # the kernel has no such queues, or the module is not loaded
        return frozenset()
    return frozenset(int(line.split()[0]) for line in lines)
