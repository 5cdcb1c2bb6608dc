"""The desired packet filter of this node, from the selection.

One rule: names are hashes, so that equal sets and chains of several pods are one object, and an agent that starts again
computes the names that are in the kernel. Sets of pods are named after their selector, which stays while pods come and
go, chains after the policies and ports of their pods, and sets of blocks and port ranges after their contents.

What did not change stays the same Python object, and the filter skips it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple, TypeVar

from agent.policy.evaluator import EVERY_POD
from agent.policy.filter_table import EMPTY, AcceptRule, ChainContent, Element, FilterTable, SetChange, Verdict
from agent.policy.objects import EGRESS, INGRESS, LAST_PORT, IpBlock, NamedPort, Peer, PodPeer, Policy, PortRange, Rule
from agent.policy.peer_sets import PeerSets, SetKey, digest
from agent.policy.selection import LocalPod, PolicySelection

_UNKNOWN = "pods whose objects the API server has not sent yet"
_Range = tuple[int, int]
V = TypeVar("V")


class Group(NamedTuple):
    """The facts that decide the rules of a chain; without policies it accepts nothing.

    `versions` are the IP versions of the pods' addresses. `ports` are those of the pods that ingress rules name.
    """

    direction: str
    policies: tuple[Policy, ...]
    versions: tuple[int, ...] = ()
    ports: tuple[NamedPort, ...] = ()

    def chain_name(self) -> str:
        """Returns the name of the chain, which stays when the rules of the policies change."""
        names = tuple((policy.namespace, policy.name) for policy in self.policies)
        return f"{self.direction[0]}-{digest((names, self.versions, self.ports))}"

    def comment(self) -> str:
        """Returns the comment of the chain."""
        if not self.policies:
            return f"{self.direction} of {_UNKNOWN}"
        names = ", ".join(policy.name for policy in self.policies)
        return f"{self.direction} of {self.policies[0].namespace}: {names}"


class _Chain:
    """The rules of a group, and the sets that they name: those of peers, which change in place, and constant ones."""

    def __init__(self, group: Group, peer_sets: PeerSets) -> None:
        self.group, self.name = group, group.chain_name()
        self._peer_sets = peer_sets
        self.sets: dict[str, Set[Element]] = {}
        rules = [each for policy in group.policies for each in policy.rules(group.direction) or ()]
        filter_rules = tuple(dict.fromkeys(each for rule in rules for each in self._filter_rules(rule)))
        self.content = ChainContent(group.comment(), filter_rules)
        names = {name for rule in filter_rules for name in (rule.peer_set, rule.port_set, rule.pair_set) if name}
        self.sets = {name: self.sets[name] for name in names}  # a named port's rule may have no use for its peers

    def _filter_rules(self, rule: Rule) -> Iterator[AcceptRule]:
        port_rules = list(self._port_rules(rule.ports))
        for each in self._peer_rules(rule.peers) if port_rules else ():
            for ports in port_rules:
                yield ports._replace(version=each.version, peer_set=each.peer_set)
        if self.group.direction == EGRESS:
            peers = [peer for peer in rule.peers or (EVERY_POD,) if isinstance(peer, PodPeer)]
            for port in rule.ports or ():
                if port.name:
                    yield from self._pair_rules(peers, port)

    def _pair_rules(self, peers: Iterable[PodPeer], port: PortRange) -> Iterator[AcceptRule]:
        for peer in peers:
            for version in self.group.versions:
                name = self._use_peers(SetKey(version, peer, port.name, port.protocol))
                yield AcceptRule(version=version, protocol=port.protocol, pair_set=name)

    def _peer_rules(self, peers: tuple[Peer, ...] | None) -> Iterator[AcceptRule]:
        if peers is None:
            yield AcceptRule()
            return
        for version in self.group.versions:
            for peer in peers:
                if isinstance(peer, PodPeer):
                    yield AcceptRule(version, self._use_peers(SetKey(version, peer)))
            ranges = _block_ranges(
                each for each in peers if isinstance(each, IpBlock) and each.network.version == version
            )
            if ranges:
                address = IPv4Address if version == 4 else IPv6Address
                addresses = frozenset((address(first), address(last)) for first, last in ranges)
                yield AcceptRule(version, self._use_constant(f"b{version}", ranges, addresses))

    def _port_rules(self, ports: tuple[PortRange, ...] | None) -> Iterator[AcceptRule]:
        if ports is None:
            yield AcceptRule()
        for protocol in sorted({port.protocol for port in ports or ()}):
            ranges = _merge(each for port in ports or () if port.protocol == protocol for each in self._numbers(port))
            if ranges == [(0, LAST_PORT)]:
                yield AcceptRule(protocol=protocol)
            elif len(ranges) == 1:
                yield AcceptRule(protocol=protocol, ports=ranges[0])
            elif ranges:
                yield AcceptRule(protocol=protocol, port_set=self._use_constant("t", ranges, frozenset(ranges)))

    def _numbers(self, port: PortRange) -> list[_Range]:
        """Returns the numbers of a port; of a name as ingress those of this pod, as egress pair sets have them."""
        if not port.name:
            return [(port.first, port.last)]
        key = (port.name, port.protocol)
        return [(each.number, each.number) for each in self.group.ports if (each.name, each.protocol) == key]

    def _use_peers(self, key: SetKey) -> str:
        peer_set = self._peer_sets.get(key)
        self.sets[peer_set.name] = peer_set.elements
        return peer_set.name

    def _use_constant(self, kind: str, ranges: list[_Range], elements: frozenset[Element]) -> str:
        name = f"{kind}-{digest(tuple(ranges))}"
        self.sets[name] = elements
        return name


class FilterPlan:
    """Computes the table from what the selection has, again after each change."""

    def __init__(self, selection: PolicySelection) -> None:
        self._selection = selection
        self._table = EMPTY
        self._placed: dict[LocalPod, tuple[_Chain | None, _Chain | None]] = {}  # egress, ingress
        self._chains: dict[str, _Chain] = {}

    def update(self) -> tuple[FilterTable, Mapping[str, SetChange]]:
        """Returns the table, and the differences of its sets that were changed in place since the last call.

        The caller applies every table that it gets, or compares all of the next one with the kernel.
        """
        changed = self._selection.take_changes()
        if changed:
            self._compute(changed)
            self._selection.peer_sets.keep(self._table.sets)
        return self._table, self._selection.peer_sets.take_changes()

    def _compute(self, changed: set[LocalPod]) -> None:
        self._placed = {
            local: self._place(local) if local in changed else self._placed[local]
            for local in self._selection.local.values()
        }
        verdicts = {
            address: Verdict(egress.name if egress else "", ingress.name if ingress else "")
            for local, (egress, ingress) in self._placed.items()
            if egress or ingress
            for address in local.addresses
        }
        self._chains = {chain.name: chain for chains in self._placed.values() for chain in chains if chain}
        contents = {name: chain.content for name, chain in self._chains.items()}
        sets = {name: elements for chain in self._chains.values() for name, elements in chain.sets.items()}
        before = self._table
        self._table = FilterTable(verdicts, _same_if_equal(before.chains, contents), _same_if_equal(before.sets, sets))

    def _place(self, local: LocalPod) -> tuple[_Chain | None, _Chain | None]:
        return self._chain(local, EGRESS), self._chain(local, INGRESS)

    def _chain(self, local: LocalPod, direction: str) -> _Chain | None:
        """Returns a pod's chain, which others may have, too; None if no policy isolates the pod in this direction."""
        group = self._group(local, direction)
        if group is None:
            return None
        chain = self._chains.get(group.chain_name())
        if chain is None or chain.group != group:
            chain = _Chain(group, self._selection.peer_sets)
            self._chains[chain.name] = chain
        return chain

    def _group(self, local: LocalPod, direction: str) -> Group | None:
        if local.pod is None:
            policies = self._selection.policies.get(local.namespace, {}).values()
            return Group(direction, ()) if any(policy.rules(direction) is not None for policy in policies) else None
        selecting = [local.policies[name] for name in sorted(local.policies)]
        isolating = tuple(policy for policy in selecting if policy.rules(direction) is not None)
        if not isolating:
            return None
        versions = tuple(sorted({address.version for address in local.addresses}))
        ports = _ports_named(isolating, local.pod.ports) if direction == INGRESS else ()
        return Group(direction, isolating, versions, ports)


