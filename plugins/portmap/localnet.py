"""127.0.0.1:hostPort."""

from __future__ import annotations

from plugins.portmap.wanted import HostPorts


def ensure(wanted: HostPorts) -> None:
    """Guard and route_localnet."""


def check(wanted: HostPorts) -> None:
    """Checks it."""
