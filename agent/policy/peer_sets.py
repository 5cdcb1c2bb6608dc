"""The elements of the sets that rules name: the addresses of the pods that a peer selects.

One rule: a pod's change costs only the sets that contain it. An index finds these by one label that all pods of a set
have, so a set that does not concern the pod is, as a rule, not even compared.

A set exists while a policy in use has its key. Sets are changed in place; `take_changes` returns the differences. It
deletes the sets that became unused: one that is used again before is the same object, and no difference is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.policy.evaluator import selects
from agent.policy.filter_table import Element, SetChange
from agent.policy.objects import EGRESS, ClusterPod, Namespace, PodPeer, Rule
from agent.policy.selector import Selector
from cni.address import Address

# In rules without peers: all pods of the cluster, also while their namespace is not known.
EVERY_POD = PodPeer("", None, Selector())
_ALL = ""  # the index's place for peers that select pods of several namespaces

_Anchor = tuple[str, str, str | None]


class SetKey(NamedTuple):
    """A set: the addresses of a peer's pods, or, with `port_name`, each with the numbers of its ports of this name."""

    peer: PodPeer
    port_name: str = ""
    protocol: str = ""


def set_keys(rule: Rule, direction: str) -> Iterator[SetKey]:
    """Yields the keys of the sets that a rule names: of its peers and, as egress, of its peers' named ports."""
    peers = [peer for peer in rule.peers or () if isinstance(peer, PodPeer)]
    named = [port for port in rule.ports or () if port.name] if direction == EGRESS else []
    if rule.ports is None or len(named) < len(rule.ports):
        yield from map(SetKey, peers)
    for port in named:
        for peer in [EVERY_POD] if rule.peers is None else peers:
            yield SetKey(peer, port.name, port.protocol)


class PeerSet:
    """The elements of one key by IP version, and the changes since they were last taken."""

    def __init__(self, key: SetKey) -> None:
        self.key = key
        self.elements: dict[int, set[Element]] = {4: set(), 6: set()}
        self.changes: dict[int, tuple[set[Element], set[Element]]] = {}

    def selects(self, pod: ClusterPod, namespaces: Mapping[str, Namespace]) -> bool:
        """Returns whether the peer selects a pod."""
        if self.key.peer == EVERY_POD:
            return pod.can_have_policies
        return selects(self.key.peer, pod, namespaces)

    def elements_of(self, address: Address, pod: ClusterPod) -> Iterator[Element]:
        """Yields the elements of a pod that is selected."""
        if not self.key.port_name:
            yield address
        for port in pod.ports if self.key.port_name else ():
            if (port.name, port.protocol) == (self.key.port_name, self.key.protocol):
                yield address, port.number

    def add(self, version: int, element: Element) -> None:
        """Adds an element."""
        self.elements[version].add(element)
        added, removed = self.changes.setdefault(version, (set(), set()))
        removed.discard(element) if element in removed else added.add(element)

    def remove(self, version: int, element: Element) -> None:
        """Removes an element, which must be there."""
        self.elements[version].remove(element)
        added, removed = self.changes.setdefault(version, (set(), set()))
        added.discard(element) if element in added else removed.add(element)


