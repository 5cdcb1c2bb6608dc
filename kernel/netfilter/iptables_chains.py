"""Container chains in table nat, as the reference plugins create them: one per container and network, and jumps to it.

This module reads and writes the text of iptables' programs; kernel.netfilter.iptables_nft does the same over netlink.
Both treat a chain as a container's only if its name is the hash of network and container. A jump's comment names both,
but alone proves nothing.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from cni.errors import CniError, Code
from kernel.netfilter import iptables
from kernel.netfilter.owned import IPTABLES, REPAIR_HINT, OwnedRule
from process.values import dataclass, field

TABLE = "nat"
COMMENT_BYTES = 255  # XT_MAX_COMMENT_LEN - 1 (linux/netfilter/xt_comment.h)

_NAME_MAX = 28  # XT_EXTENSION_MAXNAMELEN - 1 (linux/netfilter/x_tables.h)
_TRIES = 10  # a try fails if another process changes a chain between read and write
_OWNER = re.compile(r'"(?:\w+ )?name: \\"(?P<network>[^"\\]+)\\" id: \\"(?P<container_id>[^"\\]+)\\"" ')

Plan = Callable[[int, list[str]], list[str]]  # from a family and its listing to the lines to apply


@dataclass(frozen=True)
class ChainScheme:
    """The naming scheme of container chains.

    Chain `entry` has the jumps; names start with `start`, comments with `comment_start`.
    `what` is for messages: "masquerade", "host port". `name_pattern` finds the names in a rule's bytes.
    """

    entry: str
    start: str
    comment_start: str
    what: str
    name_pattern: re.Pattern[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compiles the pattern once, at import."""
        pattern = re.compile(re.escape(self.start).encode() + rb"[0-9a-f]+(?=\0)")
        object.__setattr__(self, "name_pattern", pattern)

    def name(self, network: str, container_id: str) -> str:
        """Returns the name of a container's chain (FormatChainName of the reference plugins)."""
        return (self.start + hashlib.sha512((network + container_id).encode()).hexdigest())[:_NAME_MAX]

    def comment(self, network: str, container_id: str = "") -> str:
        """Returns the comment of a container's rules, or the start of the comments of a network's rules."""
        start = f'{self.comment_start}name: "{network}" id: '
        return f'{start}"{container_id}"'[:COMMENT_BYTES] if container_id else start


def quoted(text: str) -> str:
    """Returns a text as one quoted argument, as iptables-restore reads it and iptables lists it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def lines_to_delete(rules: Iterable[str]) -> list[str]:
    """Returns the lines that delete listed rules."""
    return ["-D" + line.removeprefix("-A") for line in rules]


def jump_lines(entry: str, chain: str, listing: Iterable[str]) -> list[str]:
    """Returns the rules of chain `entry` that jump to `chain`."""
    return [line for line in listing if line.startswith(f"-A {entry} ") and chain in line.split()]


def change(
    families: Iterable[int], scheme: ChainScheme, chain: str, plan: Plan, description: str, shared: str = ""
) -> None:
    """Reads the entry chain and `chain`, applies the lines of `plan`, and retries if the rules changed in between.

    The listing also has the chain `shared`, if it is not "" and exists. Raises the errors of
    kernel.netfilter.iptables.apply.
    """
    names = [chain, shared] if shared else [chain]
    for tries_left in reversed(range(_TRIES)):
        missing = iptables.get_missing_chains(families, TABLE, names)
        present = [family for family, lacking in missing.items() if chain not in lacking]
        listings = {
            family: [f"-N {name}" for name in names if name not in lacking]
            for family, lacking in missing.items()
            if family not in present
        }
        listings |= _read(present, scheme.entry, chain, shared)
        if apply_plan(TABLE, listings, plan, description, may_fail=tries_left > 0):
            return


def change_legacy(table: str, plan: Plan, description: str) -> None:
    """Applies a plan with iptables-legacy, in the families where it has created `table`; `plan` gets the whole table.

    Retries if the rules changed in between. Does nothing if the program is not installed.
    Raises the errors of kernel.netfilter.iptables.apply.
    """
    families = iptables.get_legacy_families(table)
    for tries_left in reversed(range(_TRIES if families else 0)):
        listings = iptables.read(families, table, legacy=True)
        if apply_plan(table, listings, plan, description, may_fail=tries_left > 0, legacy=True):
            return


def missing_error(description: str, what: str, version: int) -> CniError:
    """Returns (does not raise) CHECK's error for a missing chain or rule."""
    return CniError(
        Code.INTERNAL,
        f"{description}: {what} is missing in table {TABLE} ({iptables.TOOLS[version]})",
        REPAIR_HINT,
    )


def _read(families: Iterable[int], entry: str, chain: str, shared: str) -> dict[int, list[str]]:
    """Returns the listings of the chains; a program lists no chain after a missing one, so it may run again."""
    names = dict.fromkeys(filter(None, (entry, shared, chain)))
    listings = iptables.read(families, TABLE, list(names))
    without = [family for family, listing in listings.items() if shared and f"-N {shared}" not in listing]
    return listings | (iptables.read(without, TABLE, [entry, chain]) if without else {})


