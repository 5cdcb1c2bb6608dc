"""Runs the system's tools for tests, and derives names of objects from the process that creates them.

One rule: when a tool fails, the test's failure contains its stderr.
"""

import os
import subprocess
import traceback
from collections.abc import Callable

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # independent of the tester's PATH


def output(*argv: str, stdin: str | None = None, check: bool = True) -> str:
    """Runs a program and returns its stdout; AssertionError with its stderr if it fails and `check` is set."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}"
    return done.stdout


def in_a_child(function: Callable[[], object]) -> bool:
    """Runs `function` in a forked process with one thread, as a plugin has; returns whether its result is true."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if function() else 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def identity(pid: int) -> str:
    """Returns a process as part of a name, unique across PID namespaces: "4026531836-4711"."""
    return f"{os.stat('/proc/self/ns/pid').st_ino}-{pid}"


def pid_of(name: str) -> int:
    """Returns the process ID in an identity; 0 for other text, or an identity of another PID namespace."""
    pid = name.rpartition("-")[2]
    return int(pid) if pid.isdecimal() and name == identity(int(pid)) else 0