class PeerSets:
    """All sets in use, from the caller's mappings, which it changes: namespaces, and the pods that have addresses.

    `members` yields those of the latter in one namespace that a selector matches, at least, and some of them twice.
    """

    def __init__(
        self,
        namespaces: Mapping[str, Namespace],
        owners: Mapping[Address, ClusterPod],
        members: Callable[[str, Selector], Iterable[tuple[Address, ClusterPod]]],
    ) -> None:
        self._namespaces, self._owners, self._members = namespaces, owners, members
        self._sets: dict[SetKey, PeerSet] = {}
        self._uses: Counter[SetKey] = Counter()
        self._index: dict[_Anchor, list[PeerSet]] = {}
        self._changed: set[PeerSet] = set()
        self._unused: set[SetKey] = set()

    def __len__(self) -> int:
        return len(self._sets)

    def elements(self, key: SetKey, version: int) -> set[Element]:
        """Returns the elements of a set in use; it is the same object for as long as the set is used."""
        return self._sets[key].elements[version]

    def take_changes(self) -> dict[tuple[SetKey, int], SetChange]:
        """Returns the differences of the sets since the last call, by key and IP version; deletes unused sets."""
        for key in self._unused:
            self._delete(key)
        self._unused.clear()
        changes = {
            (peer_set.key, version): SetChange(added, removed)
            for peer_set in self._changed
            for version, (added, removed) in peer_set.changes.items()
            if added or removed
        }
        for peer_set in self._changed:
            peer_set.changes = {}
        self._changed.clear()
        return changes

    def use(self, keys: Iterable[SetKey]) -> None:
        """Counts a use of each key; creates the sets that are new, which costs a pass over the pods they may have."""
        for key in keys:
            self._uses[key] += 1
            self._unused.discard(key)
            if key not in self._sets:
                peer_set = self._sets[key] = PeerSet(key)
                for anchor in _anchors(key.peer):
                    self._index.setdefault(anchor, []).append(peer_set)
                self._fill(peer_set)

    def release(self, keys: Iterable[SetKey]) -> None:
        """Ends a use of each key."""
        for key in keys:
            self._uses[key] -= 1
            if not self._uses[key]:
                self._unused.add(key)

    def move(self, address: Address, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """Changes the sets for an address that had the pod `old` and has `new`."""
        if old and new and _decisive(old) == _decisive(new):
            return
        before, after = (set(self._places(address, pod)) for pod in (old, new))
        for peer_set, element in before - after:
            self._changed.add(peer_set)
            peer_set.remove(address.version, element)
        for peer_set, element in after - before:
            self._changed.add(peer_set)
            peer_set.add(address.version, element)

    def change_namespace(self, name: str, change: Callable[[], None]) -> None:
        """Calls `change`, which changes a namespace's labels; adds its pods to the sets that now select it, and so on.

        A selector of namespaces is compared once, so the pods of other selectors' sets are not looked at.
        """
        by_namespace = [peer_set for peer_set in self._sets.values() if peer_set.key.peer.namespaces is not None]
        before = [self._has_namespace(peer_set, name) for peer_set in by_namespace]
        change()
        for peer_set, had_namespace in zip(by_namespace, before, strict=True):
            has_namespace = self._has_namespace(peer_set, name)
            if has_namespace != had_namespace:
                self._changed.add(peer_set)
                self._set_namespace(peer_set, name, is_added=has_namespace)

    def _delete(self, key: SetKey) -> None:
        del self._uses[key]
        peer_set = self._sets.pop(key)
        self._changed.discard(peer_set)
        for anchor in _anchors(key.peer):
            self._index[anchor].remove(peer_set)
            if not self._index[anchor]:
                del self._index[anchor]

    def _fill(self, peer_set: PeerSet) -> None:
        """Adds the elements of a new set: namespace by namespace, or, if most are selected, from all pods."""
        peer, namespaces = peer_set.key.peer, self._namespaces
        names = {peer.namespace}
        if peer.namespaces is not None:
            names = {name for name, each in namespaces.items() if peer.namespaces.matches(each.labels)}
        is_every = peer == EVERY_POD
        if is_every or 2 * len(names) > len(namespaces):
            pods: Iterable[tuple[Address, ClusterPod]] = self._owners.items()
        else:
            pods = (member for name in names for member in self._members(name, peer.pods))
        selected = (
            (address, pod)
            for address, pod in pods
            if (is_every or pod.namespace in names) and peer.pods.matches(pod.labels) and pod.can_have_policies
        )
        elements = peer_set.elements
        for address, pod in selected:
            if peer_set.key.port_name:
                elements[address.version].update(peer_set.elements_of(address, pod))
            else:  # a short way: there may be 100,000
                elements[address.version].add(address)

    def _set_namespace(self, peer_set: PeerSet, name: str, *, is_added: bool) -> None:
        change = peer_set.add if is_added else peer_set.remove
        selector = peer_set.key.peer.pods
        members = dict(self._members(name, selector))
        for address, pod in members.items():
            if pod.can_have_policies and selector.matches(pod.labels):
                for element in peer_set.elements_of(address, pod):
                    change(address.version, element)

    def _has_namespace(self, peer_set: PeerSet, name: str) -> bool:
        namespace, selector = self._namespaces.get(name), peer_set.key.peer.namespaces
        return namespace is not None and selector is not None and selector.matches(namespace.labels)

    def _places(self, address: Address, pod: ClusterPod | None) -> Iterator[tuple[PeerSet, Element]]:
        if pod is None or not self._index:
            return
        pairs = [("", None), *((key, None) for key in pod.labels), *pod.labels.items()]
        for place in (pod.namespace, _ALL):
            for key, value in pairs:
                for peer_set in self._index.get((place, key, value), ()):
                    if peer_set.selects(pod, self._namespaces):
                        for element in peer_set.elements_of(address, pod):
                            yield peer_set, element


def _decisive(pod: ClusterPod) -> tuple[object, ...]:
    return pod.namespace, pod.labels, pod.ports, pod.can_have_policies


def _anchors(peer: PodPeer) -> list[_Anchor]:
    """Returns the places of a peer in the index: its namespace, or all, with one label that its pods have."""
    return [(peer.namespace or _ALL, key, value) for key, value in peer.pods.anchors()]
