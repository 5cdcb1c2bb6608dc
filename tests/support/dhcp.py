"""The address of a DHCP server on the wire, and the keys of a network for a daemon."""

from __future__ import annotations

from pathlib import Path

SERVER = "10.25.0.1"
RANGE = "10.25.0.100,10.25.0.110,255.255.255.0,1h"


def ipam_keys(directory: Path) -> dict[str, str]:
    """Returns the keys of `ipam` for the socket and the lease files of a daemon with these files."""
    return {"dataDir": str(directory / "data"), "daemonSocketPath": str(directory / "run" / "dhcp.sock")}
