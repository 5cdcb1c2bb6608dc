"""Reads the existing nftables rules of host ports, and their owners.

It changes nothing, and does not decode irrelevant rules, since a host may have a thousand host ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kernel.netfilter import nft, nft_rule
from kernel.netfilter.nft import Chain, NftRule, NftSocket
from plugins.portmap import nftables_rules as rules
from plugins.portmap.conf import HostPorts
from plugins.portmap.nftables_rules import CHAINS
from plugins.portmap.port_conflicts import ForeignRule
from process.values import dataclass


@dataclass(frozen=True)
class LocatedRule:
    """A rule and its chain."""

    chain: Chain
    rule: NftRule


class TableReader:
    """Reads the tables of one or both IP versions; reads the chains once. Every method may raise KernelError."""

    def __init__(self, socket: NftSocket, versions: Iterable[int] = CHAINS) -> None:
        self._socket = socket
        chains = [chain for version in versions for chain in CHAINS[version]]
        self._chains = dict(zip(chains, nft.get_chains(socket, *chains), strict=True))

    def has(self, chain: Chain) -> bool:
        """Returns whether the chain exists with the expected hook."""
        return self._chains[chain] == chain

    def has_name(self, chain: Chain) -> bool:
        """Returns whether a chain with this name exists, with any hook."""
        return self._chains[chain] is not None

    def use_count(self, chain: Chain) -> int:
        """Returns the number of rules in a chain plus the number of rules that jump to it."""
        existing = self._chains[chain]
        return existing.uses if existing else 0

    def list_rules(self, chain: Chain, predicate: str | Callable[[bytes], object] = "") -> list[NftRule]:
        """Returns the rules of a chain that match `predicate`, as nft.list_rules does."""
        return nft.list_rules(self._socket, chain, predicate) if self.use_count(chain) else []

    def list_matching(self, chains: Iterable[Chain], predicate: Callable[[bytes], object]) -> list[LocatedRule]:
        """Returns the rules of several chains whose messages match `predicate`, in order."""
        return [LocatedRule(chain, rule) for chain in chains for rule in self.list_rules(chain, predicate)]

    def list_attachment_rules(self, host_ports: HostPorts, chains: Iterable[Chain]) -> list[LocatedRule]:
        """Returns the attachment's rules in these chains."""
        comment = rules.comment(host_ports.container_id).encode()
        candidates = self.list_matching(chains, lambda message: comment in message)
        return [located for located in candidates if rules.belongs_to(located.rule, host_ports)]

    def list_candidates(self, host_ports: HostPorts, version: int) -> list[LocatedRule]:
        """Returns the rules of the port chains that name the container or match one of its ports, in order."""
        ports = {mapping.host_port.to_bytes(2, "big") for mapping in host_ports.mappings_for(version)}
        comment = rules.comment(host_ports.container_id).encode()

        def is_candidate(message: bytes) -> bool:
            return comment in message or not ports.isdisjoint(nft_rule.compared_byte_pairs(message))

        return self.list_matching(rules.port_chains(version), is_candidate)


def foreign_rules(
    candidates: Sequence[LocatedRule], host_ports: HostPorts, version: int
) -> list[tuple[int, ForeignRule]]:
    """Returns the rules of other containers among `candidates`, each with its index."""
    destinations = rules.condition_destinations(host_ports, version)
    rules_by_index = (
        (index, rules.foreign_rule(located.rule, host_ports, destinations)) for index, located in enumerate(candidates)
    )
    return [(index, foreign) for index, foreign in rules_by_index if foreign]
