"""One process of a campaign: it runs cases of one target sequentially, up to a number or a time limit.

    python -m tests.fuzz.worker TARGET SEED FIRST STEP COUNT SECONDS

One rule: target, seed and number identify a case, so the number of a case that hangs is enough to repeat it.
It prints each number, then the report as JSON; after HANG_S in one case it prints a traceback to stderr, and exits.
"""

import faulthandler
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.fuzz import world
from tests.fuzz.cases import Case, Source, corpus
from tests.fuzz.replay import Replay
from tests.fuzz.world import FaultError

FAULTS_MAX = 20
HANG_S = 20.0  # much longer than any case takes, even on a busy machine


@dataclass
class Report:
    """What a worker found: `faults` by kind, each with number, text and case."""

    inputs: int = 0
    seconds: float = 0.0
    verdicts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    grown_kib: int = 0


def main(target: str, seed: int, number: int, step: int, count: int, seconds: float) -> None:
    """Runs this process's share of a campaign and prints the report."""
    faulthandler.enable()
    judge = _judge_of(target)
    source = Source(target, seed)
    report = Report()
    start = time.monotonic()
    initial_kib = 0
    while report.inputs < count and time.monotonic() - start < seconds and len(report.faults) < FAULTS_MAX:
        print(number, flush=True)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        _run_case(judge, source.case(number), number, report)
        number += step
        if report.inputs == 2000:  # caches are full by now
            initial_kib = _resident_kib()
    faulthandler.cancel_dump_traceback_later()
    report.seconds = time.monotonic() - start
    report.grown_kib = _resident_kib() - initial_kib if initial_kib else 0
    print(json.dumps(vars(report)), flush=True)


def _run_case(judge: Callable[[Case], str], case: Case, number: int, report: Report) -> None:
    try:
        report.verdicts[judge(case)] += 1
    except FaultError as fault:
        report.faults.setdefault(_kind(fault), (number, str(fault)[:500], json.dumps(case.__dict__)))
    report.inputs += 1


def _judge_of(target: str) -> Callable[[Case], str]:
    """Enters the host of the campaign; returns the function that runs a case of `target` and returns its verdict."""
    host = world.enter()
    for _, case in corpus("stdin"):  # a failed ADD keeps the chains that all pods share with iptables
        if case.env["CNI_COMMAND"] == "ADD" and '"iptables"' in case.stdin:
            host.judge(case)
    if target == "replies":
        return Replay().judge
    return partial(host.judge, invoke=world.execute) if target == "programs" else host.judge


def _kind(fault: FaultError) -> str:
    """Returns the kind of a fault: the place where the exception was raised, or the text."""
    cause = fault.__cause__
    if cause is None:
        return str(fault)[:400]
    frames = traceback.extract_tb(cause.__traceback__)
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-4:]]
    return f"{type(cause).__name__} at {' '.join(places)}"


def _resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


if __name__ == "__main__":
    campaign_seed, first_number, number_step, case_count = map(int, sys.argv[2:6])
    main(sys.argv[1], campaign_seed, first_number, number_step, case_count, float(sys.argv[6]))
