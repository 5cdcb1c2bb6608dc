"""The Python half of launcher.c: imports the program, runs it, and returns its exit status, as pack/boot.py does.

One rule: it imports as little as possible, because each program of a test pays for it.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import marshal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

# The code that dataclasses compiles at each import, by its source: a third of the time to start; see launchers.py.
CODES = Path(__file__).resolve().parents[2] / "build" / "mutants" / "codes"
# Half of the modules, which no plugin uses: they are executed when the entry reads an attribute of one of these.
_LATE = ("podwire.cli", "podwire.kubectl", "ipam.dhcp.daemon.program")


class _LateFinder(PathFinder):
    """Finds the modules that are executed at their first use."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a late module, None for others."""
        spec = super().find_spec(fullname, path, target) if fullname in _LATE else None
        if spec and spec.loader:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def start() -> int:
    """Runs the program that argv[0] names; returns the exit status."""
    gc.set_threshold(50_000)  # as in the built file
    sys.executable = ""
    sys.meta_path.insert(0, _LateFinder)
    with open(CODES, "rb") as file:
        compiled: dict[str, CodeType] = marshal.load(file)

    def execute(source: str, scope: dict[str, object], names: dict[str, object]) -> None:
        exec(compiled.get(source) or source, scope, names)

    vars(dataclasses)["exec"] = execute
    from tests.mutants import recording  # noqa: PLC0415 - after the threshold

    stop = recording.start()
    try:
        from podwire import main  # noqa: PLC0415 - after the recording has started

        status = main.entry()
    except SystemExit as end:
        status = _status_of(end)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or 1
    stop()
    return status


def _status_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
