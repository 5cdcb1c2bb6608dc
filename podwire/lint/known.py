"""Plugins that are known by name: what they are for, so that a list's order can be judged.

One rule: of a plugin that is not in this file nothing is known but what every configuration has in common; its own keys
are not judged.
"""

from __future__ import annotations

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
_LEAST_LIKENESS = 0.75


def nearest(word: str, words: tuple[str, ...] | list[str]) -> str:
    """Returns the word that is likely to be meant, "" when none is near."""
    likeness = {item: _likeness(word.casefold(), item.casefold()) for item in words}
    closest = max(likeness, key=lambda item: likeness[item], default="")
    if likeness.get(closest, 0) >= _LEAST_LIKENESS:
        return closest
    # What was left out at the end: "hairpin", "isolat".
    longer = [item for item in words if len(word) > 3 and item.casefold().startswith(word.casefold())]
    return longer[0] if len(longer) == 1 else ""


def _likeness(one: str, other: str) -> float:
    """Returns which part of two words is common to both, in this order: 1 when they are the same, 0 for nothing.

    The standard library's difflib is longer than podwire lint, and would be a part of the executable.
    """
    row = [0] * (len(other) + 1)  # the longest common subsequence with the beginnings of `other`
    for letter in one:
        before = row
        row = [0]
        for index, candidate in enumerate(other):
            row.append(before[index] + 1 if letter == candidate else max(before[index + 1], row[index]))
    return 2 * row[-1] / (len(one) + len(other) or 1)
