"""iptables: reading and changing rules with its restore programs, at most one process for each family and step.

This module decides by exit statuses only, never by texts, which differ between versions and variants.

`iptables-restore --noflush` accepts "-S CHAIN" beside lines that change rules. So one process reads any number of
chains, and another applies any number of changes, all or none. The host decides whether the program is iptables-legacy
or iptables-nft; both are supported. The host may switch to another variant while pods run: then the program with the
variant in its name reads and changes the rules of iptables-legacy (`legacy`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cni.errors import CniError, Code
from kernel import locks, system
from kernel.errors import KernelError
from kernel.netfilter import iptables_direct, nft
from kernel.netfilter.nft import Chain, Table
from process import record
from process.child import Command, Notice, Outcome

FAMILIES = (4, 6)
TOOLS = {4: "iptables", 6: "ip6tables"}
NFPROTO = nft.NFPROTO
LOCK_WAIT_S = 10  # for the host's lock of iptables-legacy; the reference plugins have no limit

_PROGRAMS = {version: f"{tool}-restore" for version, tool in TOOLS.items()}
_LEGACY_PROGRAMS = {version: f"{tool}-legacy-restore" for version, tool in TOOLS.items()}
_LEGACY_TABLES = {4: "/proc/net/ip_tables_names", 6: "/proc/net/ip6_tables_names"}
_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
# The environment variables passed to a program: wrappers need PATH, the others are iptables' own. The runtime's CNI_*
# variables are not passed, nor any that could make a program load other code.
_VARIABLES = ("PATH", "XTABLES_LOCKFILE", "XTABLES_LIBDIR")
LOCK = "/run/xtables.lock"
_LIMIT_S = LOCK_WAIT_S + 10  # for all tries; a program that runs longer hangs
_STDERR_CHARACTERS_MAX = 500
_TRIES = 10  # of iptables-nft, which fails if another program commits within the same milliseconds

# Exit statuses (iptables: enum xtables_exittype in xtables.h).
_REFUSED, _PARAMETER_PROBLEM, _VERSION_PROBLEM, _RESOURCE_PROBLEM = 1, 2, 3, 4


class _ProgramOutcome(NamedTuple):
    """A program's name, for messages, and its outcome."""

    program: str
    outcome: Outcome


class UnusableError(CniError):
    """A family has no iptables here: no program, no support in the kernel, no permission."""


class RefusedError(CniError):
    """A line was refused: a rule or chain has changed since it was read, or the kernel lacks a match."""


class LineSyntaxError(RefusedError):
    """The program of `family` could not parse a line; iptables-legacy also reports a missing chain this way."""

    def __init__(self, family: int, code: int, msg: str, details: str) -> None:
        super().__init__(code, msg, details)
        self.family = family


def read(
    families: Iterable[int], table: str, chains: Sequence[str] = (), *, legacy: bool = False
) -> dict[int, list[str]]:
    """Returns what `-S` prints of the `chains`, for each of the `families` (4, 6): -P or -N lines, then -A lines.

    The first chain must be built-in; chains after a missing one are not listed. Without `chains` this lists the whole
    table, with `legacy` that of iptables-legacy. Raises UnusableError, and CniError(11) if another program keeps the
    lock.
    """
    lines = [f"-S {chain}" for chain in chains] or ["-S"]
    listings = {}
    for family, (listing, ended) in _listed(dict.fromkeys(families, lines), table, legacy=legacy).items():
        # Any working iptables can list a built-in chain.
        start = f"-P {chains[0]} " if chains else "-P "
        if not listing[0].startswith(start):
            raise _unusable(ended)
        listings[family] = listing
    return listings


def list_chains(
    chains: Mapping[int, Sequence[str]], table: str, checks: Mapping[int, Sequence[str]] | None = None
) -> dict[int, list[str]]:
    """Returns what `-S` prints of each family's chains, or of the whole table without chains.

    `checks` are further lines like "-C CHAIN -j ACCEPT"; the program does not process the lines after a refused one.
    Raises RefusedError for a missing chain, or one with a rule that iptables cannot express, otherwise as `read`.
    """
    lines = {family: [f"-S {chain}" for chain in items] or ["-S"] for family, items in chains.items()}
    for family, further in (checks or {}).items():
        lines[family] += further
    listings = {}
    for family, (listing, ended) in _listed(lines, table).items():
        existing = {line.split()[1] for line in listing if line.startswith(("-P ", "-N "))}
        if not chains[family] and not existing:
            raise _unusable(ended)
        if missing := [chain for chain in chains[family] if chain not in existing]:
            raise _unlisted(missing[0], ended)
        listings[family] = listing
    return listings


