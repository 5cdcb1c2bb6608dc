"""The grants of a network with a pool, as podwire-agent writes them, for the warm-up."""

from __future__ import annotations

import json
import os

from ipam.host_local import grants
from kernel import boot

# With prefix lengths that podwire uses at import: ipaddress stores each new one.
_BLOCKS = {
    "10.1.2.0/24": ("10.1.2.1", "10.1.2.254", "10.1.2.1"),
    "10.1.3.0/24": ("10.1.3.1", "10.1.3.254", "10.1.2.1"),
    "fd00:1:2::/64": ("fd00:1:2::", "fd00:1:2::ffff:ffff:ffff:ffff", "fd00:1:2::"),
}


def write(data_dir: str, network: str) -> None:
    """Writes the grants of a network with two IPv4 blocks and an IPv6 block; this boot may use them."""
    blocks = [
        {"subnet": subnet, "first": first, "last": last, "gateway": gateway, "state": grants.GRANTED}
        for subnet, (first, last, gateway) in _BLOCKS.items()
    ]
    document = {
        "version": 1,
        "boot": boot.get_boot_id().decode().strip(),
        "contact": 1,
        "pools": [{"name": "default", "versions": [4, 6], "namespaces": [], "blocks": blocks}],
    }
    path = grants.path_of(data_dir, network)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(json.dumps(document).encode())
