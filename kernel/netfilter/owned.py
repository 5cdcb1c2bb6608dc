"""Whose a rule of the packet filter is, as far as it says: for who only wants to know.

One rule: pure. A `mark` is what follows from network, container and interface alone (a chain's name, a hash, a
comment), so that a rule whose names were cut is still somebody's.
"""

from __future__ import annotations

from typing import NamedTuple

HOST_PORT, MASQUERADE, FIREWALL = "host port", "masquerade", "firewall"
NFTABLES, IPTABLES = "nftables", "iptables"

# The hint of a CHECK that misses rules.
REPAIR_HINT = (
    "flushed perhaps: `podwire repair` makes it again; if it was asked for only since, create the container again"
)


class OwnedRule(NamedTuple):
    """One rule, or element of a set: `what` it is for, `where` it stands, whose it is.

    `network`, `container_id` and `ifname` are "" where it does not tell, or not all of it; `mark` b"" is none.
    `about` is the host port ("8080/tcp") or the address that it is about, "" where that is not told.
    """

    what: str
    backend: str
    where: str
    mark: bytes = b""
    network: str = ""
    container_id: str = ""
    ifname: str = ""
    about: str = ""
