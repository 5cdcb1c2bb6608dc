"""The version of the reference plugins in a directory, for the heads of tables.

One rule: nothing is guessed; without a source the version is "".
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_NUMBER = r"\d+(?:\.\d+)+"
_PACKAGE = "containernetworking-plugins"


def reference_version(directory: Path) -> str:
    """Returns the upstream version of the plugins, such as "1.9.1"; "" if it is unknown.

    Upstream's builds end their text with it. Debian's do not: theirs is the name of the directory, into which `make
    newest-reference` unpacked them, or the version of the package that installed them.
    """
    printed = re.search(rf"plugin v({_NUMBER})(?!\S)", _output(str(directory / "bridge")))
    if printed:
        return printed[1]
    named = re.match(_NUMBER, directory.resolve().name)
    if named:
        return named[0]
    if not _output("dpkg-query", "--search", str(directory / "bridge")).startswith(f"{_PACKAGE}:"):
        return ""
    installed = re.match(_NUMBER, _output("dpkg-query", "--show", "--showformat", "${Version}", _PACKAGE))
    return installed[0] if installed else ""


def _output(*argv: str) -> str:
    """Returns what a program prints, on both streams; "" if it cannot run."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env={})
    except OSError:
        return ""
    return done.stdout + done.stderr
