"""The seeded choice of faults: spread over the rooms by lines, and in a room over the kinds of faults.

One rule: a fault's place in the choice depends on the seed and its own text, so other changes of the source keep it.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from tests.mutants.faults import KINDS, Fault, find
from tests.mutants.recording import ROOMS, ROOT
from tests.mutants.signatures import Signatures


def choose(count: int, seed: int) -> list[Fault]:
    """Returns `count` faults, at most one in each line."""
    sources = {path: path.read_bytes() for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
    signatures = Signatures(ast.parse(source) for source in sources.values())
    lines = {room: sum(_lines(path, source, room) for path, source in sources.items()) for room in ROOMS}
    chosen = []
    for room, number in _shares(lines, count).items():
        faults = [
            fault
            for path, source in sources.items()
            if _lines(path, source, room)
            for fault in find(str(path.relative_to(ROOT)), source, signatures)
        ]
        chosen += _spread(faults, number, seed)
    return chosen


def _lines(path: Path, source: bytes, room: str) -> int:
    return source.count(b"\n") if path.is_relative_to(ROOT / room) else 0


def _shares(lines: dict[str, int], count: int) -> dict[str, int]:
    """Divides the count by lines; the largest remainders are rounded up, and each room has one."""
    total = sum(lines.values())
    exact = {room: max(1.0, count * number / total) for room, number in lines.items()}
    shares = {room: int(number) for room, number in exact.items()}
    by_remainder = sorted(exact, key=lambda room: shares[room] - exact[room])
    for room in by_remainder[: max(0, count - sum(shares.values()))]:
        shares[room] += 1
    return shares


def _spread(faults: list[Fault], count: int, seed: int) -> list[Fault]:
    """Takes a fault of each kind in turn, until there are `count`."""
    queues: dict[str, list[Fault]] = {kind: [] for kind in KINDS}
    for fault in sorted(faults, key=lambda fault: hashlib.sha256(f"{seed} {fault.key}".encode()).digest()):
        queues[fault.kind].append(fault)
    chosen: dict[tuple[str, int], Fault] = {}
    while len(chosen) < count and any(queues.values()):
        for kind in sorted(queues, key=lambda kind: hashlib.sha256(f"{seed} {kind}".encode()).digest()):
            while queues[kind] and len(chosen) < count:
                fault = queues[kind].pop(0)
                if (fault.path, fault.line) not in chosen:
                    chosen[fault.path, fault.line] = fault
                    break
    return list(chosen.values())
