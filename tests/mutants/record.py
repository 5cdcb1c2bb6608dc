"""The recording: the lines of the product that each test reaches, and the seconds that it takes.

One rule: a file of tests is recorded once, and again after a change, so an interrupted recording continues.
"""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tests.mutants import launchers, plugin, recording
from tests.mutants.private import copy
from tests.mutants.recording import ROOT

_RECORD = launchers.BUILD / "record"
_FILES_OF_A_RUN = 4
_LIMIT_S = 3 * 3600
_HOOK = (
    "import importlib.util as u; s = u.spec_from_file_location('podwire_recording', {file!r}); "
    "m = u.module_from_spec(s); s.loader.exec_module(m); m.start_interpreter()\n"
)


@dataclass(frozen=True)
class Recorded:
    """A test that passed: its time, and the lines in functions that it executed, by files of the product."""

    test: str
    seconds: float
    lines: dict[str, list[int]]


def record(files: Sequence[str], root: Path, jobs: int) -> None:
    """Records the tests of these files that are not recorded, and prints a line for each run of pytest."""
    _RECORD.mkdir(parents=True, exist_ok=True)
    missing = [file for file in files if not _is_recorded(file)]
    runs = [missing[i : i + _FILES_OF_A_RUN] for i in range(0, len(missing), _FILES_OF_A_RUN)]
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_record_files, run, root) for run in runs]
        for number, future in enumerate(as_completed(futures), 1):
            print(f"record: {number} of {len(runs)} runs, {future.result()}", flush=True)


def read() -> Iterator[Recorded]:
    """Yields the recorded tests."""
    for file in sorted(_RECORD.iterdir()):
        for entry in json.loads(file.read_text()):
            yield Recorded(**entry)


def _is_recorded(file: str) -> bool:
    return _place(file).exists() and _place(file).stat().st_mtime > (ROOT / file).stat().st_mtime


def _place(file: str) -> Path:
    return _RECORD / f"{file.replace('/', '-')}.json"


def _record_files(files: list[str], root: Path) -> str:
    """Records one run of pytest; returns its description."""
    with copy(root) as private:
        directory = private.create(plugin.TIMES).parent
        directory.chmod(0o777)  # for programs without root's rights
        hook = Path(sysconfig.get_path("purelib")) / "podwire_recording.pth"
        private.create(hook).write_text(_HOOK.format(file=recording.__file__))
        status = private.run_pytest(files, _LIMIT_S)
        if status not in (0, 1):
            return f"{' '.join(files)}: no result (status {status})\n{private.tail()}"
        tests = _merge(directory)
    for file in files:
        entries = [asdict(test) for test in tests if test.test.startswith(f"{file}::")]
        _place(file).write_text(json.dumps(entries))
    return f"{len(tests)} tests of {' '.join(files)}, status {status}"


def _merge(directory: Path) -> list[Recorded]:
    """Returns the tests that passed, with the lines of all their processes."""
    seconds: dict[str, float] = json.loads((directory / plugin.TIMES.name).read_text())
    tests: dict[str, dict[str, set[int]]] = {test: {} for test in seconds}
    for file in directory.glob("*.lines"):
        for line in file.read_text().splitlines():
            test, path, *numbers = line.split("\t")
            if test in tests and (reached := lines_of_functions(path) & set(map(int, numbers))):
                tests[test].setdefault(path, set()).update(reached)
    return [
        Recorded(test, seconds[test], {path: sorted(numbers) for path, numbers in lines.items()})
        for test, lines in tests.items()
    ]


@cache
def lines_of_functions(path: str) -> frozenset[int]:
    """Returns the lines of a file that an import does not execute."""
    tree = ast.parse((ROOT / path).read_bytes())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(
        line for node in functions for line in range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)
    )


def list_files(names: Sequence[str]) -> list[str]:
    """Returns the test files of these directories, and these files."""
    paths = [ROOT / name for name in names]
    listed = [file for path in paths for file in (sorted(path.glob("test_*.py")) if path.is_dir() else [path])]
    return [str(file.relative_to(ROOT)) for file in listed]
