"""The owner of a rule of the packet filter, as far as the rule names it: for podwire's listings.

One rule: pure. A `mark` is what follows from network, container and interface alone (a chain's name, a hash, a
comment), so that a rule with truncated names can still be matched to its attachment.
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
    """One rule, or element of a set: its purpose (`what`), its table or chain (`where`), its owner.

    `network`, `container_id` and `ifname` are "" where the rule does not name them in full; `mark` b"" is none.
    `about` is its host port ("8080/tcp") or address, "" where unknown.
    """

    what: str
    backend: str
    where: str
    mark: bytes = b""
    network: str = ""
    container_id: str = ""
    ifname: str = ""
    about: str = ""
