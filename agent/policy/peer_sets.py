"""The elements of the sets that rules name: the addresses of the pods that a peer selects.

One rule: a pod's change costs only the sets that contain it. An index finds these by one label that all pods of a set
have, so a set that does not concern the pod is, as a rule, not even compared.

The plan creates a set when it needs it, and says which ones it keeps. Sets are changed in place; `take_changes` returns
the differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from agent.policy.evaluator import selects
from agent.policy.filter_table import Element, SetChange
from agent.policy.objects import ClusterPod, Namespace, PodPeer
from cni.address import Address

_HASH_DIGITS = 24
_ALL = ""  # the index's place for peers that select pods of several namespaces

_Anchor = tuple[int, str, str, str | None]


class SetKey(NamedTuple):
    """A set: the addresses of a peer's pods, or, with `port_name`, each with the numbers of its ports of this name."""

    version: int
    peer: PodPeer
    port_name: str = ""
    protocol: str = ""

    def elements_of(self, address: Address, pod: ClusterPod) -> Iterable[Element]:
        """Returns the elements of a pod that is selected."""
        if not self.port_name:
            return (address,)
        port_key = (self.port_name, self.protocol)
        return [(address, port.number) for port in pod.ports if (port.name, port.protocol) == port_key]


class PeerSet:
    """The elements of a key, and the name of the set in the packet filter."""

    def __init__(self, key: SetKey) -> None:
        self.key = key
        self.name = f"{'p' if key.port_name else 's'}{key.version}-{digest(key)}"
        self.elements: set[Element] = set()


class PeerSets:
    """All sets in use.

    `namespaces` and `owners`, the pods by their addresses, are the caller's mappings. `members` yields, of
    the latter, at least those of one namespace, some of them twice.
    """

    def __init__(
        self,
        namespaces: Mapping[str, Namespace],
        owners: Mapping[Address, ClusterPod],
        members: Callable[[str], Iterable[tuple[Address, ClusterPod]]],
    ) -> None:
        self._namespaces, self._owners, self._members = namespaces, owners, members
        self._sets: dict[SetKey, PeerSet] = {}
        self._index: dict[_Anchor, list[PeerSet]] = {}
        self._changed: dict[PeerSet, set[Element]] = {}  # the elements that were added or removed

    def __len__(self) -> int:
        return len(self._sets)

    def get(self, key: SetKey) -> PeerSet:
        """Returns the set of a key; creates a new one, which costs a pass over the pods that it may have."""
        peer_set = self._sets.get(key)
        if peer_set is None:
            peer_set = self._sets[key] = PeerSet(key)
            for anchor in _anchors(key):
                self._index.setdefault(anchor, []).append(peer_set)
            names = (key.peer.namespace, *self._namespaces)
            selected = {name for name in names if self._selects_namespace(key.peer, name)}
            peer_set.elements.update(self._elements(key, selected))
        return peer_set

    def keep(self, names: Collection[str]) -> None:
        """Deletes all other sets."""
        for peer_set in [each for each in self._sets.values() if each.name not in names]:
            del self._sets[peer_set.key]
            self._changed.pop(peer_set, None)
            for anchor in _anchors(peer_set.key):
                self._index[anchor].remove(peer_set)
                if not self._index[anchor]:
                    del self._index[anchor]

    def take_changes(self) -> dict[str, SetChange]:
        """Returns the differences of the sets since the last call, by name."""
        changed, self._changed = self._changed, {}
        return {
            each.name: SetChange(elements & each.elements, elements - each.elements)
            for each, elements in changed.items()
            if elements
        }

    def move(self, address: Address, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """Changes the sets for an address that had the pod `old` and has `new`."""
        if old and new and _decisive(old) == _decisive(new):
            return
        before, after = (set(self._places(address, pod)) for pod in (old, new))
        for peer_set, element in before - after:
            self._change(peer_set, element, is_added=False)
        for peer_set, element in after - before:
            self._change(peer_set, element, is_added=True)

    def change_namespace(self, name: str, change: Callable[[], None]) -> None:
        """Calls `change`, which changes a namespace's labels; adds its pods to the sets that now select it, and so on.

        A selector of namespaces is compared once, so the pods of other selectors' sets are not looked at.
        """
        by_namespace = [peer_set for peer_set in self._sets.values() if peer_set.key.peer.namespaces is not None]
        before = [self._selects_namespace(peer_set.key.peer, name) for peer_set in by_namespace]
        change()
        for peer_set, was_selected in zip(by_namespace, before, strict=True):
            is_selected = self._selects_namespace(peer_set.key.peer, name)
            if is_selected != was_selected:
                for element in set(self._elements(peer_set.key, {name})):
                    self._change(peer_set, element, is_added=is_selected)

    def _change(self, peer_set: PeerSet, element: Element, *, is_added: bool) -> None:
        """Adds an element, or removes one that is there; one that was changed twice has no difference."""
        (peer_set.elements.add if is_added else peer_set.elements.remove)(element)
        changed = self._changed.setdefault(peer_set, set())
        changed ^= {element}

    def _elements(self, key: SetKey, namespaces: Collection[str]) -> Iterator[Element]:
        """Yields the elements of a set that are in these namespaces, all of which its peer selects; some twice."""
        pods: Iterable[tuple[Address, ClusterPod]] = self._owners.items()  # one pass, if they are most of all
        if 2 * len(namespaces) <= len(self._namespaces):
            pods = chain.from_iterable(map(self._members, namespaces))
        matches = key.peer.pods.matches
        for address, pod in pods:
            is_peer = pod.namespace in namespaces and matches(pod.labels) and pod.can_have_policies
            if is_peer and address.version == key.version:
                yield from key.elements_of(address, pod)

    def _selects_namespace(self, peer: PodPeer, name: str) -> bool:
        if peer.namespaces is None:
            return peer.namespace == name
        namespace = self._namespaces.get(name)
        return namespace is not None and peer.namespaces.matches(namespace.labels)

    def _places(self, address: Address, pod: ClusterPod | None) -> Iterator[tuple[PeerSet, Element]]:
        if pod is None or not self._index:
            return
        version, pairs = address.version, [("", None), *((key, None) for key in pod.labels), *pod.labels.items()]
        for place in (pod.namespace, _ALL):
            for key, value in pairs:
                for peer_set in self._index.get((version, place, key, value), ()):
                    if selects(peer_set.key.peer, pod, self._namespaces):
                        for element in peer_set.key.elements_of(address, pod):
                            yield peer_set, element


@lru_cache(maxsize=1 << 13)
def digest(content: tuple[object, ...]) -> str:
    """Returns a hash of values, for a name in the packet filter."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:_HASH_DIGITS]


def _decisive(pod: ClusterPod) -> tuple[object, ...]:
    return pod.namespace, pod.labels, pod.ports, pod.can_have_policies


def _anchors(key: SetKey) -> list[_Anchor]:
    """Returns the places of a set in the index: its namespace, or all, with one label that its pods have."""
    return [(key.version, key.peer.namespace or _ALL, name, value) for name, value in key.peer.pods.anchors()]
