"""The nftables tables of host ports, with the reference's names and comment.

One rule: each is defined once, since both the nftables backend and the loopback guard create it.
"""

from __future__ import annotations

from kernel.netfilter.nft import IPV4, IPV6, Table

TABLES = {version: Table(family, "cni_hostport", "CNI portmap plugin") for version, family in ((4, IPV4), (6, IPV6))}
