"""Computes the desired packet filter of this node from the selection.

One rule: names are hashes, so that pods share equal sets and chains, and an agent that restarts computes the names that
are in the kernel. The hash of a set of pods is that of its selector, which stays the same while pods come and go; of a
chain, that of its subject, IP versions and named ports; of a set of address blocks or port ranges, that of its content.

An unchanged part of the table stays the same Python object, and the filter skips it.
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
from attachment.policy.table import ChainSubject

_Range = tuple[int, int]
V = TypeVar("V")


class Group(NamedTuple):
    """The pods of a namespace that share a chain, by the facts that determine its rules.

    Without policies these are the pods whose objects are unknown, and the chain drops everything.

    `versions` are the IP versions of the pods' addresses. `ports` are the pods' named ports that ingress rules use.
    """

    direction: str
    namespace: str
    policies: tuple[Policy, ...] = ()
    versions: tuple[int, ...] = ()
    ports: tuple[NamedPort, ...] = ()

    def chain_name(self) -> str:
        """Returns the name of the chain, which does not depend on the rules of the policies."""
        return f"{self.direction[0]}-{digest((self.subject(), self.versions, self.ports))}"

    def subject(self) -> ChainSubject:
        """Returns the subject of the chain."""
        return ChainSubject(self.direction, self.namespace, tuple(policy.name for policy in self.policies))


class _Chain:
    """The chain of a group: its rules, and the sets that they name. Sets of peers change in place, others never."""

    def __init__(self, group: Group, peer_sets: PeerSets) -> None:
        self.group, self.name = group, group.chain_name()
        self._peer_sets = peer_sets
        self._added_sets: dict[str, Set[Element]] = {}
        rules = [each for policy in group.policies for each in policy.rules(group.direction) or ()]
        filter_rules = tuple(dict.fromkeys(each for rule in rules for each in self._filter_rules(rule)))
        self.content = ChainContent(group.subject(), filter_rules)
        names = {name for rule in filter_rules for name in (rule.peer_set, rule.port_set, rule.pair_set) if name}
        # A port set may remain unused: that of a rule whose peers have no address of the IP versions of these pods.
        self.sets = {name: self._added_sets[name] for name in names}

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
                name = self._add_peer_set(SetKey(version, peer, port.name, port.protocol))
                yield AcceptRule(version=version, protocol=port.protocol, pair_set=name)

    def _peer_rules(self, peers: tuple[Peer, ...] | None) -> Iterator[AcceptRule]:
        if peers is None:
            yield AcceptRule()
            return
        for version in self.group.versions:
            for peer in peers:
                if isinstance(peer, PodPeer):
                    yield AcceptRule(version, self._add_peer_set(SetKey(version, peer)))
            ranges = _block_ranges(
                each for each in peers if isinstance(each, IpBlock) and each.network.version == version
            )
            if ranges:
                address = IPv4Address if version == 4 else IPv6Address
                addresses = frozenset((address(first), address(last)) for first, last in ranges)
                yield AcceptRule(version, self._add_constant_set(f"b{version}", ranges, addresses))

    def _port_rules(self, ports: tuple[PortRange, ...] | None) -> Iterator[AcceptRule]:
        if ports is None:
            yield AcceptRule()
        for protocol in sorted({port.protocol for port in ports or ()}):
            of_protocol = (port for port in ports or () if port.protocol == protocol)
            ranges = _merge(each for port in of_protocol for each in self._port_ranges(port))
            if ranges == [(0, LAST_PORT)]:
                yield AcceptRule(protocol=protocol)
            elif len(ranges) == 1:
                yield AcceptRule(protocol=protocol, ports=ranges[0])
            elif ranges:
                yield AcceptRule(protocol=protocol, port_set=self._add_constant_set("t", ranges, frozenset(ranges)))

    def _port_ranges(self, port: PortRange) -> list[_Range]:
        """Returns a port as ranges: for a name the group's ports, as egress none (`_pair_rules` handles names)."""
        if not port.name:
            return [(port.first, port.last)]
        key = (port.name, port.protocol)
        return [(each.number, each.number) for each in self.group.ports if (each.name, each.protocol) == key]

    def _add_peer_set(self, key: SetKey) -> str:
        peer_set = self._peer_sets.ensure(key)
        self._added_sets[peer_set.name] = peer_set.elements
        return peer_set.name

    def _add_constant_set(self, kind: str, ranges: list[_Range], elements: frozenset[Element]) -> str:
        name = f"{kind}-{digest(tuple(ranges))}"
        self._added_sets[name] = elements
        return name


