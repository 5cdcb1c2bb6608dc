"""Runs equal programs once while plugins' STATUS runs in this process: networks with equal settings share an answer.

Use it only for verbs that change nothing: there a second run of a program has the same outcome as the first.
"""

from __future__ import annotations

from kernel.netfilter.iptables_program import RESOURCE_PROBLEM
from kernel.system import System
from process.child import ChildCommand, Notice, Outcome

_Key = tuple[tuple[str, ...], tuple[tuple[str, str], ...], bytes]


class ProgramsOnce(System):
    """The running system, but an equal program is run again only if it failed for lack of a resource."""

    __slots__ = ("_outcomes",)

    def __init__(self) -> None:
        self._outcomes: dict[_Key, Outcome] = {}

    def run_programs(self, *commands: ChildCommand, limit_s: float, notice: Notice) -> list[Outcome]:
        """Runs the programs that have no outcome yet; raises as System."""
        missing = [one for one in commands if _key(one) not in self._outcomes]
        outcomes = super().run_programs(*missing, limit_s=limit_s, notice=notice) if missing else []
        fresh = dict(zip(map(_key, missing), outcomes, strict=True))
        self._outcomes |= {key: one for key, one in fresh.items() if one.status != RESOURCE_PROBLEM}
        return [fresh.get(key) or self._outcomes[key] for key in map(_key, commands)]


def _key(command: ChildCommand) -> _Key:
    return command.argv, tuple(command.env.items()), command.stdin
