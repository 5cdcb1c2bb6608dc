"""A campaign: two processes that try cases of one target, watched from here.

One rule: a case that takes longer than HANG_S is a hang; its number is known, and its process says where it is.
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

FAILED = ROOT / "build" / "fuzz"  # cases that failed: their lines belong in the corpus
HANG_S = 20.0  # far more than any case takes, as the machine may have other things to do
_PROCESSES = 2


@dataclass
class Outcome:
    """What came of a campaign: how many cases, verdicts, and a line for each kind of fault."""

    inputs: int = 0
    seconds: float = 0.0
    grown_kib: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, told: dict[str, Any], target: str) -> None:
        """Adds what a process has told, and keeps the cases that failed."""
        self.inputs += told["inputs"]
        self.seconds = max(self.seconds, told["seconds"])
        self.grown_kib = max(self.grown_kib, told["grown_kib"])
        for verdict, count in told["verdicts"].items():
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + count
        for kind, (number, text, case) in told["faults"].items():
            FAILED.mkdir(parents=True, exist_ok=True)
            path = FAILED / f"{target}-{number}.jsonl"
            path.write_text(json.dumps({"name": f"{target}-{number}", **json.loads(case)}) + "\n")
            self.faults.append(f"{text if text.startswith(kind) else f'{kind}: {text}'} (kept in {path})")


def run(target: str, seed: int, *, count: int, seconds: float) -> Outcome:
    """Tries `count` cases, or as many as `seconds` allow."""
    outcome = Outcome()
    with ExitStack() as files, tempfile.NamedTemporaryFile() as progress:
        progress.truncate(16 * _PROCESSES)
        with mmap.mmap(progress.fileno(), 16 * _PROCESSES) as shared:
            words = (target, seed, _PROCESSES, count // _PROCESSES + 1, seconds, progress.name)
            # Files: what a process has to tell of its faults may be more than a pipe takes before somebody reads it.
            notes = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(_PROCESSES)]
            workers = [_start(number, told, *map(str, words)) for number, told in enumerate(notes)]
            try:
                _watch(workers, shared, outcome)
            finally:
                for worker in workers:
                    worker.kill()
            for worker, told in zip(workers, notes, strict=True):
                _, stderr = worker.communicate()
                told.seek(0)
                if worker.returncode:
                    outcome.faults.append(f"{target}: exit status {worker.returncode}: {stderr[-4000:]}")
                else:
                    outcome.add(json.loads(told.readlines()[-1]), target)
    return outcome


def _start(
    number: int, told: IO[str], target: str, seed: str, step: str, count: str, seconds: str, progress: str
) -> Any:
    words = [target, seed, str(number), step, count, seconds, progress]
    argv = [sys.executable, "-m", "tests.fuzz.worker", *words]
    return subprocess.Popen(argv, cwd=ROOT, stdout=told, stderr=subprocess.PIPE, text=True)


def _watch(workers: list[Any], shared: mmap.mmap, outcome: Outcome) -> None:
    seen = [(0, time.monotonic())] * len(workers)
    while any(worker.poll() is None for worker in workers):
        time.sleep(0.05)
        for index, worker in enumerate(workers):
            (number,) = struct.unpack_from("=Q", shared, 16 * index)
            if number != seen[index][0] or worker.poll() is not None:
                seen[index] = number, time.monotonic()
            elif time.monotonic() - seen[index][1] > HANG_S:
                outcome.faults.append(f"case {number - 1} takes longer than {HANG_S} s")
                os.kill(worker.pid, signal.SIGABRT)  # faulthandler says where it is
                seen[index] = number, time.monotonic()
