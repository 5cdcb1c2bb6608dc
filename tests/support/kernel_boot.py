"""Boots another kernel for one command: the part that user-mode Linux and an emulated machine have in common.

One rule: programs under the other kernel cannot change the machine: its file systems are read-only, and only the files
in `/run/shared` remain.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tests.support.binaries import ROOT

SHARED = Path("/run/shared")  # the shared directory, under the other kernel

_PASSED_ON = ("CI", "PODWIRE_BIN_DIR", "REFERENCE")


class NoAnswerError(Exception):
    """The other kernel did not boot or did not end in time; the message has its output."""


class Program(NamedTuple):
    """The program that is the kernel, or the emulator of its machine."""

    line: Sequence[str]
    env: Mapping[str, str]
    prints_messages: bool  # its stdout has the kernel's messages; otherwise the output of the command


# Returns the program for a shared directory and two file descriptors, of the command's output and of the messages.
Prepare = Callable[[Path, int, int], Program]


def boot(
    prepare: Prepare,
    command: Sequence[str],
    shared: Path,
    *,
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | None = None,
    timeout_s: float,
) -> int:
    """Boots, runs `command` in the project's directory and returns its exit status.

    `shared` is an existing directory, /run/shared under the other kernel: the only one in which files remain. stdout
    and stderr of the command go to `stdout`, this process's by default. Raises NoAnswerError.
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    lines += [f"cd {shlex.quote(str(ROOT))}", shlex.join(command)]
    (shared / "command").write_text("\n".join(lines) + "\n")
    (shared / "status").unlink(missing_ok=True)
    with tempfile.TemporaryFile() as messages:
        output = os.dup((stdout or sys.stdout).fileno())  # not 1, which may have the messages
        try:
            _run(prepare(shared.absolute(), output, messages.fileno()), output, messages.fileno(), timeout_s)
        finally:
            os.close(output)
        status = (shared / "status").read_text() if (shared / "status").exists() else ""
        if not status.strip():
            messages.seek(0)
            text = messages.read().decode(errors="replace")
            raise NoAnswerError(f"the other kernel gave no answer within {timeout_s} s; its messages:\n{text}")
    return int(status)


def _run(program: Program, output: int, messages: int, timeout_s: float) -> None:
    alive, held = os.pipe()  # all its processes keep the second end open until they end
    kernel = subprocess.Popen(
        program.line,
        stdin=subprocess.DEVNULL,
        stdout=messages if program.prints_messages else output,
        stderr=messages,
        env={**os.environ, **program.env},
        pass_fds=[output, messages, held],
        start_new_session=True,  # its processes are processes of the machine: a process group can be killed
    )
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


def run_pytest(
    boot_command: Callable[[Sequence[str], Path, Mapping[str, str]], int], report: Path | None, options: Sequence[str]
) -> int:
    """Runs pytest with `options` under the other kernel; returns its exit status.

    `boot_command` boots for a command, with a shared directory and an environment. The report of tests/conftest.py is
    copied to `report`.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the other kernel ends with this program
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    color = f"--color={'yes' if sys.stdout.isatty() else 'no'}"
    with tempfile.TemporaryDirectory(prefix="podwire-kernel-", dir="/var/tmp") as directory:
        pytest = [sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", color]
        try:
            status = boot_command([*pytest, f"--report={SHARED}/report", *options], Path(directory), passed_on)
        except NoAnswerError as error:
            print(error, file=sys.stderr)
            return 1
        written = Path(directory) / "report"
        if report and written.exists():
            report.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(written, report)
        return status


def parser(about: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the options that every kernel's program has; the others are pytest's."""
    new = argparse.ArgumentParser(description=about, allow_abbrev=False)
    new.add_argument("--report", metavar="FILE", type=Path, help="as in tests/conftest.py; a path of this machine")
    return new
