"""Tests do not depend on the shell that starts them."""

import os
import subprocess
import sys

from tests.support.binaries import ROOT

# Prints the values that a program which a test starts inherits.
CHILD = """
import os, signal, time
ignored = {one.name for one in signal.Signals if signal.getsignal(one) is signal.SIG_IGN} - {"SIGPIPE", "SIGXFSZ"}
print(sorted(ignored), signal.pthread_sigmask(signal.SIG_BLOCK, ()), oct(os.umask(0)), time.tzname[0], end=" ")
print({name: value for name, value in os.environ.items() if name.startswith(("LC_", "LANG"))})
"""
TESTS = f"""
import signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
from tests.support import inherited
inherited.reset()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
"""
SHELL = """trap "" INT HUP QUIT TERM USR1 USR2 CHLD ALRM; umask 077; exec "$0" -c "$1" """


def test_signals_umask_and_locale_are_set() -> None:
    """Under a shell that ignores signals, with another umask, locale and time zone, tests have the usual ones."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LC_ALL": "C", "LANGUAGE": "de", "TZ": "Asia/Tokyo"}
    command = ["sh", "-c", SHELL, sys.executable, TESTS]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[] set() 0o22 UTC {'LANG': 'C.UTF-8'}\n", "")
