"""The queues of netfilter (NFQUEUE), in which packets wait for the verdict of a program."""

from __future__ import annotations

_QUEUES = "/proc/thread-self/net/netfilter/nfnetlink_queue"


def list_queues() -> frozenset[int]:
    """Returns the queues of the current namespace that a program reads; raises OSError if they cannot be read."""
    try:
        with open(_QUEUES, encoding="ascii") as lines:
            return frozenset(int(line.split()[0]) for line in lines)
    except FileNotFoundError:  # the kernel has no such queues, or the module is not loaded
        return frozenset()
