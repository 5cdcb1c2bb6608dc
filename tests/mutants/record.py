"""The recording of the lines of the product that each test reaches, and the choice of the tests that a fault meets.

A file of tests is recorded once, and again after a change, so an interrupted recording continues. A fault meets the
tests that reach its statement, the quickest first.

One rule: a statement that only an import executes is reached by the tests that execute a function of its file.
"""

import ast
import json
import re
import sysconfig
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path

from tests.mutants import plugin, private, recording
from tests.mutants.faults import Fault
from tests.mutants.recording import PACKAGES, ROOT

_RECORD = private.BUILD / "record"
_FILES_OF_A_RUN, _LIMIT_S = 4, 3 * 3600
_MOST, _MOST_S = 300, 600  # tests of each half that a fault meets at most, and their time
_HOOK = (
    "import importlib.util as u; s = u.spec_from_file_location('podwire_recording', {file!r}); "
    "m = u.module_from_spec(s); s.loader.exec_module(m); m.start_interpreter()\n"
)
Choice = tuple[dict[str, float], dict[str, float]]  # the seconds of the tests of the short suite, and of the others


def record(names: Sequence[str], root: Path, jobs: int) -> None:
    """Records the unrecorded tests of these files and directories, and prints a line for each run of pytest."""
    _RECORD.mkdir(parents=True, exist_ok=True)
    paths = [path for name in names for path in (sorted((ROOT / name).glob("test_*.py")) or [ROOT / name])]
    missing = [file for path in paths if not _is_recorded(file := str(path.relative_to(ROOT)))]
    runs = [missing[i : i + _FILES_OF_A_RUN] for i in range(0, len(missing), _FILES_OF_A_RUN)]
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_record_files, run, root) for run in runs]
        for number, future in enumerate(as_completed(futures), 1):
            print(f"record: {number} of {len(runs)} runs, {future.result()}", flush=True)


def select(faults: Sequence[Fault], short: Collection[str]) -> dict[str, Choice]:
    """Returns the tests of each fault, in the order of the run."""
    targets = {fault.key: _targets(fault) for fault in faults}
    reached: dict[str, Choice] = {fault.key: ({}, {}) for fault in faults}
    for file in _RECORD.iterdir():
        for test, (seconds, lines) in json.loads(file.read_text()).items():
            for key, files in targets.items():
                if any(not target.isdisjoint(lines.get(path, ())) for path, target in files.items()):
                    reached[key][test not in short][test] = seconds
    return {key: (_limit(first), _limit(second)) for key, (first, second) in reached.items()}


def _limit(times: dict[str, float]) -> dict[str, float]:
    """Returns the quickest tests, at least one."""
    chosen: dict[str, float] = {}
    for test, seconds in sorted(times.items(), key=lambda item: (item[1], item[0]))[:_MOST]:
        if not chosen or sum(chosen.values()) + seconds <= _MOST_S:
            chosen[test] = seconds
    return chosen


def _targets(fault: Fault) -> dict[str, frozenset[int]]:
    """Returns the lines of files of which a test must have executed one."""
    functions = _lines_of_functions(fault.path)
    if functions:
        return {fault.path: functions.intersection(fault.lines) or functions}
    return {path: _lines_of_functions(path) for path in _importers(fault.path)}


@cache
def _importers(path: str) -> list[str]:
    """Returns the files that import this one."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, module = name.rpartition(".")
    imports = re.compile(
        rf"^\s*(?:(?:import|from) {name}\b|from {package} import (?:\([^)]*|.*)\b{module}\b)", re.MULTILINE
    )
    files = [file for room in PACKAGES for file in sorted((ROOT / room).rglob("*.py"))]
    return [str(file.relative_to(ROOT)) for file in files if imports.search(file.read_text())]


@cache
def _lines_of_functions(path: str) -> frozenset[int]:
    """Returns the lines of a file that an import does not execute."""
    nodes = ast.walk(ast.parse((ROOT / path).read_bytes()))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(
        line for node in functions for line in range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)
    )


def _is_recorded(file: str) -> bool:
    return _place(file).exists() and _place(file).stat().st_mtime > (ROOT / file).stat().st_mtime


def _place(file: str) -> Path:
    return _RECORD / f"{file.replace('/', '-')}.json"


def _record_files(files: list[str], root: Path) -> str:
    """Records one run of pytest; returns its description."""
    with private.copy(root) as copy:
        directory = copy.create(plugin.TIMES).parent
        directory.chmod(0o777)  # for programs without root's rights
        hook = Path(sysconfig.get_path("purelib")) / "podwire_recording.pth"
        copy.create(hook).write_text(_HOOK.format(file=recording.__file__))
        status = copy.run_pytest(files, _LIMIT_S)
        if status not in (0, 1):
            return f"{' '.join(files)}: no result (status {status})\n{copy.tail()}"
        tests = _merge(directory)
    for file in files:
        _place(file).write_text(json.dumps({test: tests[test] for test in tests if test.startswith(f"{file}::")}))
    return f"{len(tests)} tests of {' '.join(files)}, status {status}"


def _merge(directory: Path) -> dict[str, tuple[float, dict[str, list[int]]]]:
    """Returns the tests that passed: their seconds, and the lines in functions that all their processes executed."""
    seconds: dict[str, float] = json.loads((directory / plugin.TIMES.name).read_text())
    reached: dict[str, dict[str, set[int]]] = {test: {} for test in seconds}
    for line in (line for file in directory.glob("*.lines") for line in file.read_text().splitlines()):
        test, path, *numbers = line.split("\t")
        if test in reached and (lines := _lines_of_functions(path).intersection(map(int, numbers))):
            reached[test].setdefault(path, set()).update(lines)
    return {test: (seconds[test], {path: sorted(lines) for path, lines in reached[test].items()}) for test in seconds}
