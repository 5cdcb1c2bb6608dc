"""The restore programs of iptables: which of them are installed, and runs of them.

This module decides by exit statuses only, never by texts, which differ between versions and variants. So the
text of `iptables-save` is not parsed either: netlink shows the rules of iptables-nft without a program
(iptables_listing.py), and only those of iptables-legacy are listed by its program.

The host decides whether the program is iptables-legacy or iptables-nft; both are supported. The host may switch to
another variant while pods run: then the program with the variant in its name reads and changes the rules of
iptables-legacy (`legacy`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cni.errors import CniError, Code
from kernel import locks, system
from process import record
from process.child import ChildCommand, Notice, Outcome

LOCK = "/run/xtables.lock"
LOCK_WAIT_S = 10  # for the host's lock of iptables-legacy; the reference plugins have no limit

_PROGRAMS = {4: "iptables-restore", 6: "ip6tables-restore"}
_LEGACY_PROGRAMS = {4: "iptables-legacy-restore", 6: "ip6tables-legacy-restore"}
# The environment variables passed to a program: wrappers need PATH, the others are iptables' own. The runtime's CNI_*
# variables are not passed, nor any that could make a program load other code.
_VARIABLES = ("PATH", "XTABLES_LOCKFILE", "XTABLES_LIBDIR")
_LIMIT_S = LOCK_WAIT_S + 10  # for all tries; a program that runs longer hangs
_STDERR_CHARACTERS_MAX = 500
_TRIES = 10  # of iptables-nft, which fails if another program commits within the same milliseconds
_LINKS_MAX = 40  # the kernel's limit
_NFT_PROGRAM = "xtables-nft-multi"  # the target of the links that are iptables-nft's programs

# Exit statuses (iptables: enum xtables_exittype in xtables.h).
REFUSED, _PARAMETER_PROBLEM, _VERSION_PROBLEM, RESOURCE_PROBLEM = 1, 2, 3, 4


class ProgramRun(NamedTuple):
    """A program's name, for messages, and its outcome."""

    program: str
    outcome: Outcome

    @property
    def text(self) -> str:
        """The program's stdout."""
        return self.outcome.stdout.decode("utf-8", "surrogateescape")


class UnusableError(CniError):
    """A family has no iptables here: no program, no support in the kernel, no permission."""


class RefusedError(CniError):
    """A line was refused: a rule or chain has changed since it was read, or the kernel lacks a match."""


class LineSyntaxError(RefusedError):
    """The program of `family` could not parse a line; iptables-legacy also reports a missing chain this way."""

    def __init__(self, family: int, code: int, msg: str, details: str) -> None:
        super().__init__(code, msg, details)
        self.family = family


def run(
    lines: Mapping[int, Iterable[object]], table: str, *options: str, legacy: bool = False
) -> dict[int, ProgramRun]:
    """Runs each family's program with lines for a table, which are rendered by str(): changes, "-S CHAIN".

    Runs the programs in parallel. Repeats those with a resource problem, at most 10 times and for 9 s; a caller must
    still check the status. The kernel kills them when this process ends: a program that waits for the lock must not
    commit after a later DEL. Raises UnusableError, and CniError(11) if another program keeps the lock.
    """
    if not lines:
        return {}
    start = time.monotonic()
    texts = {family: "\n".join((f"*{table}", *map(str, items), "COMMIT", "")) for family, items in lines.items()}
    commands = {family: _command(family, text, options, legacy=legacy) for family, text in texts.items()}
    runs: dict[int, ProgramRun] = {}
    for _ in range(_TRIES):
        busy = [family for family in texts if family not in runs or runs[family].outcome.status == RESOURCE_PROBLEM]
        names = [os.path.basename(commands[family].argv[0]) for family in busy]
        try:
            with record.timed_step(f"run {', '.join(names)}"):
                left_s = start + _LIMIT_S - time.monotonic()
                running = (commands[family] for family in busy)
                outcomes = system.current.run_programs(
                    *running, limit_s=left_s, notice=_notice([commands[family].argv[0] for family in busy])
                )
        except TimeoutError as error:
            raise CniError(
                Code.TRY_AGAIN_LATER,
                f"{', '.join(names)} did not end within {_LIMIT_S} s and was killed, try again later",
                f"see whether it hangs when run by hand: {commands[busy[0]].argv[0]} --test </dev/null",
            ) from error
        except OSError as error:
            raise UnusableError(Code.INTERNAL, f"cannot run {', '.join(names)}: {error.strerror}", "") from error
        runs.update(zip(busy, map(ProgramRun, names, outcomes), strict=True))
        conflict = any(each.outcome.status == RESOURCE_PROBLEM for each in runs.values())
        if conflict and time.monotonic() - start >= LOCK_WAIT_S - 1:  # older versions round to whole seconds
            raise CniError(
                Code.TRY_AGAIN_LATER,
                f"iptables is held by another program for {LOCK_WAIT_S} s, try again later",
                _describe_holder([commands[family].argv[0] for family in busy]),
            )
        if not conflict:
            break
    return runs


