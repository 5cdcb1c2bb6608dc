"""The reports of the routes: problems for operators, and counters for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agent import kernel_routes
from agent.node import format_names
from agent.route_plan import ObjectKind
from kernel.link import Link
from kernel.protocol_route import ProtocolRoute, describe


class Problem(NamedTuple):
    """A text that an operator should know, and the node that is affected, "" for this one."""

    node: str
    text: str


def describe_problems(problems: Iterable[Problem]) -> Iterator[str]:
    """Yields the problems as text, one for all nodes with the same problem: thousands of nodes may have it."""
    nodes: dict[str, list[str]] = {}
    for problem in problems:
        nodes.setdefault(problem.text, []).append(problem.node)
    for text, names in nodes.items():
        named = [name for name in names if name]
        yield f"{format_names(named)}: {text}" if named else text


class Counters(NamedTuple):
    """The numbers for metrics: requests and full comparisons so far, and the present routes."""

    requests: int
    comparisons: int
    routes: int


def shadow_problem(node: str, route: ProtocolRoute, link: Link | None) -> Problem:
    """Returns the problem of another program's route through `link` to a pod network of `node`, which wins."""
    text = f"a route of metric {route.metric} and protocol {route.protocol} wins over the agent's: "
    return Problem(node, text + describe(route.dst, route.hop, link.name if link else ""))


def disagreement_problem(kind: ObjectKind, key: bytes) -> Problem:
    """Returns the problem of an object that another program changes again and again."""
    text = f"another program keeps changing {kernel_routes.describe(kind, key)}: it is restored at the next comparison"
    return Problem("", text)
