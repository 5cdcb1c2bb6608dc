"""The nftables tables of host ports, with the reference's names and comment.

One rule: each stands here once, since the backend for nftables and the guard of localhost both make it.
"""

from __future__ import annotations

from kernel.netfilter.nft import IPV4, IPV6, Table

TABLES = {version: Table(family, "cni_hostport", "CNI portmap plugin") for version, family in ((4, IPV4), (6, IPV6))}
