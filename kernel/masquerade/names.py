"""What the reference calls things in iptables, on which taking over depends.

One rule: pure.
"""

from __future__ import annotations

import hashlib

TABLE, ENTRY = "nat", "POSTROUTING"


def chain_name(network: str, container_id: str) -> str:
    """Returns the name of a container's chain (reference: FormatChainName)."""
    return "CNI-" + hashlib.sha512((network + container_id).encode()).hexdigest()[:24]
