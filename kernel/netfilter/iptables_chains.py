"""Container chains in table nat, as the reference plugins create them: one per container and network, and jumps to it.

This module lists and changes them with iptables' programs; kernel.netfilter.iptables_nft does the same over netlink.
Both treat a chain as a container's only if its name is the hash of network and container. A jump's comment names both,
but alone proves nothing.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from cni.errors import CniError
from kernel.netfilter import iptables, nft_rule
from kernel.netfilter.iptables_program import RefusedError
from kernel.netfilter.iptables_rule import COMMENT_MAX, ChainList, IptablesChange, IptablesRule
from kernel.netfilter.owned import IPTABLES, OwnedRule, repairable_error
from process.values import dataclass, field

TABLE = "nat"

_NAME_MAX = 28  # XT_EXTENSION_MAXNAMELEN - 1 (linux/netfilter/x_tables.h)
_TRIES = 10  # a try fails if another process changes a chain between read and write
_OWNER = re.compile(r'name: "([^"\\]+)" id: "([^"\\]+)"')

Plan = Callable[[int, ChainList], list[IptablesChange]]  # from a family and its listing to the changes to apply


@dataclass(frozen=True)
class ChainScheme:
    """The naming scheme of container chains.

    Chain `entry` has the jumps; names start with `start`, comments with `comment_start`.
    `what` is for messages: "masquerade", "host port". `jump_pattern` finds jumps to such chains in a rule's bytes.
    """

    entry: str
    start: str
    comment_start: str
    what: str
    jump_pattern: re.Pattern[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compiles the pattern once, at import."""
        object.__setattr__(self, "jump_pattern", nft_rule.jump_pattern(self.start))

    def is_name(self, chain: str) -> bool:
        """Returns whether a name is of this scheme: the start and hex digits."""
        digits = chain.removeprefix(self.start)
        return chain.startswith(self.start) and bool(digits) and not digits.strip("0123456789abcdef")

    def name(self, network: str, container_id: str) -> str:
        """Returns the name of a container's chain (FormatChainName of the reference plugins)."""
        return (self.start + hashlib.sha512((network + container_id).encode()).hexdigest())[:_NAME_MAX]

    def comment(self, network: str, container_id: str = "") -> str:
        """Returns the comment of a container's rules, or the start of the comments of a network's rules."""
        start = f'{self.comment_start}name: "{network}" id: '
        return (f'{start}"{container_id}"' if container_id else start)[:COMMENT_MAX]

    def proven_owner(self, text: str, chain: str) -> tuple[str, str] | None:
        """Returns the owner that a comment in `text` names, None if the name of `chain` does not prove it."""
        owner = parse_owner(text)
        return owner if owner and self.name(*owner) == chain else None


def parse_owner(text: str) -> tuple[str, str] | None:
    """Returns the network and the container that a comment in `text` names, None without them; it proves nothing."""
    owner = _OWNER.search(text)
    return (owner[1], owner[2]) if owner else None


def change(
    families: Collection[int], scheme: ChainScheme, chain: str, plan: Plan, description: str, shared: str = ""
) -> None:
    """Reads the entry chain and `chain`, applies the changes of `plan`, and retries if the rules changed in between.

    The listing also has the chain `shared`, if it is not "" and exists. Raises the errors of
    kernel.netfilter.iptables.apply.
    """
    names = [chain, shared] if shared else [chain]

    def read() -> dict[int, ChainList]:
        missing = iptables.get_missing_chains(families, TABLE, names)
        listings = {
            family: ChainList.of(name for name in names if name not in lacking) for family, lacking in missing.items()
        }
        present = [family for family, lacking in missing.items() if chain not in lacking]
        return listings | _read(present, scheme.entry, chain, shared)

    apply_plan(TABLE, read, plan, description)


def change_legacy(table: str, plan: Plan, description: str) -> None:
    """Applies a plan with iptables-legacy, in the families where it has created `table`; `plan` gets the whole table.

    Retries if the rules changed in between. Does nothing if the program is not installed.
    Raises the errors of kernel.netfilter.iptables.apply.
    """
    if families := iptables.get_legacy_families(table):
        apply_plan(table, lambda: iptables.read(families, table, legacy=True), plan, description, legacy=True)


def apply_plan(
    table: str, read: Callable[[], Mapping[int, ChainList]], plan: Plan, description: str, *, legacy: bool = False
) -> None:
    """Applies a plan's changes to the listings that `read` returns; retries if the rules changed in between."""
    for tries_left in reversed(range(_TRIES)):
        changes = {family: plan(family, listing) for family, listing in read().items()}
        try:
            iptables.apply(changes, table, description, legacy=legacy)
            return
        except RefusedError:
            if not tries_left:
                raise


