"""Plugins that are known by name: what they are for, so that a list's order can be judged.

One rule: of a plugin that is not in this file nothing is known but what every configuration has in common; its own keys
are not judged.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

# Of the reference (containernetworking/plugins).
INTERFACES = ("bridge", "dummy", "host-device", "ipvlan", "macvlan", "ptp", "tap", "vlan")
CHAINED = ("bandwidth", "firewall", "portmap", "sbr", "tuning", "vrf")
IPAMS = ("dhcp", "host-local", "static")
# Of others. What they need of a list is theirs to say.
FOREIGN = (
    "antrea",
    "aws-cni",
    "azure-vnet",
    "azure-vnet-ipam",
    "calico",
    "calico-ipam",
    "cilium-cni",
    "dnsname",
    "egress-cni",
    "flannel",
    "istio-cni",
    "kube-ovn",
    "linkerd-cni",
    "multus",
    "multus-shim",
    "ovn-k8s-cni-overlay",
    "ovs",
    "sriov",
    "weave-net",
    "whereabouts",
)
ALL = (*INTERFACES, *CHAINED, *IPAMS, "loopback", *FOREIGN)

# Keys that no plugin reads and that are in many files all the same: said, but not as a mistake.
UNREAD = {"addIf": "kubenet wrote it for itself", "vethPrefix": "the reference has no such key"}
# Keys of a network that runtimes keep for themselves.
RUNTIMES_OWN = ("args", "nerdctlID", "nerdctlLabels")
_MIN_SIMILARITY = 0.75  # as difflib measures it: 1 for equal words


def nearest(word: str, words: Collection[str]) -> str:
    """Returns the word that is likely to be meant, "" when none is near."""
    by_folded = {item.casefold(): item for item in words}
    close = get_close_matches(word.casefold(), by_folded, n=1, cutoff=_MIN_SIMILARITY)
    if close:
        return by_folded[close[0]]
    # Letters missing at the end: "hairpin", "isolat".
    longer = [item for item in words if len(word) > 3 and item.casefold().startswith(word.casefold())]
    return longer[0] if len(longer) == 1 else ""
