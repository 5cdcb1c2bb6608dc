"""The names of the chains for masquerading with iptables: the reference plugins', and that of the cluster.

This module is pure. Equal names allow podwire to replace the reference plugins while pods are running, and back.
"""

from __future__ import annotations

from kernel.netfilter.iptables_chains import ChainScheme

ENTRY = "POSTROUTING"
MASQUERADE_CHAINS = ChainScheme(ENTRY, "CNI-", "", "masquerade")
chain_name = MASQUERADE_CHAINS.name
CLUSTER_CHAIN = "PODWIRE-CLUSTER"