def missing_error(description: str, what: str, version: int) -> CniError:
    """Returns (does not raise) CHECK's error for a missing chain or rule."""
    return repairable_error(f"{description}: {what} is missing in table {TABLE} ({iptables.TOOLS[version]})")


def compute_deletions(
    chains: Mapping[str, ChainScheme], listing: ChainList, stays: Callable[[IptablesRule], bool] = lambda jump: False
) -> list[IptablesChange]:
    """Returns the changes that delete the jumps to `chains`, and each chain with its last jump.

    Keeps jumps for which `stays` is true. A chain to which another rule jumps stays, empty, and is reported on stderr.
    """
    changes: list[IptablesChange] = []
    for chain, scheme in chains.items():
        jumps = [rule for rule in listing.rules(scheme.entry) if rule.target == chain]
        removed = [jump for jump in jumps if not stays(jump)]
        changes += map(IptablesChange.delete, removed)
        if len(removed) == len(jumps) and chain in listing.chains:
            changes.append(IptablesChange.flush_chain(chain))
            if set(listing.jumps_to(chain)) <= {scheme.entry}:
                changes.append(IptablesChange.delete_chain(chain))
            else:
                report_emptied_chain(chain)
    return changes


def gc_legacy(schemes: Iterable[ChainScheme], network: str, kept: AbstractSet[str]) -> None:
    """Deletes the jumps and chains of iptables-legacy that are the network's and not in `kept`; raises CniError.

    A jump is the network's if its comment names network and container and the name of its chain is the hash of both.
    A truncated comment proves nothing: such jumps stay, and their number is reported on stderr.
    """

    def plan(family: int, listing: ChainList) -> list[IptablesChange]:
        changes: list[IptablesChange] = []
        for scheme in schemes:
            start = scheme.comment(network)
            jumps = [jump for jump in listing.rules(scheme.entry) if jump.comment.startswith(start)]
            stale = [jump for jump in jumps if jump.target not in kept]
            chains = dict.fromkeys(jump.target for jump in stale if scheme.proven_owner(jump.comment, jump.target))
            if doubtful := sum(jump.target not in chains for jump in stale):
                report_unproven(doubtful, scheme, network)
            changes += compute_deletions(dict.fromkeys(chains, scheme), listing)
        return changes

    change_legacy(TABLE, plan, f"delete stale rules of network {network}")


def list_legacy_owned_rules(schemes: Iterable[ChainScheme], what: str) -> list[tuple[OwnedRule, IptablesRule]]:
    """Lists the owners of iptables-legacy's jumps to such chains, with the jumps; raises CniError.

    Names are set only if the chain's name proves them, see `gc_legacy`. Runs one program if there is such a table.
    """
    families = iptables.get_legacy_families(TABLE)
    listings = iptables.read(families, TABLE, legacy=True) if families else {}
    existing = []
    for scheme in schemes:
        for jump in (jump for listing in listings.values() for jump in listing.rules(scheme.entry)):
            chain = jump.target
            if scheme.is_name(chain):
                owner = scheme.proven_owner(jump.comment, chain) or ("", "")
                where = f"chain {chain} (legacy)"
                existing.append((OwnedRule(what, IPTABLES, where, chain.encode(), *owner), jump))
    return existing


def report_unproven(number: int, scheme: ChainScheme, network: str) -> None:
    """Reports on stderr rules that stay because their owner is not proven."""
    what = f"{number} {scheme.what} rule(s) seem to be of network {network}"
    print(f"podwire: {what} and stay, since their comments do not prove it", file=sys.stderr)


def report_emptied_chain(chain: str) -> None:
    """Reports on stderr a chain that was flushed but could not be deleted."""
    print(f"podwire: chain {TABLE} {chain} stays, empty: a rule of another program jumps there", file=sys.stderr)


def _read(families: Iterable[int], entry: str, chain: str, shared: str) -> dict[int, ChainList]:
    """Returns the listings of the chains; a program lists no chain after a missing one, so it may run again."""
    names = dict.fromkeys(filter(None, (entry, shared, chain)))
    listings = iptables.read(families, TABLE, list(names))
    lacking = [family for family, listing in listings.items() if shared and shared not in listing.chains]
    return listings | (iptables.read(lacking, TABLE, [entry, chain]) if lacking else {})
