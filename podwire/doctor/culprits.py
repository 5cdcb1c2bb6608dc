"""A rule or a policy that takes packets of the pods: its owner, and whether it may be intended.

One rule, for every command about the packet filter: doctor deletes no rule of others and changes no policy. It accepts
packets (accepting.py) only where a policy, or a rule that names one interface at most, leaves nothing of a kind of
packets. A rule that says more, an allow-list before it, and every rule of a policy engine may be intended.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from shlex import quote

from cni.address import Address
from kernel.netfilter import nft
from kernel.netfilter.packet import ESTABLISHED, NEW, TCP, UDP, Packet
from kernel.netfilter.ruleset import FAMILY_NAMES, FilterChain, FilterRule, Ruleset
from podwire.doctor import probes
from podwire.doctor.node import InterfaceConf
from podwire.doctor.pods import VethPod
from podwire.doctor.probes import Happening
from podwire.node.rule_owners import ADMINISTRATOR, PODWIRE, is_decision, owner_of
from podwire.predictions.conditions import Conditions, conditions_of
from podwire.predictions.evaluation import Fate, PacketEvent, traverse_chain
from podwire.predictions.permissions import Pods, is_preceded_by_permission
from process.values import replace

# The address of the other machine, by kind of packets; of the others both addresses are the node's and the pods'.
_REMOTE = {
    probes.TO_OTHERS: "destination",
    probes.TO_LAN: "destination",
    probes.REPLIES: "source",
    probes.PUBLISHED: "source",
    probes.BETWEEN: "",
    probes.FROM_NODE: "",
}


@dataclass
class Culprit:
    """A rule, or a policy, with everything that it does to packets of the pods of one network.

    `pods` are all pods whose packets were predicted.
    """

    event: PacketEvent
    ruleset: Ruleset
    pods: tuple[VethPod, ...]
    happenings: list[Happening] = field(default_factory=list)

    def add(self, one: Happening) -> None:
        """Adds what it does to a packet; packets to the node's own network only if no others are concerned."""
        if one.label == probes.TO_LAN and probes.TO_OTHERS in self.labels:
            return
        self.happenings.append(one)

    @property
    def chain(self) -> FilterChain:
        """The chain with the rule, or with the policy."""
        return self.event.chain

    @property
    def item(self) -> InterfaceConf:
        """The network."""
        return self.happenings[0].pod.item

    @property
    def labels(self) -> list[str]:
        """The kinds of packets."""
        return list(dict.fromkeys(one.label for one in self.happenings))

    @cached_property
    def owner(self) -> str:
        """The program that wrote the rule, "" if it is unknown."""
        return owner_of_event(self.event)

    @cached_property
    def neighbours(self) -> frozenset[str]:
        """The names of the chains in its table."""
        where = self.chain.family, self.chain.table, self.chain.tool
        return frozenset(one.name for one in self.ruleset.chains if (one.family, one.table, one.tool) == where)

    @cached_property
    def conditions(self) -> Conditions:
        """The conditions of the rule and of the jumps to it."""
        return conditions_of(*self.event.rules)

    @cached_property
    def lost(self) -> tuple[Happening, ...]:
        """The packets of those kinds of which nothing passes it, to any machine and port, of any pod.

        None are, if the rule is a decision: of a policy engine, of a chain for the administrator's rules, about packets
        between two interfaces or of one pod's interface, or behind rules that permit some of the pods' packets: then
        only the discovery of neighbours, which no allow-list leaves out on purpose.
        """
        interfaces = self.conditions.interfaces
        if (
            is_decision(self.owner)
            or self.owner == "firewalld"
            or len(interfaces) > 1
            or any(one.inverted for one in interfaces)
            or self._names_one_pod()
        ):
            return ()
        gates = tuple({one.pod.gate.name for one in self.happenings if one.pod.gate})
        pods = Pods(gates, tuple(self.item.subnets))
        is_allow_list = is_preceded_by_permission(self.ruleset, self.event, pods, _is_no_permission)
        labels = [probes.RESOLVING] if is_allow_list else self.labels
        return tuple(one for label in labels if self._takes_all(label) for one in self._of(label))

    def _names_one_pod(self) -> bool:
        """Returns whether it is about the host veth of a pod: that pod may be in quarantine."""
        names = {one.name for one in self.conditions.interfaces} | set(self.event.base.devices)
        return any(one.pod.host_veth and one.pod.host_veth.name in names for one in self.happenings)

    def _of(self, label: str) -> list[Happening]:
        return [one for one in self.happenings if one.label == label]

    def _takes_all(self, label: str) -> bool:
        happenings = self._of(label)
        keys = {one.pod.key for one in happenings}
        # Pods of which it takes nothing: the packets of those that only podwire's rules accept are lost without these.
        others = [pod for pod in self.pods if pod.key not in keys and (label != probes.PUBLISHED or pod.ports)]
        if others and not _REMOTE.get(label):
            return False
        if label not in _REMOTE:
            return label == probes.RESOLVING
        if self.conditions.has_others and label not in (probes.TO_OTHERS, probes.REPLIES):
            return False
        first = {one.event.packet.version: one for one in reversed(happenings)}
        return all(self._takes(packet) for one in first.values() for packet in self._variants(label, one, others))

    def _variants(self, label: str, one: Happening, others: list[VethPod]) -> Iterator[Packet]:
        """Yields generalized packets of a kind: any port and machine, addresses of other pods and of the subnet."""
        addresses = [
            address for pod in others for address in pod.addresses if address.version == one.event.packet.version
        ]
        packet, remote = one.event.packet, _REMOTE[label]
        states = {packet.state}
        if self.conditions.has_others and label == probes.TO_OTHERS:
            states = {NEW, ESTABLISHED}
        for protocol in (TCP, UDP):
            for state in states:
                general = replace(
                    packet, protocol=protocol, state=state, source_port=None, port=None, icmp_type=None,
                    source_mac=None, unknown_address=remote,
                )  # fmt: skip
                yield general
                for address in (*_further_addresses(self.item, packet.version), *addresses):
                    if remote == "destination":
                        yield replace(general, source=address)
                    elif remote == "source":
                        yield replace(general, destination=address)

    def _takes(self, packet: Packet) -> bool:
        """Returns whether it certainly does the same to a packet."""
        place = self.chain.place, self.event.rule and self.event.rule.handle
        return any(
            (event.chain.place, event.rule and event.rule.handle) == place
            and event.fate is self.event.fate
            and event.fate in (Fate.CERTAIN, Fate.PASSES)
            for event in traverse_chain(self.ruleset, packet, self.event.base, _is_podwires).events
        )

    @property
    def place(self) -> str:
        """The rule's place in words, with its owner."""
        chain, rule = self.chain, self.event.rule
        owner = self.owner or ("" if rule else self._creator())
        of = f" ({owner})" if owner else ""
        if rule is None:
            return f"the policy of chain {chain}{of}"
        number = f"rule {rule.handle}" if chain.tool else f"the rule with handle {rule.handle}"
        return f"{number} of chain {chain}{of}"

    def _creator(self) -> str:
        """Returns the program that set the policy of a shared chain, by the other chains in its table."""
        if "DOCKER-USER" in self.neighbours:
            return "Docker"
        return "ufw" if any(name.startswith("ufw") for name in self.neighbours) else ""


