"""The cluster's networks in the chains PODWIRE-CLUSTER of iptables-legacy, by its programs.

iptables-legacy replaces the whole table at once, so no packet sees a state between. A program takes milliseconds, more
with a large table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from attachment.masquerade.names import CLUSTER_CHAIN, ENTRY
from cni.address import Network
from kernel.netfilter import iptables
from kernel.netfilter.iptables_accept import accept_rule
from kernel.netfilter.iptables_chains import TABLE, apply_plan
from kernel.netfilter.iptables_program import RefusedError
from kernel.netfilter.iptables_rule import ChainList, IptablesChange, IptablesRule

Networks = frozenset[Network]

_DESCRIPTION = f"change the cluster's networks in chain {CLUSTER_CHAIN}"


class LegacyChains:
    """The chains of both IP versions, as far as iptables-legacy has created table `nat` and its programs exist."""

    def __init__(self) -> None:
        self._tables: list[int] = []  # the families that have the table
        self._usable: list[int] = []  # those of them with a program
        self._filled: list[int] = []  # those of them with the chain, at the last comparison

    def compare(self, get_desired: Callable[[], Networks], create: Collection[int] = ()) -> int:
        """Makes the chains accept exactly the networks; returns the number of changed rules.

        Creates missing chains of the families in `create`. Runs a program for each family with a table. Raises the
        errors of kernel.netfilter.iptables.apply.
        """
        numbers: dict[int, int] = {}

        def plan(family: int, listing: ChainList) -> list[IptablesChange]:
            new = [] if CLUSTER_CHAIN in listing.chains else [IptablesChange.new_chain(CLUSTER_CHAIN)]
            numbers.pop(family, None)
            if new and family not in create:
                return []
            existing = listing.rules(CLUSTER_CHAIN)
            missing = dict.fromkeys(_rules(get_desired(), family))
            # The first rule of a network stays.
            deletions = [IptablesChange.delete(rule) for rule in existing if missing.pop(rule, "") is not None]
            changes = [*map(IptablesChange.append, missing), *deletions]
            numbers[family] = len(changes)
            return new + changes

        families = self._get_families()
        if families:
            apply_plan(TABLE, partial(_read, families), plan, _DESCRIPTION, legacy=True)
        self._filled = list(numbers)
        return sum(numbers.values())

    def change(self, added: Networks, removed: Networks) -> int:
        """Applies a difference to the chains of the last comparison; returns the number of changed rules.

        Raises RefusedError if a chain has changed since, otherwise as `compare`.
        """
        changes = {
            family: [
                *map(IptablesChange.append, _rules(added, family)),
                *map(IptablesChange.delete, _rules(removed, family)),
            ]
            for family in self._filled
        }
        iptables.apply(changes, TABLE, _DESCRIPTION, legacy=True)
        return sum(map(len, changes.values()))

    def remove(self) -> list[str]:
        """Deletes the chains to which no rule refers; returns the names of the others. Raises as `compare`."""
        remaining = []
        families = self._get_families()
        for family, listing in _read(families).items() if families else ():
            if CLUSTER_CHAIN in listing.chains:
                try:
                    changes = [IptablesChange.flush_chain(CLUSTER_CHAIN), IptablesChange.delete_chain(CLUSTER_CHAIN)]
                    iptables.apply({family: changes}, TABLE, f"delete chain {CLUSTER_CHAIN}", legacy=True)
                except RefusedError:
                    remaining.append(f"chain {TABLE} {CLUSTER_CHAIN} ({iptables.TOOLS[family]}-legacy)")
        return remaining

    def _get_families(self) -> list[int]:
        """Returns the families that can be changed; reports a missing program on stderr once."""
        tables = [family for family in iptables.FAMILIES if iptables.has_legacy(family, TABLE)]
        if tables != self._tables:
            self._tables, self._usable = tables, iptables.get_legacy_families(TABLE)
        return self._usable


def _read(families: list[int]) -> dict[int, ChainList]:
    return iptables.read(families, TABLE, [ENTRY, CLUSTER_CHAIN], legacy=True)


def _rules(networks: Networks, family: int) -> list[IptablesRule]:
    return [accept_rule(CLUSTER_CHAIN, network) for network in networks if network.version == family]
