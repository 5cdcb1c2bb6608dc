"""Running the system's own tools for a test, and naming objects after the process that creates them.

One rule: a tool that fails says what it said, in the test's failure.
"""

from __future__ import annotations

import os
import subprocess

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # whatever the tester's own is


def output(*argv: str, stdin: str | None = None, check: bool = True) -> str:
    """Returns the stdout of a program; AssertionError with its stderr when it fails and `check` is on."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}"
    return done.stdout


def identity(pid: int) -> str:
    """Returns a process as a part of a name, unique also beside tests in another PID namespace: "4026531836-4711"."""
    return f"{os.stat('/proc/self/ns/pid').st_ino}-{pid}"


def pid_of(name: str) -> int:
    """Returns the process id of an identity, 0 for what is none, or one of another PID namespace."""
    pid = name.rpartition("-")[2]
    return int(pid) if pid.isdecimal() and name == identity(int(pid)) else 0