def apply_plan(
    table: str, listings: dict[int, list[str]], plan: Plan, description: str, *, may_fail: bool, legacy: bool = False
) -> bool:
    """Applies the plan's lines for the listings; returns False if they were refused and `may_fail`."""
    changes = {family: plan(family, listing) for family, listing in listings.items()}
    try:
        iptables.apply(changes, table, description, legacy=legacy)
    except iptables.RefusedError:
        if not may_fail:
            raise
        return False
    return True


def delete_legacy(
    chains: Mapping[str, ChainScheme], description: str, stays: Callable[[str], object] = lambda jump: False
) -> None:
    """Deletes the jumps of iptables-legacy to `chains`, and each chain with its last jump.

    Keeps jumps for which `stays` is true. Absence is success; a chain to which another rule jumps stays, empty, and is
    reported on stderr. Raises the errors of kernel.netfilter.iptables.apply.
    """
    change_legacy(TABLE, lambda family, listing: lines_to_delete_chains(chains, listing, stays), description)


def lines_to_delete_chains(
    chains: Mapping[str, ChainScheme], listing: list[str], stays: Callable[[str], object] = lambda jump: False
) -> list[str]:
    """Returns the lines that delete the jumps to `chains`, and each chain with its last jump, as `delete_legacy`."""
    lines = []
    for chain, scheme in chains.items():
        jumps = jump_lines(scheme.entry, chain, listing)
        removed = [line for line in jumps if not stays(line)]
        last = len(removed) == len(jumps) and f"-N {chain}" in listing
        lines += lines_to_delete(removed) + (_lines_to_delete_chain(scheme, chain, listing) if last else [])
    return lines


def gc_legacy(schemes: Iterable[ChainScheme], network: str, kept: AbstractSet[str]) -> None:
    """Deletes the jumps and chains of iptables-legacy that are the network's and not in `kept`; raises CniError.

    A jump is the network's if its comment names network and container and the name of its chain is the hash of both.
    A truncated comment proves nothing: such jumps stay, and their number is reported on stderr.
    """

    def lines_to_delete_stale(family: int, listing: list[str], scheme: ChainScheme) -> list[str]:
        mark = quoted(scheme.comment(network))[:-1]
        entries = [line for line in listing if line.startswith(f"-A {scheme.entry} ")]
        network_lines = [line for line in entries if mark in line and kept.isdisjoint(line.split())]
        chains = dict.fromkeys(chain for line in network_lines if (chain := _proven_chain(scheme, line)))
        if doubtful := [line for line in network_lines if chains.keys().isdisjoint(line.split())]:
            report_unproven(len(doubtful), scheme, network)
        lines = []
        for chain in chains:
            lines += lines_to_delete(jump_lines(scheme.entry, chain, listing)) + _lines_to_delete_chain(
                scheme, chain, listing
            )
        return lines

    description = f"delete stale rules of network {network}"
    change_legacy(
        TABLE,
        lambda family, listing: [line for scheme in schemes for line in lines_to_delete_stale(family, listing, scheme)],
        description,
    )


def list_legacy_owned_rules(schemes: Iterable[ChainScheme], what: str) -> list[tuple[OwnedRule, str]]:
    """Lists the owners of iptables-legacy's jumps to such chains, with their lines; raises CniError.

    Names are set only if the chain's name proves them, see `gc_legacy`. Runs one program if there is such a table.
    """
    families = iptables.get_legacy_families(TABLE)
    listed = [
        line
        for listing in (iptables.read(families, TABLE, legacy=True) if families else {}).values()
        for line in listing
    ]
    existing = []
    for scheme in schemes:
        name = re.compile(rf" -[jg] ({re.escape(scheme.start)}[0-9a-f]+)$")
        for line in listed:
            target = name.search(line) if line.startswith(f"-A {scheme.entry} ") else None
            if target:
                owner = _OWNER.search(line) if _proven_chain(scheme, line) else None
                network, container_id = (owner["network"], owner["container_id"]) if owner else ("", "")
                where = f"chain {target[1]} (legacy)"
                existing.append((OwnedRule(what, IPTABLES, where, target[1].encode(), network, container_id), line))
    return existing


def report_unproven(number: int, scheme: ChainScheme, network: str) -> None:
    """Reports on stderr rules that stay because their owner is not proven."""
    what = f"{number} {scheme.what} rule(s) seem to be of network {network}"
    print(f"podwire: {what} and stay, since their comments do not prove it", file=sys.stderr)


def report_emptied_chain(chain: str) -> None:
    """Reports on stderr a chain that was flushed but could not be deleted."""
    print(f"podwire: chain {TABLE} {chain} stays, empty: a rule of another program jumps there", file=sys.stderr)


def _lines_to_delete_chain(scheme: ChainScheme, chain: str, listing: Iterable[str]) -> list[str]:
    """Returns the lines that delete a chain without jumps, or flush it if another rule jumps there."""
    ends = (f" -j {chain}", f" -g {chain}")
    if any(line.endswith(ends) and not line.startswith(f"-A {scheme.entry} ") for line in listing):
        report_emptied_chain(chain)
        return [f"-F {chain}"]
    return [f"-F {chain}", f"-X {chain}"]


def _proven_chain(scheme: ChainScheme, line: str) -> str:
    """Returns the target chain of a jump if its comment proves the owner, else ""."""
    owner = _OWNER.search(line)
    chain = scheme.name(owner["network"], owner["container_id"]) if owner else ""
    return chain if chain in line.split() else ""
