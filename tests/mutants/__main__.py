"""Examines single faults in the product, and writes the table of those that the tests kill and of the survivors.

One rule: it continues what an earlier run has begun; `rm -r build/mutants` begins again.

    python -m tests.mutants [--count N] [--only N] [--survivors] [--seed N] [--jobs N] [--root DIRECTORY] [TESTS...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path

from tests.mutants import choice, launchers, private, record, selection, table
from tests.mutants.faults import Fault
from tests.mutants.recording import ROOT
from tests.mutants.trial import Result, examine

RESULTS = launchers.BUILD / "results.jsonl"
_SAMPLED = ("tests/spec", "tests/netns", "tests/hard", "tests/cluster")  # of these `make test` runs a sample
_TESTS = ("tests/unit", *_SAMPLED)
_PROGRESS_S = 30


def main() -> int:
    """Records, examines the faults that have no result, and writes the table; returns 0."""
    options = _parse()
    private.prepare()
    launchers.build()
    record.record(record.list_files(options.tests or _TESTS), options.root, options.jobs)
    faults = choice.choose(options.count, options.seed)
    results = _read_results()
    open_keys = {
        key for key, result in results.items() if not result.met or (options.survivors and not result.killed_by)
    }
    missing = [fault for fault in faults if fault.key not in results or fault.key in open_keys]
    missing = sorted(missing, key=lambda fault: fault.key)[: options.only]  # a sample of all rooms: a key is a hash
    short = _collect_tests("tests/unit") | _collect_tests("--sample", *_SAMPLED)
    choices = selection.select(missing, short, options.seconds, options.most)
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(examine, fault, choices[fault.key], options.root): fault for fault in missing}
        _collect(futures, results)
    table.write(faults, results)
    print(*table.summarize([fault for fault in faults if fault.key in results], results), sep="\n")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=200, help="the number of faults")
    parser.add_argument("--only", type=int, help="examine at most so many of them now")
    parser.add_argument("--survivors", action="store_true", help="examine the survivors again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many at a time")
    parser.add_argument("--most", type=int, default=300, help="tests of each suite that a fault meets at most")
    parser.add_argument("--seconds", type=float, default=600, help="the same, by the tests' time")
    parser.add_argument("--root", type=Path, default=ROOT / "build" / "root", help="from `make test-root`")
    parser.add_argument("tests", nargs="*", help="files and directories of tests to record")
    return parser.parse_args()


def _read_results() -> dict[str, Result]:
    if not RESULTS.exists():
        return {}
    return {result.key: result for result in (Result(**json.loads(line)) for line in RESULTS.open())}


def _collect_tests(*arguments: str) -> set[str]:
    """Returns the IDs of the tests that pytest selects; raises CalledProcessError."""
    command = [sys.executable, "-m", "pytest", "--collect-only", *arguments]
    env = {**os.environ, "PODWIRE_BIN_DIR": str(launchers.DIRECTORY.relative_to(ROOT))}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def _collect(futures: dict[Future[Result], Fault], results: dict[str, Result]) -> None:
    """Stores each result when it comes, and prints the progress."""
    begun, waiting, printed = time.monotonic(), set(futures), time.monotonic()
    while waiting:
        done, waiting = wait(waiting, timeout=1, return_when="FIRST_COMPLETED")
        for future in done:
            if error := future.exception():
                print(error, flush=True)
                continue
            fault, result = futures[future], future.result()
            results[result.key] = result
            with RESULTS.open("a") as file:
                print(json.dumps(asdict(result)), file=file)
            if not result.killed_by:
                print(f"survived {result.met} tests: {fault.path}:{fault.line} {fault.words}", flush=True)
        if time.monotonic() - printed > _PROGRESS_S or not waiting:
            printed = time.monotonic()
            killed = sum(bool(result.killed_by) for result in results.values())
            count = len(futures) - len(waiting)
            print(
                f"mutants: {count} of {len(futures)}, {printed - begun:.0f} s; {killed} killed of {len(results)}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
