"""The nftables tables of host ports, with the names and the comment that the reference plugin uses.

The nftables backend and the loopback guard both create them.
"""

from __future__ import annotations

from kernel.netfilter.nft import IPV4, IPV6, Table

TABLES = {version: Table(family, "cni_hostport", "CNI portmap plugin") for version, family in ((4, IPV4), (6, IPV6))}
