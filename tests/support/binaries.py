"""Where the executables under test are, and which plugins they are.

One rule: the list of plugins is the list of files, so that a new plugin is tested without being named anywhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCE = Path(os.environ.get("REFERENCE", "/usr/lib/cni"))  # the Go plugins, to compare with

_TOOL = "podwire"  # the operator's tool: the same file, but no plugin


def directory() -> Path:
    """Returns the directory of the built executables: PODWIRE_BIN_DIR, as seen from here, or dist/bin."""
    return ROOT / (os.environ.get("PODWIRE_BIN_DIR") or "dist/bin")


def names() -> list[str]:
    """Returns the names of the built plugins; none when nothing is built."""
    if not directory().is_dir():
        return []
    return sorted(file.name for file in directory().iterdir() if file.is_file() and file.name != _TOOL)


def in_ci() -> bool:
    """Tells whether CI=true, where nothing may be left out."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def skip_or_fail(problem: str) -> NoReturn:
    """Skips a test for what is not there, and fails it in CI."""
    if in_ci():
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem)


def explain_missing() -> str:
    """Returns what to tell when the executables are not there, "" when they are."""
    if names():
        return ""
    hint = "build them before the tests" if in_ci() else "run `make binaries`, or set PODWIRE_BIN_DIR"
    return f"no plugin executables in {directory()}: {hint}"
