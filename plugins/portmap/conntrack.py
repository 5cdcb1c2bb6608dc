"""Connection tracking of UDP host ports."""

from __future__ import annotations

from plugins.portmap.wanted import HostPorts


def forget(wanted: HostPorts) -> None:
    """Deletes the entries of the host ports."""
