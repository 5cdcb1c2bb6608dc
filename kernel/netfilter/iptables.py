"""iptables: reads and changes rules over netlink, or with its restore programs.

This module is the only one that decides between the two. Netlink is faster: a program takes some 2.5 ms, a transaction
a tenth of that. It serves the tables of iptables-nft, as far as each rule has a known form. In all other cases, and
after any failure, the programs run, at most one process for each family and step, and report the error.

`iptables-restore --noflush` accepts "-S CHAIN" beside lines that change rules. So one process reads any number of
chains, and another applies any number of changes, all or none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from kernel import system
from kernel.errors import KernelError
from kernel.netfilter import iptables_program, nft
from kernel.netfilter.iptables_expressions import change_request
from kernel.netfilter.iptables_program import ProgramRun, UnusableError
from kernel.netfilter.iptables_rule import ChainList, IptablesChange, IptablesRule
from kernel.netfilter.nft import Chain, Hook, NftSocket, Table
from kernel.rtnl import Request
from process import record
from process.values import replace

FAMILIES = (4, 6)
TOOLS = {4: "iptables", 6: "ip6tables"}
NFPROTO = nft.NFPROTO

_LEGACY_TABLES = {4: "/proc/net/ip_tables_names", 6: "/proc/net/ip6_tables_names"}
_CHANGES_MAX = 60  # of a family; rendering more takes longer than running the program
# `-C RULE` succeeds silently, and a program processes no line after a failed one: so a listing of this chain after each
# `-C` is one success.
_MARKER = "INPUT"
# The hooks of the chains that the program creates: NF_INET_* and priorities (nftables' names: dstnat, srcnat, filter).
BUILT_IN_CHAINS = {
    ("nat", "PREROUTING"): Hook("nat", 0, -100),
    ("nat", "INPUT"): Hook("nat", 1, 100),
    ("nat", "OUTPUT"): Hook("nat", 3, -100),
    ("nat", "POSTROUTING"): Hook("nat", 4, 100),
    ("filter", "INPUT"): Hook("filter", 1, 0),
    ("filter", "FORWARD"): Hook("filter", 2, 0),
    ("filter", "OUTPUT"): Hook("filter", 3, 0),
}


_Result = TypeVar("_Result")


def read(
    families: Iterable[int], table: str, chains: Sequence[str] = (), *, legacy: bool = False
) -> dict[int, ChainList]:
    """Lists `chains` with the programs, for each of the `families` (4, 6).

    The first chain must be built-in; chains after a missing one are not listed. Without `chains` this lists the whole
    table, with `legacy` that of iptables-legacy. Raises UnusableError, and CniError(11) if another program keeps the
    lock.
    """
    start = f"-P {chains[0]} " if chains else "-P "  # any working iptables can list a built-in chain
    listings = {}
    for family, run in _list(dict.fromkeys(families, _listing_lines(chains)), table, legacy=legacy).items():
        if not run.text.startswith(start):
            raise iptables_program.unusable_error(run)
        listings[family] = ChainList.parse(run.text)
    return listings


def list_chains(
    chains: Mapping[int, Sequence[str]], table: str, rules: Mapping[int, Sequence[IptablesRule]] | None = None
) -> dict[int, ChainList]:
    """Lists each family's chains with the programs, or the whole table without chains.

    Checks `rules` in their order, up to the first that the program does not find, and counts the others in the listing.
    Raises RefusedError for a missing chain, or one with a rule that iptables cannot express, otherwise as `read`.
    """
    lines = {family: _listing_lines(names) for family, names in chains.items()}
    for family, items in lines.items():
        items += [f"-C {rule.chain} {rule.spec}\n-S {_MARKER}" for rule in (rules or {}).get(family, ())]
    listings = {}
    for family, run in _list(lines, table).items():
        listing = ChainList.parse(run.text)
        if not chains[family] and not listing.chains:
            raise iptables_program.unusable_error(run)
        if missing := [chain for chain in chains[family] if chain not in listing.chains]:
            raise iptables_program.unlisted_error(missing[0], run)
        markers = f"\n{run.text}".count(f"\n-P {_MARKER} ")
        listings[family] = replace(listing, confirmed=markers if chains[family] else markers - 1)
    return listings


def read_by_netlink(
    families: Iterable[int], table: str, get: Callable[[NftSocket, list[int]], dict[int, _Result]]
) -> dict[int, _Result]:
    """Returns what `get` returns for the families whose `table` netlink can list; a program must list the others.

    These are the families in which iptables-legacy has created `table`, all if netlink fails, and those that `get`
    omits.
    """
    usable = [family for family in families if not has_legacy(family, table)]
    try:
        with nft.open_socket() as socket:
            return get(socket, usable)
    except KernelError:  # the kernel lacks nftables, or refuses to list it
        return {}


def apply(
    changes: Mapping[int, Sequence[IptablesChange]], table: str, description: str, *, legacy: bool = False
) -> None:
    """Applies each family's changes, all or none of a family; `description` is for errors.

    Uses netlink if possible, otherwise the programs; with `legacy` iptables-legacy. Raises RefusedError, UnusableError,
    CniError(999), and CniError(11) if another program keeps the lock. If one family fails, the other may have been
    changed.
    """
    if record.is_dry_run():
        record.note_change(*_shell_commands(changes, table))
        return
    programs = {family: iptables_program.find(family, legacy=legacy) for family, items in changes.items() if items}
    applied = apply_by_netlink(changes, table, programs)
    remaining = {family: items for family, items in changes.items() if items and family not in applied}
    runs = iptables_program.run(remaining, table, legacy=legacy)
    failed = {family: run for family, run in runs.items() if run.outcome.status}
    if record.is_recording():
        record.note_change(
            *_shell_commands({family: items for family, items in changes.items() if family not in failed}, table)
        )
    for family, run in failed.items():
        raise iptables_program.failure_error(description, family, run)


def apply_by_netlink(
    changes: Mapping[int, Sequence[IptablesChange]], table: str, programs: Mapping[int, str]
) -> frozenset[int]:
    """Applies the changes of the families that netlink allows, all or none; returns those families.

    Renders additions only, and only if the host's programs, whose paths are `programs`, are iptables-nft's: then the
    kernel's rules are the same, byte for byte. A built-in chain must exist as the program creates it; for another
    missing chain or table the kernel refuses the transaction.
    """
    requests: list[Request] = []
    built_in: list[Chain] = []
    done = []
    for version, items in changes.items():
        if not items or len(items) > _CHANGES_MAX:
            continue
        kernel_table = Table(NFPROTO[version], table)
        rendered = [request for change in items if (request := change_request(version, kernel_table, change))]
        if len(rendered) < len(items) or not iptables_program.is_nft(programs[version]):
            continue
        requests += rendered
        names = dict.fromkeys(change.chain for change in items if (table, change.chain) in BUILT_IN_CHAINS)
        built_in += [Chain(kernel_table, name, BUILT_IN_CHAINS[table, name]) for name in names]
        done.append(version)
    if not requests:
        return frozenset()
    try:
        with nft.open_socket() as socket:
            if built_in and nft.get_chains(socket, *built_in) != built_in:
                return frozenset()
            nft.change(socket, *requests, recorded=False)
    except KernelError:
        return frozenset()
    return frozenset(done)


def is_accepted(family: int, table: str, changes: Sequence[IptablesChange]) -> bool:
    """Returns whether a family's program would apply the changes (`--test`); nothing is changed."""
    return iptables_program.run({family: changes}, table, "--test")[family].outcome.status == 0


