"""One process of a campaign: cases of one target, one after another, until time or number is up.

    python -m tests.fuzz.worker TARGET SEED FIRST STEP COUNT SECONDS PROGRESS

One rule: a case is known by target, seed and number, so that one on which a plugin hangs can be told by its number.
The last line on stdout is what was found, as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import resource
import struct
import sys
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path

from tests.fuzz import world
from tests.fuzz.cases import Source, corpus
from tests.fuzz.world import FaultError, Prompter, World

FOUND_MAX = 20


def main(target: str, seed: int, first: int, step: int, count: int, seconds: float, progress: str) -> None:
    """Runs the campaign's share of this process."""
    faulthandler.enable()
    with open(progress, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    place = world.enter()
    settle(place)
    judge = place.judge
    if target == "replies":
        prompter = Prompter()
        world.pretend(prompter)
        judge = prompter.judge
    elif target == "programs":
        judge = partial(place.judge, invoke=world.execute)
    source = Source(target, seed)
    faults: dict[str, tuple[int, str, str]] = {}
    verdicts: Counter[str] = Counter()
    start = time.monotonic()
    settled_kib, number, done, slowest = 0, first, 0, (0.0, 0)
    while done < count and time.monotonic() - start < seconds and len(faults) < FOUND_MAX:
        struct.pack_into("=Q", shared, 16 * first, number + 1)
        case = source.case(number)
        begun = time.monotonic()
        try:
            verdicts[judge(case)] += 1
        except FaultError as fault:
            faults.setdefault(_kind(fault), (number, str(fault)[:500], json.dumps(case.__dict__)))
        slowest = max(slowest, (time.monotonic() - begun, number))
        done += 1
        number += step
        if done == 2000:
            settled_kib = _resident_kib()
    told = {
        "inputs": done,
        "seconds": time.monotonic() - start,
        "verdicts": verdicts,
        "faults": faults,
        "slowest": slowest,
        "grown_kib": _resident_kib() - settled_kib if settled_kib else 0,
        "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    print(json.dumps(told), flush=True)


def settle(place: World) -> None:
    """Has what pods share, and a failed ADD leaves for that reason, made: the chains of iptables' backends."""
    for _, case in corpus("stdin"):
        if case.env["CNI_COMMAND"] == "ADD" and '"iptables"' in case.stdin:
            place.judge(case)


def _kind(fault: FaultError) -> str:
    """Returns what tells faults apart: where the exception was raised, or the text."""
    cause = fault.__cause__
    if cause is None:
        return str(fault)[:400]
    frames = traceback.extract_tb(cause.__traceback__)
    own = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-4:]]
    return f"{type(cause).__name__} at {' '.join(own)}"


def _resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:6]), float(sys.argv[6]), sys.argv[7])