def apply(changes: Mapping[int, Sequence[str]], table: str, description: str, *, legacy: bool = False) -> None:
    """Applies the lines for each family ("-A CHAIN -j ACCEPT"), all or none of a family; `description` is for errors.

    Uses netlink if possible (kernel.netfilter.iptables_direct), otherwise the programs; with `legacy` iptables-legacy.
    Raises RefusedError, UnusableError, CniError(999), and CniError(11) if another program keeps the lock. If one family
    fails, the other may have been changed.
    """
    if record.is_dry_run():
        record.change(*_shell_commands(changes, table))
        return
    programs = {family: _find(family, legacy=legacy) for family, lines in changes.items() if lines}
    done = iptables_direct.apply_by_netlink(changes, table, programs)
    texts = {family: _document(table, lines) for family, lines in changes.items() if lines and family not in done}
    ended = _run(texts, legacy=legacy)
    failed = {family: one for family, one in ended.items() if one.outcome.status}
    if record.is_recording():
        record.change(
            *_shell_commands({family: lines for family, lines in changes.items() if family not in failed}, table)
        )
    for family, one in failed.items():
        raise _failure(description, family, one)


def is_accepted(family: int, table: str, lines: Sequence[str]) -> bool:
    """Returns whether a family's program would apply the lines (`--test`); nothing is changed."""
    return _run({family: _document(table, lines)}, "--test")[family].outcome.status == 0


def get_candidate_families(families: Iterable[int], table: str, chain: str) -> set[int]:
    """Returns those of `families` whose `table` may contain `chain`, according to the kernel; runs no program."""
    return {family for family, missing in get_missing_chains(families, table, [chain]).items() if not missing}


def get_missing_chains(families: Iterable[int], table: str, chains: Sequence[str]) -> dict[int, set[str]]:
    """Returns those of `chains` that each family's `table` certainly lacks, according to the kernel; runs no program.

    iptables-nft's tables are nftables tables of the same names. The kernel lists tables of iptables-legacy, not chains.
    """
    places = [(family, chain) for family in families for chain in chains]
    missing: dict[int, set[str]] = {family: set() for family, _ in places}
    legacy = {family for family in missing if has_legacy(family, table)}
    try:
        with nft.open_socket() as socket:
            chains_to_find = [Chain(Table(NFPROTO[family], table), chain) for family, chain in places]
            existing = nft.get_chains(socket, *chains_to_find)
    except KernelError:  # the kernel lacks nftables, or refuses to list it: the programs decide
        return missing
    for (family, chain), present in zip(places, existing, strict=True):
        if not present and family not in legacy:
            missing[family].add(chain)
    return missing


def has_legacy(family: int, table: str) -> bool:
    """Returns whether iptables-legacy has created `table` for a family; if that is unreadable, whether it may have.

    After `unshare -Urn` the kernel's list belongs to the host's root and is unreadable. Then the answer is whether the
    host's program is iptables-legacy; running it would create the table.
    """
    try:
        return table in _legacy_tables(family)
    except PermissionError:
        program = _find(family)
        return bool(program) and not iptables_direct.is_nft(program)


def get_legacy_families(table: str) -> list[int]:
    """Returns the families in which iptables-legacy has created `table`, of those with an installed program."""
    existing = [family for family in FAMILIES if has_legacy(family, table)]
    missing = [family for family in existing if not _find(family, legacy=True)]
    if missing:
        names = ", ".join(_LEGACY_PROGRAMS[family] for family in missing)
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


def _shell_commands(changes: Mapping[int, Sequence[str]], table: str) -> Iterator[str]:
    """Yields the lines as commands for a shell."""
    for family, lines in changes.items():
        yield from (f"{TOOLS[family]} -t {table} {line}" for line in lines)