class FilterPlan:
    """Computes the table, and recomputes the parts that changes of the selection affect."""

    def __init__(self, selection: PolicySelection) -> None:
        self._selection = selection
        self._table = EMPTY
        self._chains_of_pods: dict[LocalPod, tuple[_Chain | None, _Chain | None]] = {}  # egress, ingress
        self._chains: dict[str, _Chain] = {}

    def update(self) -> tuple[FilterTable, Mapping[str, SetChange]]:
        """Returns the table, and the differences of the sets that changed in place since the last call.

        Each difference is returned once: a caller that fails to apply one must compare the whole next table.
        """
        changed = self._selection.take_changes()
        if changed:
            self._compute(changed)
            self._selection.peer_sets.delete_others(self._table.sets)
        return self._table, self._selection.peer_sets.take_changes()

    def _compute(self, changed: set[LocalPod]) -> None:
        self._chains_of_pods = {
            local: (self._chain(local, EGRESS), self._chain(local, INGRESS))
            if local in changed
            else self._chains_of_pods[local]
            for local in self._selection.local.values()
        }
        verdicts = {
            address: Verdict(egress.name if egress else "", ingress.name if ingress else "")
            for local, (egress, ingress) in self._chains_of_pods.items()
            if egress or ingress
            for address in local.addresses
        }
        self._chains = {chain.name: chain for chains in self._chains_of_pods.values() for chain in chains if chain}
        contents = {name: chain.content for name, chain in self._chains.items()}
        sets = {name: elements for chain in self._chains.values() for name, elements in chain.sets.items()}
        before = self._table
        self._table = FilterTable(verdicts, _reuse_if_same(before.chains, contents), _reuse_if_same(before.sets, sets))

    def _chain(self, local: LocalPod, direction: str) -> _Chain | None:
        """Returns a pod's chain, which other pods may share; None if no policy isolates the pod in this direction."""
        group = self._group(local, direction)
        if group is None:
            return None
        chain = self._chains.get(group.chain_name())
        if chain is None or chain.group != group:
            chain = _Chain(group, self._selection.peer_sets)
            self._chains[chain.name] = chain
        return chain

    def _group(self, local: LocalPod, direction: str) -> Group | None:
        if self._selection.is_isolated_as_unknown(local, direction):
            return Group(direction, local.namespace)
        selecting = [local.policies[name] for name in sorted(local.policies)]
        isolating = tuple(policy for policy in selecting if policy.rules(direction) is not None)
        if not isolating or local.pod is None:
            return None
        versions = tuple(sorted({address.version for address in local.addresses}))
        ports = _used_ports(isolating, local.pod.ports) if direction == INGRESS else ()
        return Group(direction, local.namespace, isolating, versions, ports)


def _used_ports(policies: Iterable[Policy], ports: tuple[NamedPort, ...]) -> tuple[NamedPort, ...]:
    """Returns the ports of a pod that ingress rules of the policies name."""
    if not ports:
        return ()
    rules = [rule for policy in policies for rule in policy.ingress or ()]
    names = {(port.name, port.protocol) for rule in rules for port in rule.ports or ()}
    return tuple(sorted(port for port in ports if (port.name, port.protocol) in names))


def _reuse_if_same(before: Mapping[str, V], after: Mapping[str, V]) -> Mapping[str, V]:
    """Returns `before` if it has the same Python objects as `after`, else `after`."""
    is_same = before.keys() == after.keys() and all(before[name] is value for name, value in after.items())
    return before if is_same else after


def _block_ranges(blocks: Iterable[IpBlock]) -> list[_Range]:
    """Returns the addresses of blocks of one IP version as disjoint ranges; a block's exceptions affect only itself."""
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
    """Returns disjoint ranges in order; joins ranges that overlap or are adjacent."""
    merged: list[_Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
