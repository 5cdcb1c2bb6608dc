"""Examines single faults in the product, and writes the table of those that the tests kill and of the survivors.

A fault meets first the test that killed it in the table; only new and surviving ones need the recorded coverage of all
tests. It continues what an earlier run has begun; `rm -r build/mutants` begins again.

One rule: the table's field `why` is written by hand and kept by all runs, as long as the fault exists; only --survivors
examines a fault that has it.

    python -m tests.mutants [--count N] [--only N] [--survivors] [--seed N] [--jobs N] [--root DIRECTORY] [TESTS...]
"""

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutants import faults, private, record
from tests.mutants.faults import Fault
from tests.mutants.recording import PACKAGES, ROOT
from tests.mutants.trial import Result, examine
from tests.runner import parts

_RESULTS = private.BUILD / "results.jsonl"
# The other tests run built files.
_TESTS = tuple(f"tests/{name}" for name in ("rules", "unit", "spec", "netns", "hard", "cluster"))
_LIMIT_S = 60.0  # of a test whose time is not recorded
_TABLE = ROOT / "tests" / "data" / "mutants.toml"
_HEAD = """\
# Written by `make mutants`, except for `why`: the reason why a survivor is no fault ("equivalent: ..."), or the test of
# the short suite that detects it where only the second kernel can run it ("second kernel: ...").
# `tests`: so many were run. `short`: the one that failed is part of `make test`; the others are of `make test-all`.
"""


def main() -> int:
    """Examines the faults that have no result, and writes the table; returns 0."""
    options = _parse()
    private.prepare()
    chosen = faults.choose(options.count, options.seed)
    table = _read_table()
    explained = {entry["key"]: Result(entry["key"], "", False, entry["tests"]) for entry in table if entry["why"]}
    lines = _RESULTS.read_text().splitlines() if _RESULTS.exists() else []
    results = explained | {entry["key"]: Result(**entry) for entry in map(json.loads, lines)}
    survivors = {key for key, result in results.items() if result.met and not result.killed_by} | explained.keys()
    done = {key for key, result in results.items() if result.killed_by} | (set() if options.survivors else survivors)
    missing = sorted((one for one in chosen if one.key not in done), key=lambda one: one.key)[: options.only]  # hashes
    short = _short_tests()
    killers = {entry["key"]: entry["killed_by"] for entry in table if "::" in entry["killed_by"]}
    first = {key: _halves({killer: _LIMIT_S}, short) for key, killer in killers.items()}
    results |= _examine([one for one in missing if one.key in killers], first, options, keep_survivors=False)
    missing = [one for one in missing if one.key not in results or not results[one.key].killed_by]
    if missing:
        record.record(options.tests or _TESTS, options.root, options.jobs)
        results |= _examine(missing, record.select(missing, short), options, keep_survivors=True)
    print(*_write_table([fault for fault in chosen if fault.key in results], results), sep="\n")
    return 0


def _examine(
    missing: Sequence[Fault], choices: Mapping[str, record.Choice], options: argparse.Namespace, *, keep_survivors: bool
) -> dict[str, Result]:
    """Examines faults with the tests that each meets, prints a line for each, and stores the results."""
    results = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(examine, fault, choices[fault.key], options.root): fault for fault in missing}
        for number, future in enumerate(as_completed(futures), 1):
            fault = futures[future]
            if error := future.exception():
                print(error, flush=True)
                continue
            result = future.result()
            end = f"killed by {result.killed_by}" if result.killed_by else f"SURVIVED {result.met} tests"
            print(f"{number} of {len(missing)}: {fault.path}:{fault.line} {fault.words}: {end}", flush=True)
            if not result.killed_by and not keep_survivors:
                continue
            results[fault.key] = result
            with _RESULTS.open("a") as file:
                print(json.dumps(asdict(result)), file=file)
    return results


def _halves(tests: dict[str, float], short: Collection[str]) -> record.Choice:
    """Divides tests into those of the short suite and the others."""
    return {one: tests[one] for one in tests if one in short}, {one: tests[one] for one in tests if one not in short}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=200, help="the number of faults")
    parser.add_argument("--only", type=int, help="examine at most so many of them now")
    parser.add_argument("--survivors", action="store_true", help="examine the survivors again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many at a time")
    parser.add_argument("--root", type=Path, default=ROOT / "build" / "root", help="from `make test-root`")
    parser.add_argument("tests", nargs="*", help="files and directories of tests to record")
    return parser.parse_args()


def _short_tests() -> set[str]:
    """Returns the IDs of the tests of `make test`; raises CalledProcessError."""
    tests: set[str] = set()
    for part in (part for part in parts.test() if "pytest" in part.command):
        arguments = part.command[part.command.index("pytest") + 2 :]  # without --report
        command = [sys.executable, "-m", "pytest", "--collect-only", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=private.ENV, capture_output=True, text=True, check=True)
        tests |= {line for line in done.stdout.splitlines() if "::" in line}
    return tests


def _read_table() -> list[dict[str, Any]]:
    """Returns the entries of the table of an earlier run."""
    return tomllib.loads(_TABLE.read_text())["mutants"] if _TABLE.exists() else []


def _write_table(examined: Sequence[Fault], results: dict[str, Result]) -> list[str]:
    """Writes the examined faults by file and line; returns a summary of each room and of all."""
    old = _read_table()
    survivors = {key for key, result in results.items() if not result.killed_by}
    why = {entry["key"]: entry["why"] for entry in old if entry["key"] in survivors}
    summary = [_summarize(room, examined, results, why) for room in (*PACKAGES, "")]
    lines = [_HEAD, *(f"# {line}\n" for line in summary), "\nmutants = [\n"]
    for fault in sorted(examined, key=lambda fault: (fault.path, fault.line)):
        result = results[fault.key]
        place = {"key": fault.key, "place": f"{fault.path}:{fault.line}", "fault": fault.words}
        outcome = {"killed_by": result.killed_by, "short": result.short, "tests": result.met}
        fields = {**place, **outcome, "why": why.get(fault.key, "")}
        text = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())
        lines.append(f"    {{ {text} }},\n")
    _TABLE.write_text("".join([*lines, "]\n"]))
    return summary


def _summarize(room: str, examined: Sequence[Fault], results: dict[str, Result], why: dict[str, str]) -> str:
    """Returns how many mutants of a room, or of all, the short suite and all tests killed."""
    group = [results[fault.key] for fault in examined if fault.path.startswith(f"{room}/" if room else "")]
    reasons = [why.get(result.key, "").partition(":")[0] for result in group]
    equivalent, elsewhere = reasons.count("equivalent"), reasons.count("second kernel")
    short = sum(result.short for result in group) + elsewhere
    killed = sum(bool(result.killed_by) for result in group) + elsewhere
    count = max(1, len(group) - equivalent)
    shares = f"short suite {100 * short / count:.0f} %, all {100 * killed / count:.0f} %"
    return f"{room or 'all':<10} {len(group)} mutants, {equivalent} equivalent; killed by: {shares}"


if __name__ == "__main__":
    sys.exit(main())