def find(family: int, *, legacy: bool = False) -> str:
    """Returns the path of a family's program or "".

    With `legacy` it is iptables-legacy's: the host's program, or, if that is known to be iptables-nft's, the program
    with the variant in its name.
    """
    program = system.current.find_program(_PROGRAMS[family], system.PROGRAM_DIRECTORIES)
    if legacy and (not program or is_nft(program)):
        return system.current.find_program(_LEGACY_PROGRAMS[family], system.PROGRAM_DIRECTORIES)
    return program


def is_nft(program: str) -> bool:
    """Returns whether a program is iptables-nft's; False for a wrapper script."""
    path = program
    try:
        for _ in range(_LINKS_MAX):
            path = os.path.join(os.path.dirname(path), os.readlink(path))
    except OSError:  # not a link: the end of the chain
        return os.path.basename(path) == _NFT_PROGRAM
    return False


def unusable_error(run: ProgramRun) -> UnusableError:
    """Returns (does not raise) the error for a program that does not work here."""
    return UnusableError(
        Code.INTERNAL,
        f"{run.program} cannot be used: {run.outcome.ending}",
        _stderr_text(run.outcome) or "does the kernel have the tables that iptables needs?",
    )


def unlisted_error(chain: str, run: ProgramRun) -> RefusedError:
    """Returns (does not raise) the error for a chain that a program did not list."""
    msg = f"{run.program} does not list chain {chain}: {run.outcome.ending}"
    hint = "`nft -a list ruleset` shows whether the chain has a rule that iptables cannot list; it printed: "
    return RefusedError(Code.INTERNAL, msg, hint + (_stderr_text(run.outcome) or "nothing"))


def failure_error(description: str, family: int, run: ProgramRun) -> CniError:
    """Returns (does not raise) the error for a program that did not apply its changes."""
    status, text = run.outcome.status, _stderr_text(run.outcome)
    if status == _VERSION_PROBLEM:
        return unusable_error(run)
    msg = f"failed to {description}: {run.program} ended with {run.outcome.ending}"
    if status == _PARAMETER_PROBLEM:
        return LineSyntaxError(family, Code.INTERNAL, msg, text)
    return (RefusedError if status == REFUSED else CniError)(Code.INTERNAL, msg, text)


def _notice(programs: Sequence[str]) -> Notice:
    """Returns the notice to print when programs run long: another process holds their lock, or the rules are many."""
    return Notice(locks.NOTICE_S, lambda: _report_long_run(programs))


def _report_long_run(programs: Sequence[str]) -> None:
    names = ", ".join(map(os.path.basename, programs))
    if _use_lock(programs) and locks.is_held_by_other(_lock()):
        locks.report_wait(names, _lock())
    else:
        locks.report(f"{names} is still running after {locks.NOTICE_S:g} s; with thousands of rules that takes long")


def _describe_holder(programs: Sequence[str]) -> str:
    """Returns a sentence about what keeps `programs` from changing the rules."""
    if _use_lock(programs):
        return locks.describe_holder(_lock())
    return "iptables-nft has no lock: another program changes rules all the time; nft monitor shows the changes"


def _use_lock(programs: Sequence[str]) -> bool:
    return not all(map(is_nft, programs))


def _lock() -> str:
    return os.environ.get("XTABLES_LOCKFILE") or LOCK


def _command(family: int, text: str, options: tuple[str, ...], *, legacy: bool) -> ChildCommand:
    program = find(family, legacy=legacy)
    if not program:
        raise UnusableError(
            Code.INTERNAL,
            f"{_PROGRAMS[family]} is not installed",
            f"it is neither on PATH nor in {', '.join(system.PROGRAM_DIRECTORIES)}; install iptables",
        )
    argv = (program, "--noflush", "--wait", str(LOCK_WAIT_S), *options)
    env = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return ChildCommand(argv, {**env, "LC_ALL": "C"}, text.encode("utf-8", "surrogateescape"), capture_stderr=True)


def _stderr_text(outcome: Outcome) -> str:
    """Returns what the program wrote to stderr in one line, truncated if it is long."""
    text = " ".join(outcome.stderr.decode("utf-8", "replace").split())
    return text if len(text) <= _STDERR_CHARACTERS_MAX else f"{text[:_STDERR_CHARACTERS_MAX]} ..."
