"""VLANs of a bridge on the host, as bridge(8) and ip(8) print them.

Functions return all VLANs of a port, so that a test notices an additional VLAN as well as a missing one.
"""

import json

from tests.support.namespaces import Namespace
from tests.support.netstate import shown

PVID_FLAGS: list[str] = ["PVID", "Egress Untagged"]  # flags of a port's untagged VLAN
TAGGED: list[str] = []


def vlans(namespace: Namespace, name: str) -> dict[int, list[str]]:
    """Returns the VLANs of a port, or of the bridge itself: VLAN ID and its flags, as bridge(8) calls them."""
    listed = json.loads(namespace.run("bridge", "-j", "vlan", "show", "dev", name) or "[]")
    return {item["vlan"]: item.get("flags", []) for entry in listed for item in entry["vlans"]}


def filters(namespace: Namespace, name: str = "cni0") -> bool:
    """Returns whether a bridge filters by VLAN."""
    return bool(shown(namespace, name)["linkinfo"]["info_data"]["vlan_filtering"])


def gateway_port(namespace: Namespace, name: str = "cni0.100") -> str:
    """Returns the name of the port whose other end is the gateway interface."""
    return str(shown(namespace, name)["link"])
