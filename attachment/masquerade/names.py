"""The names of the reference plugins' chains for masquerading with iptables.

This module is pure. Equal names allow podwire to replace the reference plugins while pods are running, and back.
"""

from __future__ import annotations

from kernel.netfilter.iptables_chains import ContainerChains

ENTRY = "POSTROUTING"
CHAINS = ContainerChains(ENTRY, "CNI-", "", "masquerade")
chain_name = CHAINS.name
