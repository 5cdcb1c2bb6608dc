"""The owner of an nftables rule or element: an item of its userdata, which `nft` ignores, beside the comment.

This module makes owner IDs of attachments; those of one network share a prefix, by which GC finds them.
"""

from __future__ import annotations

import hashlib
import sys

from kernel.netfilter import nft_rule

OWNER = 0x70  # the type of this item in userdata; nft uses small numbers
HASH_BYTES = 16


def owner_id(network: str, container_id: str, ifname: str) -> bytes:
    """Returns the owner ID of an attachment: the hash of its network, then that of interface and container."""
    return hash_name(network) + hash_name(f"{ifname}:{container_id}")


def hash_name(text: str) -> bytes:
    """Returns the hash of a name; the hash of a network is the prefix of its owner IDs."""
    return hashlib.sha512(text.encode()).digest()[:HASH_BYTES]


def parse_owner(userdata: bytes) -> bytes:
    """Returns the owner ID in userdata, b"" if there is none."""
    return nft_rule.parse_userdata(userdata).get(OWNER, b"")


def report_unowned(plugin: str, number: int, where: str) -> None:
    """Reports on stderr how many rules in `where` GC leaves because they name no owner; prints nothing for 0."""
    if number:
        print(
            f"{plugin}: GC leaves {number} rule(s) in {where} alone that name no network: "
            "the reference plugin made them, for this network or another",
            file=sys.stderr,
        )
