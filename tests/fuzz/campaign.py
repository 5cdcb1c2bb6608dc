"""A campaign: two worker processes that run cases of one target, monitored by this process.

One rule: a case that takes longer than HANG_S is a hang; its number is known, and its worker prints a traceback.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any

from tests.support.binaries import ROOT

FAILED = ROOT / "build" / "fuzz"  # failed cases; add their lines to the corpus
HANG_S = 120.0  # much longer than any case takes, and than a worker needs to start on a busy machine
_PROCESSES = 2


@dataclass
class Outcome:
    """The outcome of a campaign: the number of cases, the verdicts, and a line for each kind of fault."""

    inputs: int = 0
    seconds: float = 0.0
    grown_kib: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, report: dict[str, Any], target: str) -> None:
        """Adds a worker's report, and stores the failed cases."""
        self.inputs += report["inputs"]
        self.seconds = max(self.seconds, report["seconds"])
        self.grown_kib = max(self.grown_kib, report["grown_kib"])
        for verdict, count in report["verdicts"].items():
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + count
        for kind, (number, text, case) in report["faults"].items():
            FAILED.mkdir(parents=True, exist_ok=True)
            path = FAILED / f"{target}-{number}.jsonl"
            path.write_text(json.dumps({"name": f"{target}-{number}", **json.loads(case)}) + "\n")
            self.faults.append(f"{text if text.startswith(kind) else f'{kind}: {text}'} (stored in {path})")


def run(target: str, seed: int, *, count: int, seconds: float) -> Outcome:
    """Runs `count` cases, or as many as `seconds` allow."""
    outcome = Outcome()
    with ExitStack() as files, tempfile.NamedTemporaryFile() as progress:
        progress.truncate(16 * _PROCESSES)
        with mmap.mmap(progress.fileno(), 16 * _PROCESSES) as shared:
            arguments = (target, seed, _PROCESSES, count // _PROCESSES + 1, seconds, progress.name)
            # Files: a report may be larger than a pipe's buffer, and is read after the worker's end.
            reports = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(_PROCESSES)]
            workers = [_start(number, report, *map(str, arguments)) for number, report in enumerate(reports)]
            try:
                _watch(workers, shared, outcome)
            finally:
                for worker in workers:
                    worker.kill()
            for worker, report in zip(workers, reports, strict=True):
                _, stderr = worker.communicate()
                report.seek(0)
                if worker.returncode:
                    outcome.faults.append(f"{target}: exit status {worker.returncode}: {stderr[-4000:]}")
                else:
                    outcome.add(json.loads(report.readlines()[-1]), target)
    return outcome


def _start(
    number: int, report: IO[str], target: str, seed: str, step: str, count: str, seconds: str, progress: str
) -> Any:
    arguments = [target, seed, str(number), step, count, seconds, progress]
    argv = [sys.executable, "-m", "tests.fuzz.worker", *arguments]
    return subprocess.Popen(argv, cwd=ROOT, stdout=report, stderr=subprocess.PIPE, text=True)


def _watch(workers: list[Any], shared: mmap.mmap, outcome: Outcome) -> None:
    last_progress = [(0, time.monotonic())] * len(workers)
    while any(worker.poll() is None for worker in workers):
        time.sleep(0.05)
        for index, worker in enumerate(workers):
            (number,) = struct.unpack_from("=Q", shared, 16 * index)
            if number != last_progress[index][0] or worker.poll() is not None:
                last_progress[index] = number, time.monotonic()
            elif time.monotonic() - last_progress[index][1] > HANG_S:
                outcome.faults.append(f"case {number - 1} takes longer than {HANG_S} s")
                os.kill(worker.pid, signal.SIGABRT)  # faulthandler prints the traceback
                last_progress[index] = number, time.monotonic()
