"""The changes that make the existing objects equal to the plan. This module is pure.

Objects are added before others are deleted, and an object that the plan has is replaced, never deleted and added again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent.route_plan import Kind, Objects, Plan, Value
from kernel.protocol_route import Hop, Prefix


class Change(NamedTuple):
    """A change of one object; `value` None deletes it."""

    kind: Kind
    key: bytes
    value: Value | None


class Comparison:
    """Compares plans with the existing objects; nothing is changed for the networks in `frozen`."""

    def __init__(self, existing: Objects, frozen: Iterable[Prefix], tunnel: int) -> None:
        self._existing = existing
        self._kept = set(frozen)
        self._tunnel = tunnel
        self._additions: list[Change] = []
        self._desired: tuple[set[bytes], ...] = tuple(set() for _ in Kind)

    def add(self, plan: Plan) -> None:
        """Adds the plan for one node."""
        self._kept.update(plan.kept)
        for kind in Kind:
            existing, desired = self._existing[kind], self._desired[kind]
            for key, value in plan.objects[kind].items():
                desired.add(key)
                if existing.get(key) != value:
                    self._additions.append(Change(kind, key, value))

    def changes(self, candidates: Iterable[Iterable[bytes]]) -> list[Change]:
        """Returns the changes; deletes those of the `candidates` (keys by kind) that no plan has."""
        kept = self._kept_keys()
        additions = [change for change in self._additions if change.key not in kept[change.kind]]
        additions.sort(key=lambda change: change.kind)
        deletions = [
            Change(kind, key, None)
            for kind, keys in zip(Kind, candidates, strict=True)
            for key in keys
            if key in self._existing[kind] and key not in self._desired[kind] and key not in kept[kind]
        ]
        return additions + deletions[::-1]

    def _kept_keys(self) -> tuple[set[bytes], ...]:
        """Returns the objects by kind that belong to the networks for which nothing is changed."""
        kept = tuple(set[bytes]() for _ in Kind)
        for network in self._kept:
            kept[Kind.ROUTE].add(network)
            kept[Kind.UNREACHABLE].add(network)
            kept[Kind.ADDRESS].add(network[:-1] + bytes((8 * (len(network) - 1),)))
            hop = self._existing[Kind.ROUTE].get(network)
            if isinstance(hop, Hop) and hop.ifindex == self._tunnel and hop.gateway:
                kept[Kind.NEIGHBOUR].add(hop.gateway)
                mac = self._existing[Kind.NEIGHBOUR].get(hop.gateway)
                if isinstance(mac, bytes):
                    kept[Kind.FORWARDING].add(mac)
        return kept
