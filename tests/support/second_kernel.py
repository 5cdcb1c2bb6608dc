"""A second kernel for the tests: Debian's user-mode Linux, an ordinary program that boots in three seconds.

By hand: `make test-second-kernel TESTS=tests/netns/test_bridge_add.py`. From a test: `boot(command, shared)`.

One rule: what runs inside cannot reach the machine: its root file system is the machine's, read-only, and what it
leaves behind is what it writes to `/run/shared`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.binaries import ROOT

PROGRAM = "linux.uml"
SHARED = Path("/run/shared")  # the shared directory, as it is called inside

_INIT = Path(__file__).with_suffix(".sh")
_MEMORY_BYTES = 1 << 30
_TIMEOUT = "--timeout=300"  # of a test: the longest takes 40 s, and thrice that when the machine is busy
_PASSED_ON = ("CI", "PODWIRE_BIN_DIR", "REFERENCE")


class NoAnswerError(Exception):
    """The second kernel did not come up, or did not come to an end; carries what it said."""


def missing() -> str:
    """Returns what to tell when there is no second kernel here, "" when there is one."""
    absent = [name for name in (PROGRAM, "modprobe") if not shutil.which(name, path=f"{os.environ['PATH']}:/sbin")]
    return f"no second kernel: no {' and '.join(absent)}; install Debian's user-mode-linux and kmod" if absent else ""


def boot(
    command: Sequence[str],
    shared: Path,
    *,
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | None = None,
    timeout_s: float = 1800,
    processor: int | None = None,
) -> int:
    """Boots, runs `command` in the project's directory and returns its exit status; it is a new boot each time.

    `shared` is an existing directory, /run/shared inside: the only one where what is written stays. stdout and stderr
    of the command go to `stdout`, this process's unless given. `processor` tells boots at the same time apart: the
    numbers from 0 are dealt to the machine's processors. Raises NoAnswerError.
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    lines += [f"cd {shlex.quote(str(ROOT))}", shlex.join(command)]
    (shared / "command").write_text("\n".join(lines) + "\n")
    (shared / "status").unlink(missing_ok=True)
    with tempfile.TemporaryFile() as messages:
        output = os.dup((stdout or sys.stdout).fileno())  # not 1, which has the messages
        number = os.getpid() if processor is None else processor
        _run(_line(shared.absolute(), output, number), messages, output, timeout_s)
        status = (shared / "status").read_text() if (shared / "status").exists() else ""
        if not status.strip():
            messages.seek(0)
            said = messages.read().decode(errors="replace")
            raise NoAnswerError(f"the second kernel gave no answer within {timeout_s} s; it said:\n{said}")
    return int(status)


def _line(shared: Path, output: int, processor: int) -> list[str]:
    # Its kernel and its programs are processes that take turns: on one processor they hand over twice as fast.
    # Dealt there and back: what is tested with each of two backends makes every other share heavier.
    processors = sorted(os.sched_getaffinity(0))
    turn, place = divmod(processor, len(processors))
    return [
        *("taskset", "--cpu-list", str(processors[~place if turn % 2 else place])),
        *(PROGRAM, f"mem={_MEMORY_BYTES >> 20}M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"),
        *("quiet", "loglevel=4", "con=null", "con0=null,fd:1", f"ssl0=null,fd:{output}"),
        *(f"init={_INIT}", f"PODWIRE_SHARED={shared}", f"uml_dir={shared}/", "umid=uml"),
    ]


def _run(line: list[str], messages: IO[bytes], output: int, timeout_s: float) -> None:
    alive, held = os.pipe()  # all its processes hold one end of it until they are gone
    kernel = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=messages,
        stderr=messages,
        env={**os.environ, "TMPDIR": _memory_directory()},
        pass_fds=[output, held],
        start_new_session=True,  # its processes are processes of the machine: a group, to be killed together
    )
    os.close(output)
    os.close(held)
    try:
        kernel.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(kernel.pid, signal.SIGKILL)
        kernel.wait()
        os.read(alive, 1)
        os.close(alive)


def _memory_directory() -> str:
    """Returns where the file that is its memory fits: a container's /dev/shm may be small."""
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize if os.path.isdir("/dev/shm") else 0
    return "/dev/shm" if free > _MEMORY_BYTES else "/var/tmp"


def main(arguments: list[str]) -> int:
    """Runs pytest with `arguments` in the second kernel; returns its exit status."""
    parser = argparse.ArgumentParser(description=main.__doc__, allow_abbrev=False)
    parser.add_argument("--report", metavar="FILE", type=Path, help="as tests/conftest.py has it, but out here")
    parser.add_argument("--share", default="0/1", help="as tests/conftest.py has it; shares have different processors")
    ours, theirs = parser.parse_known_args(arguments)
    if problem := missing():
        print(problem, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was booted ends with this program
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    number, _, shares = ours.share.partition("/")
    processor = int(number) if shares != "1" else None
    options = [_TIMEOUT, f"--share={ours.share}", f"--color={'yes' if sys.stdout.isatty() else 'no'}"]
    with tempfile.TemporaryDirectory(prefix="podwire-kernel-", dir="/var/tmp") as directory:
        options += [f"--report={SHARED}/report", *theirs]
        pytest = [sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", *options]
        try:
            status = boot(pytest, Path(directory), env=passed_on, processor=processor)
        except NoAnswerError as error:
            print(error, file=sys.stderr)
            return 1
        report = Path(directory) / "report"
        if ours.report and report.exists():
            ours.report.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(report, ours.report)
        return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
