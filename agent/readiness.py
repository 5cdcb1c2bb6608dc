"""What keeps this node from being ready, for /readyz, the log and events.

A condition is a part of the agent's work. It is met, or has a problem: a text with the object, its state, the cause
and the fix. A note is such a text that does not keep the node from being ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

CONDITIONS = (API, NODE, NETWORK, ROUTES, MASQUERADE) = ("api", "node", "network", "routes", "masquerade")
POOLS = "pools"  # a further condition, with pools of addresses
POLICIES = "policies"  # a further condition, with --network-policy

_STARTING = "starting"
_PROBLEM_SIZE = 4000  # characters; thousands of nodes may have problems

OnChange = Callable[[str, str], None]


class Readiness:
    """The conditions by name, each with its problem, "" if it is met; `on_change` gets name and problem."""

    def __init__(self, conditions: tuple[str, ...], on_change: OnChange) -> None:
        self._problems = dict.fromkeys(conditions, _STARTING)
        self._notes = dict.fromkeys(conditions, "")
        self._on_change = on_change

    def set(self, condition: str, problem: str = "") -> None:
        """Sets the problem of a condition, "" if it is met; reports only changes."""
        if self._problems[condition] != problem:
            self._problems[condition] = problem
            self._on_change(condition, problem)

    def set_note(self, condition: str, note: str) -> bool:
        """Sets the note of a condition, "" for none; returns whether it is another one."""
        before, self._notes[condition] = self._notes[condition], note
        return note != before

    @property
    def is_ready(self) -> bool:
        """Whether all conditions are met."""
        return not any(self._problems.values())

    @property
    def is_starting(self) -> bool:
        """Whether a condition has not been set yet."""
        return _STARTING in self._problems.values()

    def describe(self) -> Iterator[str]:
        """Yields a line for each condition, as the Kubernetes components print their checks."""
        for name, problem in tuple(self._problems.items()):
            yield f"[-]{name}: {problem}" if problem else f"[+]{name} ok"
            if note := self._notes[name]:
                yield f"   note: {note}"


def joined(texts: Iterable[str]) -> str:
    """Returns texts as one, cut at a limit: it does not compute those beyond."""
    result = ""
    for text in filter(None, texts):
        if len(result) > _PROBLEM_SIZE:
            break
        result += f"; {text}" if result else text
    return result if len(result) <= _PROBLEM_SIZE else f"{result[:_PROBLEM_SIZE]} ..."
