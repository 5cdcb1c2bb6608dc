"""A second kernel for the tests: Debian's user-mode Linux, an ordinary program that boots in three seconds.

By hand: `make test-second-kernel TESTS=tests/netns/test_bridge_add.py`. From a test: `boot(command, shared)`.

One rule: programs in it cannot change the machine: its root file system is the machine's, read-only, and only the files
in `/run/shared` remain.
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
SHARED = Path("/run/shared")  # the shared directory, in the second kernel

_INIT = Path(__file__).with_suffix(".sh")
_REGISTERS = Path(__file__).with_name("second_kernel_registers.c")
_MEMORY_BYTES = 1 << 30
_TIMEOUT = "--timeout=300"  # of a test: the longest takes 40 s, on a busy machine three times as long
_PASSED_ON = ("CI", "PODWIRE_BIN_DIR", "REFERENCE")


class NoAnswerError(Exception):
    """The second kernel did not boot or did not end in time; the message has its output."""


def missing() -> str:
    """Returns a message if no second kernel is installed, "" otherwise."""
    absent = [name for name in (PROGRAM, "modprobe") if not shutil.which(name, path=f"{os.environ['PATH']}:/sbin")]
    return f"no second kernel: no {' and '.join(absent)}; install Debian's user-mode-linux and kmod" if absent else ""


def boot(
    command: Sequence[str],
    shared: Path,
    *,
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | None = None,
    timeout_s: float = 2700,
    processor: int | None = None,
) -> int:
    """Boots, runs `command` in the project's directory and returns its exit status.

    `shared` is an existing directory, /run/shared in the second kernel: the only one in which files remain. stdout and
    stderr of the command go to `stdout`, this process's by default. `processor` numbers parallel boots from 0, for
    distributing them to the machine's processors. Raises NoAnswerError.
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    lines += [f"cd {shlex.quote(str(ROOT))}", shlex.join(command)]
    (shared / "command").write_text("\n".join(lines) + "\n")
    (shared / "status").unlink(missing_ok=True)
    library = shared.absolute() / "registers.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, _REGISTERS], check=True)
    with tempfile.TemporaryFile() as messages:
        output = os.dup((stdout or sys.stdout).fileno())  # not 1, which has the messages
        number = os.getpid() if processor is None else processor
        _run(_line(shared.absolute(), output, number), messages, output, timeout_s, library)
        status = (shared / "status").read_text() if (shared / "status").exists() else ""
        if not status.strip():
            messages.seek(0)
            text = messages.read().decode(errors="replace")
            raise NoAnswerError(f"the second kernel gave no answer within {timeout_s} s; its messages:\n{text}")
    return int(status)


def _line(shared: Path, output: int, processor: int) -> list[str]:
    # Its kernel and its programs are processes that run alternately: on one processor they switch twice as fast.
    # Processors are assigned there and back: tests with two backends make every second share longer.
    processors = sorted(os.sched_getaffinity(0))
    turn, position = divmod(processor, len(processors))
    return [
        *("taskset", "--cpu-list", str(processors[~position if turn % 2 else position])),
        *(PROGRAM, f"mem={_MEMORY_BYTES >> 20}M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"),
        "lsm=yama",  # without SELinux, as the first kernel: without a policy, it accepts every label
        *("quiet", "loglevel=4", "con=null", "con0=null,fd:1", f"ssl0=null,fd:{output}"),
        *(f"init={_INIT}", f"PODWIRE_SHARED={shared}", f"uml_dir={shared}/", "umid=uml"),
    ]


def _run(line: list[str], messages: IO[bytes], output: int, timeout_s: float, library: Path) -> None:
    alive, held = os.pipe()  # all its processes keep the second end open until they end
    kernel = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=messages,
        stderr=messages,
        env={**os.environ, "TMPDIR": _memory_directory(), "LD_PRELOAD": str(library)},
        pass_fds=[output, held],
        start_new_session=True,  # its processes are processes of the machine: a process group can be killed
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
    """Returns a directory with room for the file that is its memory: a container's /dev/shm may be small."""
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize if os.path.isdir("/dev/shm") else 0
    return "/dev/shm" if free > _MEMORY_BYTES else "/var/tmp"


def main(arguments: list[str]) -> int:
    """Runs pytest with `arguments` in the second kernel; returns its exit status."""
    parser = argparse.ArgumentParser(description=main.__doc__, allow_abbrev=False)
    parser.add_argument("--report", metavar="FILE", type=Path, help="as in tests/conftest.py; a path of this machine")
    parser.add_argument("--share", default="0/1", help="as in tests/conftest.py; shares have different processors")
    known, others = parser.parse_known_args(arguments)
    if problem := missing():
        print(problem, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the second kernel ends with this program
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    number, _, shares = known.share.partition("/")
    processor = int(number) if shares != "1" else None
    options = [_TIMEOUT, f"--share={known.share}", f"--color={'yes' if sys.stdout.isatty() else 'no'}"]
    with tempfile.TemporaryDirectory(prefix="podwire-kernel-", dir="/var/tmp") as directory:
        options += [f"--report={SHARED}/report", *others]
        pytest = [sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", *options]
        try:
            status = boot(pytest, Path(directory), env=passed_on, processor=processor)
        except NoAnswerError as error:
            print(error, file=sys.stderr)
            return 1
        report = Path(directory) / "report"
        if known.report and report.exists():
            known.report.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(report, known.report)
        return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
