"""A campaign: two worker processes that run cases of one target; a worker that ends early names its last case."""

import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.support.binaries import ROOT

FAILED = ROOT / "build" / "fuzz"  # failed cases; add their lines to the corpus
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
    with ExitStack() as stack:
        # Files: a report may be larger than a pipe's buffer, and is read after the worker's end.
        reports = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(_PROCESSES)]
        workers = []
        for number, report in enumerate(reports):
            arguments = map(str, (target, seed, number, _PROCESSES, count // _PROCESSES + 1, seconds))
            argv = [sys.executable, "-m", "tests.fuzz.worker", *arguments]
            workers.append(subprocess.Popen(argv, cwd=ROOT, stdout=report, stderr=subprocess.PIPE, text=True))
            stack.callback(workers[-1].kill)
        for worker, report in zip(workers, reports, strict=True):
            _, stderr = worker.communicate()
            report.seek(0)
            *_, last = ["the start", *report]
            if worker.returncode:
                what = f"{target}, case {last.strip()}: exit status {worker.returncode}"
                outcome.faults.append(f"{what}: {stderr[-4000:]}")
            else:
                outcome.add(json.loads(last), target)
    return outcome
