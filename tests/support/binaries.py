"""The directory of the executables under test, and the names of the plugins in it.

One rule: the list of plugins is the list of files, so tests include a new plugin automatically.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from tests.runner.reports import in_ci

ROOT = Path(__file__).resolve().parent.parent.parent
# The Go plugins: those that `make needs-test` unpacks, or in the test root the installed ones.
_UNPACKED = ROOT / "build" / "reference" / "debian"
REFERENCE = Path(os.environ.get("REFERENCE") or (_UNPACKED if _UNPACKED.exists() else "/usr/lib/cni")).absolute()

_TOOL = "podwire"  # the operator's tool: the same file, but not a plugin


def directory() -> Path:
    """Returns the directory of the built executables: PODWIRE_BIN_DIR, relative to the project, or dist/bin."""
    return ROOT / (os.environ.get("PODWIRE_BIN_DIR") or "dist/bin")


def names() -> list[str]:
    """Returns the names of the built plugins; none when nothing is built."""
    if not directory().is_dir():
        return []
    return sorted(file.name for file in directory().iterdir() if file.is_file() and file.name != _TOOL)


def reference_is_new() -> bool:
    """Returns whether the reference plugins of this run are those of 1.6.0 or later, which support CNI 1.1.0."""
    line, env = [str(REFERENCE / "dhcp")], {"CNI_COMMAND": "VERSION"}
    done = subprocess.run(line, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return "1.1.0" in json.loads(done.stdout)["supportedVersions"]


def skip_or_fail(problem: str) -> NoReturn:
    """Skips a test that lacks something, or fails it in CI."""
    if in_ci():
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem)


def explain_missing() -> str:
    """Returns the message for missing executables, "" when they exist."""
    if names():
        return ""
    hint = "build them before the tests" if in_ci() else "run `make binaries`, or set PODWIRE_BIN_DIR"
    return f"no plugin executables in {directory()}: {hint}"


def copy_to(target: Path) -> None:
    """Copies the built executables to a new directory; names of one file stay names of one file."""
    target.mkdir()
    copies: dict[int, Path] = {}
    for source in sorted(file for file in directory().iterdir() if file.is_file()):
        number = source.stat().st_ino
        if number in copies:
            (target / source.name).hardlink_to(copies[number])
        else:
            copies[number] = Path(shutil.copy2(source, target))
