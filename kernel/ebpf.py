"""The eBPF programs at an interface that no netlink attribute shows: those of tcx (Linux 6.6)."""

from __future__ import annotations

from _podwire import count_programs

_ATTACH_TYPES = {"receives": 46, "sends": 47}  # BPF_TCX_INGRESS, BPF_TCX_EGRESS (linux/bpf.h)


def list_tcx_directions(ifindex: int) -> list[str]:
    """Returns the directions of an interface of this namespace, "receives" and "sends", in which programs run.

    None on a kernel without tcx, or without the privilege to ask.
    """
    return [direction for direction, number in _ATTACH_TYPES.items() if _count(ifindex, number)]


def _count(ifindex: int, attach_type: int) -> int:
    try:
        count: int = count_programs(ifindex, attach_type)
    except OSError:
        return 0
    return count
