"""The ports that the programs of a namespace can connect from: with few of them, connections fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_FEW = 100
_RANGE, _RESERVED = "ipv4/ip_local_port_range", "ipv4/ip_local_reserved_ports"
_DEFAULT = "'32768 60999'"


class FewPorts(NamedTuple):
    """The setting that leaves few ports, its value in words, and the assignment that ends it ("" with advice)."""

    setting: str
    text: str
    assignment: str
    advice: str = ""


def find(read: Callable[[str], str | None]) -> FewPorts | None:
    """Returns why there are few local ports, None if there are enough; `read` reads a setting below /proc/sys/net.

    The kernel chooses from the range, without the reserved ports (ip-sysctl in the kernel's documentation).
    """
    bounds = (read(_RANGE) or "").split()
    if len(bounds) != 2:
        return None
    ports = range(int(bounds[0]), int(bounds[1]) + 1)
    if len(ports) < _FEW:
        return FewPorts(_RANGE, f"it is {bounds[0]} to {bounds[1]}", f"{_RANGE}={_DEFAULT}")
    reserved = read(_RESERVED) or ""
    unusable = sum(_overlap(ports, *part.partition("-")[::2]) for part in reserved.split(",") if part)
    if len(ports) - unusable < _FEW:
        return FewPorts(_RESERVED, f"it is {reserved}", "", f"reserve fewer ports: sysctl -w net/{_RESERVED}=PORTS")
    return None


def _overlap(ports: range, first: str, last: str) -> int:
    """Returns how many of the ports are reserved."""
    return max(0, min(ports.stop, int(last or first) + 1) - max(ports.start, int(first)))