def get_missing_chains(families: Iterable[int], table: str, chains: Sequence[str]) -> dict[int, set[str]]:
    """Returns those of `chains` that each family's `table` certainly lacks, according to the kernel; runs no program.

    iptables-nft's tables are nftables tables of the same names. The kernel lists tables of iptables-legacy, not chains.
    """
    families = list(families)

    def get_missing(socket: NftSocket, usable: list[int]) -> dict[int, set[str]]:
        places = [(family, chain) for family in usable for chain in chains]
        existing = nft.get_chains(socket, *(Chain(Table(NFPROTO[family], table), chain) for family, chain in places))
        missing: dict[int, set[str]] = {family: set() for family in usable}
        for (family, chain), present in zip(places, existing, strict=True):
            if not present:
                missing[family].add(chain)
        return missing

    missing = read_by_netlink(families, table, get_missing)
    return {family: missing.get(family, set()) for family in families}


def has_legacy(family: int, table: str) -> bool:
    """Returns whether iptables-legacy has created `table` for a family; if that is unreadable, whether it may have.

    After `unshare -Urn` the kernel's list belongs to the host's root and is unreadable. Then the answer is whether the
    host's program is iptables-legacy; running it would create the table.
    """
    try:
        return table in _legacy_tables(family)
    except PermissionError:
        program = iptables_program.find(family)
        return bool(program) and not iptables_program.is_nft(program)


def get_legacy_families(table: str) -> list[int]:
    """Returns the families in which iptables-legacy has created `table`, of those with an installed program."""
    existing = [family for family in FAMILIES if has_legacy(family, table)]
    missing = [family for family in existing if not iptables_program.find(family, legacy=True)]
    if missing:
        names = ", ".join(f"{TOOLS[family]}-legacy-restore" for family in missing)
        text = f"rules of iptables-legacy may remain: not installed: {names}; install iptables"
        print(f"podwire: {text}", file=sys.stderr)
    return [family for family in existing if family not in missing]


def get_problem(families: Iterable[int], table: str = "nat", chain: str = "POSTROUTING") -> str:
    """Returns why a table cannot be used for all `families`, "" if it can; runs one process for each family.

    `chain` is a built-in chain.
    """
    try:
        read(families, table, [chain])
    except UnusableError as error:
        return str(error)
    return ""


def _listing_lines(chains: Iterable[str]) -> list[str]:
    return [f"-S {chain}" for chain in chains] or ["-S"]


def _list(lines: Mapping[int, Sequence[str]], table: str, *, legacy: bool = False) -> dict[int, ProgramRun]:
    """Runs the programs; one that refused a line has listed the chains before it."""
    runs = iptables_program.run(lines, table, legacy=legacy)
    for run in runs.values():
        if run.outcome.status not in (0, iptables_program.REFUSED):
            raise iptables_program.unusable_error(run)
    return runs


def _shell_commands(changes: Mapping[int, Sequence[IptablesChange]], table: str) -> Iterator[str]:
    """Yields the changes as commands for a shell."""
    for family, items in changes.items():
        yield from (f"{TOOLS[family]} -t {table} {change}" for change in items)


def _legacy_tables(family: int) -> list[str]:
    try:
        descriptor = os.open(system.current.path(_LEGACY_TABLES[family]), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        return os.read(descriptor, 4096).decode("ascii", "replace").split()
    finally:
        os.close(descriptor)
