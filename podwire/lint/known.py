"""The known plugins by kind, the order of a list, shared addresses, and the known name nearest to a misspelt word.

Of the configuration of another vendor's plugin, only the keys that are common to all plugins are checked.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

# The plugins of this project, which are also those of containernetworking/plugins.
INTERFACES = ("bridge", "dummy", "host-device", "ipvlan", "macvlan", "ptp", "tap", "vlan")
CHAINED = ("bandwidth", "firewall", "portmap", "sbr", "tuning", "vrf")
IPAMS = ("dhcp", "host-local", "static")
# Plugins without a way out of the pod: other pods may have the same addresses.
CONFINED = ("loopback", "dummy")
# Plugins of other projects; lint does not check what they require of a list.
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

# Keys that no plugin reads, but that many files contain: a note, not a warning.
UNREAD = {"addIf": "kubenet wrote it for itself", "vethPrefix": "the reference plugins have no such key"}
# Keys of a network that only runtimes use.
RUNTIME_KEYS = ("args", "nerdctlID", "nerdctlLabels")
_MIN_SIMILARITY = 0.75  # as difflib measures it: 1 for equal words


def nearest(word: str, words: Collection[str]) -> str:
    """Returns the most similar of `words`, one with the same letters first ("lnit"); "" if none is similar enough."""
    by_folded = {item.casefold(): item for item in words}
    close = get_close_matches(word.casefold(), by_folded, cutoff=_MIN_SIMILARITY)
    if close:
        return by_folded[min(close, key=lambda item: sorted(item) != sorted(word.casefold()))]
    # Letters missing at the end: "hairpin", "isolat".
    longer = [item for item in words if len(word) > 3 and item.casefold().startswith(word.casefold())]
    return longer[0] if len(longer) == 1 else ""
