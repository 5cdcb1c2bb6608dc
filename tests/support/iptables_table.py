"""A table of iptables in memory, to which changes are applied as by iptables-restore."""

from collections.abc import Iterable

from kernel.netfilter.iptables_program import RefusedError
from kernel.netfilter.iptables_rule import ChainList, IptablesChange, IptablesRule


class Table:
    """The chains of a table with their rules as text; it begins with built-in chains."""

    def __init__(self, *builtin: str) -> None:
        self.chains: dict[str, list[str]] = {chain: [] for chain in builtin}

    @property
    def rules(self) -> list[IptablesRule]:
        """All rules, in the order of their chains."""
        return [IptablesRule(chain, spec) for chain, specs in self.chains.items() for spec in specs]

    def listing(self, *chains: str) -> ChainList:
        """Returns what iptables lists of these chains: those before the first missing one; without any, of all."""
        listed = list(chains or self.chains)
        missing = [chain for chain in listed if chain not in self.chains]
        existing = listed[: listed.index(missing[0])] if missing else listed
        return ChainList.of(existing, [IptablesRule(chain, spec) for chain in existing for spec in self.chains[chain]])

    def apply(self, changes: Iterable[IptablesChange]) -> None:
        """Applies changes in order; raises RefusedError for one that iptables-restore refuses."""
        for change in changes:
            self._apply(change.chain, change)

    def _apply(self, chain: str, change: IptablesChange) -> None:
        _require((change.verb == "-N") != (chain in self.chains))
        rules = self.chains.setdefault(chain, [])
        match change.verb:
            case "-A":
                rules.append(change.spec)
            case "-I":
                _require(change.position <= len(rules) + 1)
                rules.insert(change.position - 1, change.spec)
            case "-D":
                _require(change.spec in rules)
                rules.remove(change.spec)
            case "-F":
                rules.clear()
            case "-X":
                _require(not rules and not any(f" {chain}" in rule.spec for rule in self.rules))
                del self.chains[chain]
            case verb:
                assert verb == "-N"


def _require(condition: bool) -> None:
    if not condition:
        raise RefusedError(999, "refused")
