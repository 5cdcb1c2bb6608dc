"""Copies the packet filter rules of one network namespace into another.

This module raises no errors for rules that the node's tools cannot copy: it describes them in its result, so that a
caller who tests in a copy of the host knows where the copy differs.
"""

from __future__ import annotations

import os

from kernel import system
from process import child
from process.child import ChildCommand
from process.values import dataclass

_TOOLS = ("iptables", "ip6tables")
# The tables of iptables-nft, which iptables-save prints.
_IPTABLES_TABLES = ("filter", "nat", "mangle", "raw", "security")
_LIMIT_S = 20.0


@dataclass(frozen=True)
class CopiedRules:
    """The rules of a namespace: input for each program, and descriptions of the rules that could not be read."""

    inputs: tuple[tuple[tuple[str, ...], bytes], ...]
    missing: tuple[str, ...] = ()


def read() -> CopiedRules:
    """Reads the rules of the current namespace."""
    inputs: list[tuple[tuple[str, ...], bytes]] = []
    missing = []
    for tool in _TOOLS:
        saved = _run((f"{tool}-save",), b"")
        if saved is None:
            missing.append(f"the rules of {tool} could not be read")
        elif b"*" in saved:
            inputs.append(((f"{tool}-restore", "--noflush"), saved))
    listed = _run(("nft", "list", "tables"), b"")
    if listed is None:
        missing.append("the tables of nftables could not be read")
    for line in (listed or b"").decode("utf-8", "replace").splitlines():
        _, family, name = (*line.split(), "", "", "")[:3]
        if not (family in ("ip", "ip6") and name in _IPTABLES_TABLES):
            table = _run(("nft", "list", "table", family, name), b"")
            if table:
                inputs.append((("nft", "-f", "-"), table))
    return CopiedRules(tuple(inputs), tuple(missing))


def write(rules: CopiedRules) -> tuple[str, ...]:
    """Creates the rules in the current namespace; returns descriptions of the missing ones."""
    refused = [" ".join(words) for words, text in rules.inputs if _run(words, text) is None]
    return (*rules.missing, *(f"not all rules could be copied: {words} failed" for words in refused))


def _run(words: tuple[str, ...], text: bytes) -> bytes | None:
    """Returns a program's output, None if it is not installed or fails."""
    program = system.current.find_program(words[0], system.PROGRAM_DIRECTORIES)
    if not program:
        return None
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "XTABLES_LIBDIR") if name in os.environ}
    try:
        (outcome,) = child.run(
            ChildCommand((program, *words[1:]), {**env, "LC_ALL": "C"}, text, capture_stderr=True), limit_s=_LIMIT_S
        )
    except OSError:
        return None
    return outcome.stdout if outcome.status == 0 else None