def _ports_named(policies: Iterable[Policy], ports: tuple[NamedPort, ...]) -> tuple[NamedPort, ...]:
    """Returns those of a pod's named ports that ingress rules name."""
    if not ports:
        return ()
    rules = [rule for policy in policies for rule in policy.ingress or ()]
    names = {(port.name, port.protocol) for rule in rules for port in rule.ports or ()}
    return tuple(sorted(port for port in ports if (port.name, port.protocol) in names))


def _same_if_equal(before: Mapping[str, V], after: Mapping[str, V]) -> Mapping[str, V]:
    """Returns `before` if it has the same objects as `after`."""
    is_same = before.keys() == after.keys() and all(before[name] is value for name, value in after.items())
    return before if is_same else after


def _block_ranges(blocks: Iterable[IpBlock]) -> list[_Range]:
    """Returns the addresses of blocks of one IP version, without the exceptions of each, as disjoint ranges."""
    ranges = []
    for block in blocks:
        first, last = int(block.network.network_address), int(block.network.broadcast_address)
        holes = [each for each in block.excepts if each.version == block.network.version]
        for start, end in _merge((int(hole.network_address), int(hole.broadcast_address)) for hole in holes):
            if first < start and first <= last:
                ranges.append((first, min(start - 1, last)))
            first = max(first, end + 1)
        if first <= last:
            ranges.append((first, last))
    return _merge(ranges)


def _merge(ranges: Iterable[_Range]) -> list[_Range]:
    """Returns ranges as disjoint ones in order, those that touch as one."""
    merged: list[_Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
