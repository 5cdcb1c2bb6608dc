"""The names that plugins, podwire-agent and the tool share: nftables objects, chains' comments, files in /run. Pure.

podwire-agent creates the table `podwire_policy` and its content; DEL only deletes the pod's addresses from the maps and
sets below. Plugins create the tables `podwire_guard`, which the agent does not change:

    table inet podwire_policy { map egress4 { ... } map ingress4 { ... } set self4 { ... } ... }    # podwire-agent's
    table bridge podwire_guard { ... }                                                              # bridge's
    table inet podwire_guard { ... }                                                                # ptp's
"""

from __future__ import annotations

from typing import NamedTuple

from kernel.netfilter import nft, nft_rule
from kernel.netfilter.nft import Table
from kernel.netfilter.nft_set import ADDRESS, Set

DIRECTORY = "/run/podwire/policy"
PODS_DIRECTORY = f"{DIRECTORY}/pods"  # the records
NAMESPACES_FILE = f"{DIRECTORY}/namespaces"  # boot, generation, strict, namespaces with policies
GATE_SOCKET = f"{DIRECTORY}/gate.sock"

TABLE = Table(nft.INET, "podwire_policy", "made by podwire-agent for NetworkPolicies")

# Verdict maps: the address of a pod on this node, to the chain of its policies.
EGRESS = {version: Set(TABLE, f"egress{version}", (part,), verdicts=True) for version, part in ADDRESS.items()}
INGRESS = {version: Set(TABLE, f"ingress{version}", (part,), verdicts=True) for version, part in ADDRESS.items()}
# Pairs of the address of a pod on this node with itself: a pod may always reach itself.
SELF = {version: Set(TABLE, f"self{version}", (part, part)) for version, part in ADDRESS.items()}

_GUARD_COMMENT = "made by podwire's plugins for pods with networkPolicy"
GUARD_BRIDGE_TABLE = Table(nft.BRIDGE, "podwire_guard", _GUARD_COMMENT)
GUARD_TABLE = Table(nft.INET, "podwire_guard", _GUARD_COMMENT)


class ChainSubject(NamedTuple):
    """The subject of a chain: the pods of `namespace` that exactly `policies` isolate in `direction`.

    Without `policies`: the pods whose objects the agent has not received. Several chains may have one subject.
    """

    direction: str
    namespace: str
    policies: tuple[str, ...] = ()

    def comment(self) -> str:
        """Returns the chain's comment, of which the kernel gets the first 128 bytes."""
        return f"{self.direction} of {self.namespace}: {', '.join(self.policies)}"

    @classmethod
    def parse(cls, comment: str) -> tuple[ChainSubject, bool]:
        """Returns the subject, and whether it is complete: the last of several names is omitted if it may be cut."""
        direction, _, rest = comment.partition(" of ")
        namespace, _, text = rest.partition(": ")
        policies = tuple(text.split(", ")) if text else ()
        is_complete = len(comment) < nft_rule.COMMENT_MAX
        return cls(direction, namespace, policies if is_complete or not policies[1:] else policies[:-1]), is_complete