def _legacy_tables(family: int) -> list[str]:
    try:
        descriptor = os.open(system.current.path(_LEGACY_TABLES[family]), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        return os.read(descriptor, 4096).decode("ascii", "replace").split()
    finally:
        os.close(descriptor)


def _listed(
    lines: Mapping[int, Sequence[str]], table: str, *, legacy: bool = False
) -> dict[int, tuple[list[str], _ProgramOutcome]]:
    existing = {}
    texts = {family: _document(table, items) for family, items in lines.items()}
    for family, ended in _run(texts, legacy=legacy).items():
        if ended.outcome.status not in (0, _REFUSED):
            raise _unusable(ended)
        printed = ended.outcome.stdout.decode("utf-8", "surrogateescape").split("\n")
        # Lines of one word are not -P, -N or -A lines, which name a chain; an empty listing has one empty line.
        existing[family] = [line for line in printed if len(line.split(maxsplit=1)) != 1] or [""], ended
    return existing


def _document(table: str, lines: Sequence[str]) -> bytes:
    return "\n".join((f"*{table}", *lines, "COMMIT", "")).encode("utf-8", "surrogateescape")


def _run(texts: Mapping[int, bytes], *options: str, legacy: bool = False) -> dict[int, _ProgramOutcome]:
    """Runs the programs in parallel; runs those with a resource problem again until the time for the lock is over.

    The kernel kills them when this process ends: a program that waits for the lock must not commit after a later DEL.
    """
    if not texts:
        return {}
    start = time.monotonic()
    commands = {family: _command(family, text, options, legacy=legacy) for family, text in texts.items()}
    ended: dict[int, _ProgramOutcome] = {}
    for _ in range(_TRIES):
        busy = [family for family in texts if family not in ended or ended[family].outcome.status == _RESOURCE_PROBLEM]
        names = [os.path.basename(commands[family].argv[0]) for family in busy]
        try:
            with record.timed_step(f"run {', '.join(names)}"):
                left_s = start + _LIMIT_S - time.monotonic()
                running = (commands[family] for family in busy)
                outcomes = system.current.run_programs(*running, limit_s=left_s, notice=_notice(names))
        except TimeoutError as error:
            raise CniError(
                Code.TRY_AGAIN_LATER,
                f"{', '.join(names)} did not end within {_LIMIT_S} s and was killed, try again later",
                f"see whether it hangs when run by hand: {commands[busy[0]].argv[0]} --test </dev/null",
            ) from error
        except OSError as error:
            raise UnusableError(Code.INTERNAL, f"cannot run {', '.join(names)}: {error.strerror}", "") from error
        ended.update(zip(busy, map(_ProgramOutcome, names, outcomes), strict=True))
        conflict = any(one.outcome.status == _RESOURCE_PROBLEM for one in ended.values())
        if conflict and time.monotonic() - start >= LOCK_WAIT_S - 1:  # older versions round to whole seconds
            raise CniError(
                Code.TRY_AGAIN_LATER,
                f"iptables is held by another program for {LOCK_WAIT_S} s, try again later",
                locks.describe_holder(_lock()),
            )
        if not conflict:
            break
    return ended


def _notice(names: Sequence[str]) -> Notice:
    """Returns the notice to print when programs run long, since another process may hold their lock."""
    return Notice(locks.NOTICE_S, lambda: locks.report_wait(", ".join(names), _lock()))


def _lock() -> str:
    return os.environ.get("XTABLES_LOCKFILE") or LOCK


def _command(family: int, text: bytes, options: tuple[str, ...], *, legacy: bool) -> Command:
    program = _find(family, legacy=legacy)
    if not program:
        raise UnusableError(
            Code.INTERNAL,
            f"{_PROGRAMS[family]} is not installed",
            f"it is neither on PATH nor in {', '.join(_DIRECTORIES)}; install iptables",
        )
    argv = (program, "--noflush", "--wait", str(LOCK_WAIT_S), *options)
    env = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return Command(argv, {**env, "LC_ALL": "C"}, text, capture_stderr=True)


def _find(family: int, *, legacy: bool = False) -> str:
    """Returns the path of a family's program or "".

    With `legacy` it is iptables-legacy's: the host's program, or, if that is known to be iptables-nft's, the program
    with the variant in its name.
    """
    program = system.current.find_program(_PROGRAMS[family], _DIRECTORIES)
    if legacy and (not program or iptables_direct.is_nft(program)):
        return system.current.find_program(_LEGACY_PROGRAMS[family], _DIRECTORIES)
    return program


def _unusable(ended: _ProgramOutcome) -> UnusableError:
    return UnusableError(
        Code.INTERNAL,
        f"{ended.program} cannot be used: {ended.outcome.ending}",
        _stderr_text(ended.outcome) or "does the kernel have the tables that iptables needs?",
    )


def _unlisted(chain: str, ended: _ProgramOutcome) -> RefusedError:
    msg = f"{ended.program} does not list chain {chain}: {ended.outcome.ending}"
    return RefusedError(Code.INTERNAL, msg, _stderr_text(ended.outcome) or "does `iptables-save` list it?")


def _failure(description: str, family: int, ended: _ProgramOutcome) -> CniError:
    status, text = ended.outcome.status, _stderr_text(ended.outcome)
    if status == _VERSION_PROBLEM:
        return _unusable(ended)
    msg = f"failed to {description}: {ended.program} ended with {ended.outcome.ending}"
    if status == _PARAMETER_PROBLEM:
        return LineSyntaxError(family, Code.INTERNAL, msg, text)
    return (RefusedError if status == _REFUSED else CniError)(Code.INTERNAL, msg, text)


def _stderr_text(outcome: Outcome) -> str:
    """Returns what the program wrote to stderr in one line, truncated if it is long."""
    text = " ".join(outcome.stderr.decode("utf-8", "replace").split())
    return text if len(text) <= _STDERR_CHARACTERS_MAX else f"{text[:_STDERR_CHARACTERS_MAX]} ..."
