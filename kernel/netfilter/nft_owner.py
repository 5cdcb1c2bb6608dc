"""Whose a rule or an element of nftables is: what stands in its userdata beside the comment, where `nft` does not look.

One rule: an owner is an attachment of a network; all of a network's begin alike, so that GC finds them.
"""

from __future__ import annotations

import hashlib
import sys

from kernel.netfilter import nft_rule

OWNER = 0x70  # type of this item in userdata; nft's own are small numbers
HASH_BYTES = 16


def owner_id(network: str, container_id: str, ifname: str) -> bytes:
    """Returns what names an attachment."""
    return hash_name(network) + hash_name(f"{ifname}:{container_id}")


def hash_name(text: str) -> bytes:
    """Returns what names a network, at the beginning."""
    return hashlib.sha512(text.encode()).digest()[:HASH_BYTES]


def parse_owner(userdata: bytes) -> bytes:
    """Returns the owner in userdata, b"" when it names none."""
    return nft_rule.parse_userdata(userdata).get(OWNER, b"")


def report_unowned(plugin: str, number: int, where: str) -> None:
    """Tells on stderr how many rules in `where` GC leaves, unless none, since they do not say whose they are."""
    if number:
        print(
            f"{plugin}: GC leaves {number} rule(s) in {where} alone that name no network: "
            "the reference plugin made them, for this network or another",
            file=sys.stderr,
        )
