"""Running the system's own tools for a test.

One rule: a tool that fails says what it said, in the test's failure.
"""

from __future__ import annotations

import subprocess

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # whatever the tester's own is


def output(*argv: str, stdin: str | None = None, check: bool = True) -> str:
    """Returns the stdout of a program; AssertionError with its stderr when it fails and `check` is on."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}"
    return done.stdout
