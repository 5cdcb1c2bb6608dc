"""Follows the elements of the sets that rules name: the addresses of the pods that a peer selects.

One rule: a pod's change costs as much as the sets that may contain the pod. An index finds these by a label that all
pods of a set have.

`FilterPlan` creates the sets that it needs, and deletes all others. Sets change in place; `take_changes` returns the
differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from agent.policy.evaluator import selects, selects_namespace
from agent.policy.filter_table import Element, SetChange
from agent.policy.objects import ClusterPod, Namespace, PodPeer
from agent.policy.selector import Selector
from cni.address import Address

_HASH_DIGITS = 24
_ANY_NAMESPACE = ""  # in the index: peers that select namespaces by labels

_Anchor = tuple[int, str, str, str | None]  # IP version, namespace, and a label that all pods of the set have


class SetKey(NamedTuple):
    """Identifies a set: the addresses of a peer's pods; with `port_name`, pairs of address and number of this port."""

    version: int
    peer: PodPeer
    port_name: str = ""
    protocol: str = ""

    def elements_of(self, address: Address, pod: ClusterPod) -> Iterable[Element]:
        """Returns the elements that a selected pod adds to the set."""
        if not self.port_name:
            return (address,)
        port_key = (self.port_name, self.protocol)
        return [(address, port.number) for port in pod.ports if (port.name, port.protocol) == port_key]


class PeerSet:
    """A set: its elements, and its name in the packet filter."""

    def __init__(self, key: SetKey) -> None:
        self.key = key
        self.name = f"{'p' if key.port_name else 's'}{key.version}-{digest(key)}"
        self.elements: set[Element] = set()


class PeerSets:
    """All sets in use.

    `namespaces` and `owners` (pods by address) are mappings that the caller changes. `owners_in` yields at least the
    items of `owners` that are pods of one namespace, some of them twice.
    """

    def __init__(
        self,
        namespaces: Mapping[str, Namespace],
        owners: Mapping[Address, ClusterPod],
        owners_in: Callable[[str], Iterable[tuple[Address, ClusterPod]]],
    ) -> None:
        self._namespaces, self._owners, self._owners_in = namespaces, owners, owners_in
        self._sets: dict[SetKey, PeerSet] = {}
        self._index: dict[_Anchor, list[PeerSet]] = {}
        self._changed: dict[PeerSet, set[Element]] = {}  # the elements that were added or removed

    def __len__(self) -> int:
        return len(self._sets)

    def ensure(self, key: SetKey) -> PeerSet:
        """Returns the set of a key; creates it if it is missing, which visits all pods that it may contain."""
        peer_set = self._sets.get(key)
        if peer_set is None:
            peer_set = self._sets[key] = PeerSet(key)
            for anchor in _anchors(key):
                self._index.setdefault(anchor, []).append(peer_set)
            of_pods = {pod.namespace for pod in self._owners.values()} if key.peer.namespaces == Selector() else ()
            names = {key.peer.namespace, *self._namespaces, *of_pods}
            selected = {name for name in names if selects_namespace(key.peer, name, self._namespaces)}
            peer_set.elements.update(self._elements(key, selected))
        return peer_set

    def delete_others(self, names: Collection[str]) -> None:
        """Deletes the sets with other names."""
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

    def change_owner(self, address: Address, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """Changes the sets that contain an address: its owner was `old`, and is now `new`."""
        if old and new and _compared_fields(old) == _compared_fields(new):
            return
        before, after = (set(self._memberships(address, pod)) for pod in (old, new))
        for peer_set, element in before - after:
            self._change(peer_set, element, is_added=False)
        for peer_set, element in after - before:
            self._change(peer_set, element, is_added=True)

    def change_namespace(self, name: str, new: Namespace | None) -> None:
        """Adds a namespace's pods to sets or removes them; call it before `namespaces` has its new object.

        It compares each selector of namespaces before and after, and visits pods only if the results differ.
        """
        after = {name: new} if new else {}
        for peer_set in self._sets.values():
            is_selected = selects_namespace(peer_set.key.peer, name, after)
            if is_selected != selects_namespace(peer_set.key.peer, name, self._namespaces):
                for element in set(self._elements(peer_set.key, {name})):
                    self._change(peer_set, element, is_added=is_selected)

    def _change(self, peer_set: PeerSet, element: Element, *, is_added: bool) -> None:
        """Adds or removes an element; two changes of one element cancel each other in the difference."""
        (peer_set.elements.add if is_added else peer_set.elements.remove)(element)
        changed = self._changed.setdefault(peer_set, set())
        changed ^= {element}

    def _elements(self, key: SetKey, namespaces: Collection[str]) -> Iterator[Element]:
        """Yields the elements of a set from namespaces that its peer selects; some twice."""
        pods: Iterable[tuple[Address, ClusterPod]] = self._owners.items()  # faster if most namespaces are selected
        if 2 * len(namespaces) <= len(self._namespaces):
            pods = chain.from_iterable(map(self._owners_in, namespaces))
        matches = key.peer.pods.matches
        for address, pod in pods:
            is_peer = pod.namespace in namespaces and matches(pod.labels) and pod.can_have_policies
            if is_peer and address.version == key.version:
                yield from key.elements_of(address, pod)

    def _memberships(self, address: Address, pod: ClusterPod | None) -> Iterator[tuple[PeerSet, Element]]:
        if pod is None or not self._index:
            return
        version, pairs = address.version, [("", None), *((key, None) for key in pod.labels), *pod.labels.items()]
        for namespace in (pod.namespace, _ANY_NAMESPACE):
            for key, value in pairs:
                for peer_set in self._index.get((version, namespace, key, value), ()):
                    if selects(peer_set.key.peer, pod, self._namespaces):
                        for element in peer_set.key.elements_of(address, pod):
                            yield peer_set, element


@lru_cache(maxsize=1 << 13)
def digest(content: tuple[object, ...]) -> str:
    """Returns the hash of values, as a part of a name in the packet filter."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:_HASH_DIGITS]


def _compared_fields(pod: ClusterPod) -> tuple[object, ...]:
    """Returns the fields of a pod that determine which sets contain it."""
    return pod.namespace, pod.labels, pod.ports, pod.can_have_policies


def _anchors(key: SetKey) -> list[_Anchor]:
    """Returns the keys of a set in the index."""
    return [(key.version, key.peer.namespace or _ANY_NAMESPACE, name, value) for name, value in key.peer.pods.anchors()]
