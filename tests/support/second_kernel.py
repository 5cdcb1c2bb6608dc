"""A second kernel for the tests: Debian's user-mode Linux, an ordinary program that boots in three seconds.

By hand: `make test-second-kernel TESTS=tests/netns/test_bridge_add.py`. From a test: `boot(command, shared)`.

One rule: its root file system is the machine's, read-only, so that it needs no installation.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from tests.support import kernel_boot, kernels
from tests.support.kernel_boot import Program

PROGRAM = "linux.uml"

_INIT = Path(__file__).with_suffix(".sh")
_PTRACE = Path(__file__).with_name("second_kernel_ptrace.c")
_MEMORY_BYTES = 1 << 30
_TIMEOUT = "--timeout=600"  # of a test: the longest takes 40 s


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
    """Boots, runs `command` in the project's directory and returns its exit status: kernel_boot.boot.

    `processor` numbers parallel boots from 0, for distributing them to the machine's processors. Raises NoAnswerError.
    """
    prepare = partial(_prepare, os.getpid() if processor is None else processor)
    return kernel_boot.boot(prepare, command, shared, env=env, stdout=stdout, timeout_s=timeout_s)


def _prepare(processor: int, shared: Path, output: int, messages: int) -> Program:
    """Returns the program of a boot: its stdout has the messages, another file descriptor the command's output."""
    library = shared / "ptrace.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, _PTRACE], check=True)
    # Its kernel and its programs are processes that run alternately: on one processor they switch twice as fast.
    # Every other round begins with the last processor, because every second share takes longer.
    processors = sorted(os.sched_getaffinity(0))
    turn, position = divmod(processor, len(processors))
    line = [
        *("taskset", "--cpu-list", str(processors[~position if turn % 2 else position])),
        *(PROGRAM, f"mem={_MEMORY_BYTES >> 20}M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"),
        "lsm=yama",  # without SELinux, as the first kernel: without a policy, it accepts every label
        *("quiet", "loglevel=4", "con=null", "con0=null,fd:1", f"ssl0=null,fd:{output}"),
        *(f"init={_INIT}", f"PODWIRE_SHARED={shared}", f"uml_dir={shared}/", "umid=uml"),
    ]
    return Program(line, {"TMPDIR": _memory_directory(), "LD_PRELOAD": str(library)}, prints_messages=True)


def _memory_directory() -> str:
    """Returns a directory with room for its memory, which is a file: a container's /dev/shm may be small."""
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize if os.path.isdir("/dev/shm") else 0
    return "/dev/shm" if free > _MEMORY_BYTES else "/var/tmp"


def main(arguments: list[str]) -> int:
    """Runs pytest with `arguments` in the second kernel; returns its exit status."""
    parser = kernel_boot.parser(main.__doc__)
    parser.add_argument("--share", default="0/1", help="as in tests/conftest.py; shares have different processors")
    about = (
        "only the tests that the running kernel cannot run, and a few of the others (--lacking in tests/conftest.py)"
    )
    parser.add_argument("--complement", action="store_true", help=about)
    known, others = parser.parse_known_args(arguments)
    if problem := missing():
        print(problem, file=sys.stderr)
        return 1
    number, _, shares = known.share.partition("/")
    processor = int(number) if shares != "1" else None

    def boot_command(command: Sequence[str], shared: Path, env: Mapping[str, str]) -> int:
        return boot(command, shared, env=env, processor=processor)

    if known.complement:
        others.append(f"--lacking={','.join(kernels.list_lacking())}")
    return kernel_boot.run_pytest(boot_command, known.report, [_TIMEOUT, f"--share={known.share}", *others])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
