"""Which rules of host ports are there, and whose they are.

One rule: nothing is changed, and what cannot matter is not decoded, since a host may have a thousand host ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kernel.netfilter import nft, nft_rule
from kernel.netfilter.nft import Chain, NftSocket, Rule
from plugins.portmap import nftables_rules as rules
from plugins.portmap.nftables_rules import CHAINS
from plugins.portmap.port_conflicts import Claim
from plugins.portmap.spec import HostPorts
from process.values import dataclass


@dataclass(frozen=True)
class Placed:
    """A rule where it stands."""

    chain: Chain
    rule: Rule


class Look:
    """One look at the tables of both IP versions, or of some; raises KernelError everywhere."""

    def __init__(self, socket: NftSocket, versions: Iterable[int] = CHAINS) -> None:
        self._socket = socket
        chains = [chain for version in versions for chain in CHAINS[version]]
        self._found = dict(zip(chains, nft.get_chains(socket, *chains), strict=True))

    def has(self, chain: Chain) -> bool:
        """Tells whether a chain is there, called as it should be."""
        return self._found[chain] == chain

    def is_there(self, chain: Chain) -> bool:
        """Tells whether there is a chain of that name."""
        return self._found[chain] is not None

    def uses(self, chain: Chain) -> int:
        """Returns how many rules a chain has and rules that lead to it."""
        found = self._found[chain]
        return found.uses if found else 0

    def rules(self, chain: Chain, wanted: str | Callable[[bytes], object] = "") -> list[Rule]:
        """Returns the `wanted` rules of a chain, as nft.rules does."""
        return nft.list_rules(self._socket, chain, wanted) if self.uses(chain) else []

    def placed(self, chains: Iterable[Chain], wanted: Callable[[bytes], object]) -> list[Placed]:
        """Returns the rules of several chains whose messages are `wanted`, in order."""
        return [Placed(chain, rule) for chain in chains for rule in self.rules(chain, wanted)]

    def own(self, wanted: HostPorts, chains: Iterable[Chain]) -> list[Placed]:
        """Returns the attachment's rules."""
        comment = rules.comment(wanted.container_id).encode()
        found = self.placed(chains, lambda message: comment in message)
        return [placed for placed in found if rules.is_of(placed.rule, wanted)]

    def candidates(self, wanted: HostPorts, version: int) -> list[Placed]:
        """Returns the rules of ports that are the container's or for one of its ports, in the order of their effect."""
        ports = {mapping.host_port.to_bytes(2, "big") for mapping in wanted.of(version)}
        comment = rules.comment(wanted.container_id).encode()

        def matters(message: bytes) -> bool:
            return comment in message or not ports.isdisjoint(nft_rule.compared_byte_pairs(message))

        return self.placed(rules.with_ports(version), matters)


def claims(candidates: Sequence[Placed], wanted: HostPorts, version: int) -> list[tuple[int, Claim]]:
    """Returns the claims of other containers, each with its rule's index."""
    targets = rules.own_targets(wanted, version)
    found = ((index, rules.claim_of(placed.rule, wanted, targets)) for index, placed in enumerate(candidates))
    return [(index, claim) for index, claim in found if claim]
