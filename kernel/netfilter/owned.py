"""The owner of a packet filter rule, as far as the rule names it, for podwire's listings.

This module is pure. An `owner_key` (a chain's name, a hash, a comment) depends on network, container and interface
only, so a rule with truncated names can still be matched to its attachment.
"""

from __future__ import annotations

from typing import NamedTuple

from cni.errors import CniError, internal

HOST_PORT, MASQUERADE, FIREWALL = "host port", "masquerade", "firewall"
NFTABLES, IPTABLES = "nftables", "iptables"

REPAIR_HINT = (
    "another program may have deleted it: `podwire repair` creates it again; "
    "if the network's configuration has changed since, recreate the container"
)


def repairable_error(msg: str) -> CniError:
    """Returns (does not raise) CHECK's error for a rule or record that `podwire repair` restores."""
    return internal(msg, REPAIR_HINT)


class OwnedRule(NamedTuple):
    """A rule, or element of a set: its purpose (`what`), its table or chain (`where`), its owner.

    `network`, `container_id` and `ifname` are "" if the rule does not name them in full; `owner_key` is b"" for none.
    `subject`: the rule's host port ("8080/tcp") or address, "" if unknown.
    """

    what: str
    backend: str
    where: str
    owner_key: bytes = b""
    network: str = ""
    container_id: str = ""
    ifname: str = ""
    subject: str = ""
