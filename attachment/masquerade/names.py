"""What the reference calls things in iptables, on which taking over depends.

One rule: pure.
"""

from __future__ import annotations

from kernel.netfilter.iptables_chains import ContainerChains

ENTRY = "POSTROUTING"
CHAINS = ContainerChains(ENTRY, "CNI-", "", "masquerade")
chain_name = CHAINS.name
