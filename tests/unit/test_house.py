"""The rules of the house that no other tool checks: who imports whom, a sentence for each test, readable files."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.binaries import ROOT

ROOMS = ("attachment", "bench", "cni", "conf", "ipam", "kernel", "pack", "plugins", "podwire", "process", "tests")
MAX_LINES = 400
LONG_FILES: dict[str, str] = {}  # path: why it may be longer


def sources(*rooms: str, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    """Yields the files of the rooms, generated ones left out."""
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_rooms_import_only_what_they_may():
    """The import contracts in pyproject.toml hold."""
    # In a process of its own: its threads would take signals that other tests block.
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_module_opens_with_what_it_is_for():
    """Each module has a docstring."""
    assert [name(path) for path in sources(*ROOMS) if not ast.get_docstring(ast.parse(path.read_bytes()))] == []


def test_every_test_has_one_sentence():
    """Each test's docstring opens with one sentence fit for a manual; details may follow in another paragraph."""
    bad = [
        f"{name(path)}: {node.name}"
        for path in sources("tests")
        for node in functions(path)
        if node.name.startswith("test_") and not is_a_sentence(ast.get_docstring(node))
    ]
    assert bad == []


def is_a_sentence(text: str | None) -> bool:
    """Tells whether the first paragraph of `text` starts with no small letter and ends with its only full stop."""
    text = (text or "").partition("\n\n")[0]
    if not text.endswith(".") or text.endswith(".."):
        return False
    return not text[0].islower() and not re.search(r"[.!?] [A-Z]", text)


@pytest.mark.parametrize("text", [None, "", "no capital.", "No stop", "One. Two.", "Para\n\ngraph.", "Etc.."])
def test_the_rule_for_sentences_refuses(text):
    """The check above can fail."""
    assert not is_a_sentence(text)


def test_nothing_is_imported_that_costs_at_every_start():
    """What the executable imports is there in every process: nothing that is renewed at a start, or is as big as it is.

    `random` is seeded at each start; the others draw in hundreds of modules.
    """
    code = "import sys, podwire.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert {"asyncio", "email", "http.client", "random", "ssl", "subprocess", "tempfile"}.isdisjoint(
        done.stdout.split()
    )


def test_no_file_is_too_long_to_read():
    """Files have at most 400 lines, except with a reason."""
    found = {name(path) for path in sources(*ROOMS, suffixes=(".py", ".c", ".h", ".sh")) if lines(path) > MAX_LINES}
    assert found == set(LONG_FILES)


def lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_nothing_is_left_to_do_in_comments():
    """Unfinished work stands in an issue, not in the code."""
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    suffixes = (".py", ".c", ".h", ".sh", ".md", ".toml")
    assert [name(path) for path in sources(*ROOMS, suffixes=suffixes) if mark.search(path.read_text())] == []
