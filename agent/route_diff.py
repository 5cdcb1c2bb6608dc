"""The changes that make the existing objects equal to the plan. This module is pure.

Objects are added before others are deleted, and an object that the plan has is replaced, never deleted and added again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent.route_plan import ObjectKind, Objects, ObjectValue, Plan, host_prefix
from kernel.protocol_route import NextHop, Prefix


class ObjectChange(NamedTuple):
    """A change of one object; `value` None deletes it."""

    kind: ObjectKind
    key: bytes
    value: ObjectValue | None


class RouteDiff:
    """Compares plans with the existing objects; changes nothing for the networks `unchanged`."""

    def __init__(self, existing: Objects, unchanged: Iterable[Prefix], tunnel_ifindex: int) -> None:
        self._existing = existing
        self._unchanged = set(unchanged)
        self._tunnel_ifindex = tunnel_ifindex
        self._additions: list[ObjectChange] = []
        self._desired: tuple[set[bytes], ...] = tuple(set() for _ in ObjectKind)

    def add(self, plan: Plan) -> None:
        """Adds the plan for one node."""
        self._unchanged.update(plan.unchanged)
        for kind in ObjectKind:
            existing, desired = self._existing[kind], self._desired[kind]
            for key, value in plan.objects[kind].items():
                desired.add(key)
                if existing.get(key) != value:
                    self._additions.append(ObjectChange(kind, key, value))

    def changes(self, candidates: Iterable[Iterable[bytes]]) -> list[ObjectChange]:
        """Returns the changes: additions, then deletions of those `candidates` (keys by kind) that no plan has."""
        unchanged = self._unchanged_keys()
        additions = [change for change in self._additions if change.key not in unchanged[change.kind]]
        additions.sort(key=lambda change: change.kind)
        deletions = [
            ObjectChange(kind, key, None)
            for kind, keys in zip(ObjectKind, candidates, strict=True)
            for key in keys
            if key in self._existing[kind] and key not in self._desired[kind] and key not in unchanged[kind]
        ]
        return additions + deletions[::-1]

    def _unchanged_keys(self) -> tuple[set[bytes], ...]:
        """Returns the keys by kind of the objects that belong to the networks for which nothing is changed."""
        keys = tuple(set[bytes]() for _ in ObjectKind)
        for network in self._unchanged:
            keys[ObjectKind.ROUTE].add(network)
            keys[ObjectKind.UNREACHABLE].add(network)
            keys[ObjectKind.ADDRESS].add(host_prefix(network))
            hop = self._existing[ObjectKind.ROUTE].get(network)
            if isinstance(hop, NextHop) and hop.ifindex == self._tunnel_ifindex and hop.gateway:
                keys[ObjectKind.NEIGHBOUR].add(hop.gateway)
                mac = self._existing[ObjectKind.NEIGHBOUR].get(hop.gateway)
                if isinstance(mac, bytes):
                    keys[ObjectKind.FORWARDING].add(mac)
        return keys
