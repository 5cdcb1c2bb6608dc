"""`python3 -m tests.runner SUITE|PART...`: runs parts of the test suite, prints each when it ends, then one total.

A suite is `check`, `test`, `test-all` or `nightly`, as the targets of make. Given names of parts, it runs these and the
parts that they need. It uses the standard library only: the virtual environment is one of the parts.

`nightly` continues an earlier run of the same commit, unless another run was in between: it does not repeat parts that
passed. `rm -r build/reports` begins again.

Exit status: 0 if every part succeeded, 1 if one did not, 2 if it cannot start, 130 after Ctrl-C, 143 after SIGTERM.

As root, each part that tests built files runs in namespaces of its own (isolated.sh).
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from process.signals import TERMINATION
from tests.runner import parts, repeat, reports, totals
from tests.runner.reports import Report
from tests.runner.schedule import Part, Result, Schedule

ROOT = Path(__file__).resolve().parent.parent.parent
_ISOLATED = Path(__file__).with_name("isolated.sh")
_SCRATCH = ROOT / "build" / "scratch"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INHERITED = ("CI", "REFERENCE", "TERM", "PODWIRE_SEED", "PODWIRE_STORY")  # by a part in namespaces of its own
_MAKE_VARIABLES = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")  # the job server of make is not for the parts
_QUIET_S = 10  # after so many seconds without output, a line names the running parts


def main(arguments: Sequence[str]) -> int:
    """Runs the named parts; returns the exit status."""
    os.chdir(ROOT)
    try:
        chosen = parts.named(arguments)
    except KeyError as error:
        print(f"no part is called {error}", file=sys.stderr)
        chosen = []
    if not chosen:
        print(f"give a suite, or parts: {', '.join(parts.list_names())}", file=sys.stderr)
        return 2
    if os.geteuid() != 0 and any(part.name == "test-root" for part in chosen):
        print("these parts need root; `make check` does not", file=sys.stderr)
        return 2
    is_nightly = list(arguments) == ["nightly"]
    try:
        lock = prepare_reports(_get_clean_commit() if is_nightly else "")
    except BlockingIOError:
        print("another run uses this directory: wait until it ends, or use a copy", file=sys.stderr)
        return 2
    except PermissionError as error:
        print(f"cannot write build/: {error}: remove what another user has left there", file=sys.stderr)
        return 2
    shutil.rmtree(_SCRATCH, ignore_errors=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    # Most tests wait: for a lock, for the absence of a packet, for the kernel; those of `nightly` use the processor.
    at_once = (os.cpu_count() or 1) * (3 if is_nightly else 5) // 2
    print(
        f"{len(chosen)} parts, {at_once} in parallel, each with its time; their output is in {parts.REPORTS}/",
        flush=True,
    )
    try:
        return _run(chosen, at_once)
    except KeyboardInterrupt:
        print("\nstopped; every process that was started has ended", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(_SCRATCH, ignore_errors=True)
        lock.close()


def _get_clean_commit() -> str:
    """Returns the hash of HEAD; "" if files differ from it, or without git."""
    if not shutil.which("git") or _git("status", "--porcelain"):
        return ""
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), capture_output=True, text=True, check=False).stdout.strip()


def prepare_reports(commit: str) -> IO[str]:
    """Locks the directory of reports, and deletes the reports unless they are of a run of `commit`; "" is none.

    Returns the lock; raises BlockingIOError, PermissionError.
    """
    parts.REPORTS.parent.mkdir(exist_ok=True)
    lock = parts.REPORTS.with_suffix(".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    commit_file = parts.REPORTS / "commit"
    if not commit or not commit_file.exists() or commit_file.read_text() != commit:
        if parts.REPORTS.exists():
            shutil.rmtree(parts.REPORTS)
        parts.KERNELS.mkdir(parents=True)
        commit_file.write_text(commit)
    return lock


def mark_passed(results: Iterable[Result]) -> None:
    """Marks the parts that succeeded, for later runs of the same commit."""
    for result in results:
        if result.succeeded:
            _mark(result.part).touch()


def has_passed(part: Part) -> bool:
    """Returns whether a part has a mark."""
    return _mark(part).exists()


def _mark(part: Part) -> Path:
    return parts.REPORTS / f"{part.name}.passed"


def start(part: Part, log: Path) -> subprocess.Popen[bytes]:
    """Starts the process of a part in a new session, so that only the runner receives Ctrl-C."""
    for earlier in parts.REPORTS.rglob(f"{part.name}.json"):
        earlier.unlink()
    env = {name: value for name, value in os.environ.items() if name not in _MAKE_VARIABLES}
    command = part.command
    if part.isolated and os.geteuid() == 0:
        scratch = _SCRATCH / part.name
        scratch.mkdir(parents=True)
        command = (str(_ISOLATED), str(ROOT / part.root), str(scratch), *command)
        env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        env |= {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8"}
    with log.open("wb") as output:
        return subprocess.Popen(
            ("setpriv", "--pdeathsig=KILL", *command),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_unblock_signals,  # noqa: PLW1509 - the runner has one thread
        )


def _unblock_signals() -> None:
    """Lets a part receive the signals that the runner blocks while it starts the part."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION)


def _run(chosen: Sequence[Part], at_once: int) -> int:
    ended: dict[str, tuple[Result, Report | None]] = {}
    for part in filter(has_passed, chosen):
        result = Result(part, 0, 0, parts.REPORTS / f"{part.name}.log")
        ended[part.name] = result, totals.report_of(result, parts.REPORTS)
    if ended:
        print(f"passed in an earlier run of this commit: {', '.join(ended)}")
    started = time.monotonic()
    schedule = Schedule([part for part in chosen if part.name not in ended], at_once, start)
    for unchecked in _results(schedule, started):
        report = totals.report_of(unchecked, parts.REPORTS)
        result = totals.checked(unchecked, report)
        ended[result.part.name] = result, report
        mark_passed([result])
        _print(result, totals.line(result, report))
    passed_alone = [*repeat.repeat(ended, parts.REPORTS, lambda again: _results(Schedule(again, 1, start), started))]
    results = [result for result, _ in ended.values()]
    mark_passed(results)
    failed = any(not result.succeeded for result in results)
    for directory, pattern in ((parts.KERNELS, "second-kernel-*"), (parts.DEBIAN_KERNELS, "*")):
        if any(directory.glob(pattern)):
            failed |= bool(reports.main(directory))
    test_reports = [report for _, report in ended.values() if report]
    lines = totals.summary(results, test_reports, passed_alone, time.monotonic() - started)
    print("\n".join(lines), flush=True)
    return int(failed)


def _results(schedule: Schedule, started: float) -> Iterator[Result]:
    """Runs parts and yields each one's result; prints a line now and then, so that a user sees that they run."""
    printed = time.monotonic()
    for result in schedule.results(parts.REPORTS):
        if result:
            yield result
        elif time.monotonic() - printed < _QUIET_S:
            continue
        else:
            print(f"after {totals.minutes(time.monotonic() - started)}: {', '.join(schedule.running)} run", flush=True)
        printed = time.monotonic()


def _print(result: Result, line: str) -> None:
    """Prints the line of an ended part; for a failed part, prints all its output first."""
    if result.status:
        sys.stdout.flush()
        sys.stdout.buffer.write(result.log.read_bytes())
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