def _is_no_permission(rule: FilterRule) -> bool:
    """Returns whether a rule accepts packets whatever an administrator intends: podwire's, and kube-proxy's."""
    return owner_of(rule.chain, rule) in (PODWIRE, "kube-proxy")


def _is_podwires(rule: FilterRule) -> bool:
    """Returns whether a rule is podwire's: it accepts single pods, and is no allow-list."""
    return owner_of(rule.chain, rule) == PODWIRE


def owner_of_event(event: PacketEvent) -> str:
    """Returns the owner of the rule, or of the jump that leads to it; "" if it is unknown."""
    if owner := owner_of(event.chain, event.rule):
        return owner
    owner = next((name for rule in reversed(event.path) if (name := owner_of(rule.chain, rule))), "")
    return ADMINISTRATOR if owner == PODWIRE else owner  # podwire jumps to no other chain of others


def is_iptables(chain: FilterChain, neighbours: frozenset[str]) -> bool:
    """Returns whether a chain is in a table that iptables, of either variant, lists."""
    is_shared = not neighbours.isdisjoint(("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"))
    return bool(chain.tool) or (chain.family in nft.NFPROTO.values() and is_shared)


def look(culprit: Culprit) -> str:
    """Returns the command that lists the chain."""
    chain = culprit.chain
    if is_iptables(chain, culprit.neighbours):
        return shlex.join([tool_of(chain), *([] if chain.table == "filter" else ["-t", chain.table]), "-S", chain.name])
    return f"nft -a list chain {FAMILY_NAMES[chain.family]} {quote(chain.table)} {quote(chain.name)}"


def tool_of(chain: FilterChain) -> str:
    """Returns the program for a chain of iptables."""
    return chain.tool or ("ip6tables" if chain.family == nft.IPV6 else "iptables")


def _further_addresses(item: InterfaceConf, version: int) -> list[Address]:
    """Returns the first and the last addresses for pods of a network's subnets."""
    subnets = [subnet for subnet in item.subnets if subnet.version == version and subnet.num_addresses > 4]
    return [address for subnet in subnets for address in (subnet[2], subnet[-2])]
