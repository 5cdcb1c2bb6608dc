"""Runs of pytest in private copies of the project (private.sh), with changed files, and programs that run from source.

One rule: the launchers are built once; a mutant is one other source file, at the same path in a private copy.
"""

import os
import py_compile
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pack.install import install, list_names
from tests.mutants.recording import ROOT

BUILD = ROOT / "build" / "mutants"
_BIN, _BYTECODE = BUILD / "bin", BUILD / "bytecode"
ENV = {**os.environ, "PODWIRE_BIN_DIR": str(_BIN.relative_to(ROOT))}
_HERE = Path(__file__).parent
# Not in the project: a copy would contain itself.
_WORK = Path("/var/tmp") / f"podwire-mutants-{zlib.crc32(str(ROOT).encode()):x}"
# All modules of the programs, also those that are imported late, and those of a recording.
_COMPILE = "import podwire.main, tests.mutants.start, coverage; coverage.Coverage(data_file=None).start()\n"
_COMPILE += "from tests.mutants import private; private.compile_imported()"


class Copy(NamedTuple):
    """A private copy of the project."""

    work: Path
    root: Path

    def create(self, path: Path) -> Path:
        """Creates the directory of a changed file of the project; returns the file's place."""
        place = self.work / "project" / "upper" / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def run_pytest(self, arguments: Iterable[str], limit_s: float) -> int:
        """Runs pytest with the launchers, and returns its status; after the limit, kills all its processes."""
        line = ["setpriv", "--pdeathsig=KILL", "timeout", "--signal=KILL", f"{limit_s:.0f}", str(_HERE / "private.sh")]
        line += [str(self.work), str(self.root), sys.executable, "-m", "pytest"]
        line += ["-p", "tests.mutants.plugin", "-p", "no:cacheprovider", *arguments]
        with open(self.work / "output", "wb") as output:
            return subprocess.run(line, cwd=ROOT, env=ENV, stdout=output, stderr=output, check=False).returncode

    def tail(self) -> str:
        """Returns the end of pytest's output."""
        return (self.work / "output").read_text(errors="replace")[-3000:]


@contextmanager
def copy(root: Path) -> Iterator[Copy]:
    """A private copy of the project, which exists during the block."""
    with tempfile.TemporaryDirectory(dir=_WORK) as work:
        yield Copy(Path(work), root)


def prepare() -> None:
    """Compiles the launcher and the bytecode of all modules, and creates the directory of the programs' names.

    Deletes the copies of an interrupted run; a signal now ends this process at once, and so its children.
    """
    shutil.rmtree(_WORK, ignore_errors=True)
    _WORK.mkdir()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(130))  # setpriv: a child ends with the thread that started it
    version = sysconfig.get_python_version()
    program = BUILD / "launcher"
    BUILD.mkdir(parents=True, exist_ok=True)
    defined = {"PROJECT": ROOT, "VERSION": version, "BYTECODE": _BYTECODE}
    command = ["gcc", "-O2", "-Wall", "-o", str(program), *(f'-D{name}="{value}"' for name, value in defined.items())]
    command += [str(_HERE / "launcher.c"), f"-I{sysconfig.get_path('include')}", f"-lpython{version}"]
    subprocess.run(command, check=True)
    subprocess.run([sys.executable, "-c", _COMPILE], cwd=ROOT, check=True)
    install(program, _BIN, ["podwire"])
    install(program, _BIN, list_names(_BIN / "podwire"))


def compile_imported() -> None:
    """Writes the bytecode of all imported modules."""
    for module in list(sys.modules.values()):
        if str(source := getattr(module, "__file__", None)).endswith(".py"):
            compile_file(Path(str(source)), Path(str(source)), place_bytecode(Path(str(source))))


def place_bytecode(path: Path) -> Path:
    """Returns the place of a module's bytecode for the launchers."""
    return Path(f"{_BYTECODE}{path.with_suffix(f'.{sys.implementation.cache_tag}.opt-2.pyc')}")


def compile_file(source: Path, path: Path, bytecode: Path) -> None:
    """Writes the bytecode of a source file that has the name `path`.

    That of files outside the project is not checked against its source: the test root has copies of its own.
    """
    modes = py_compile.PycInvalidationMode
    mode = modes.TIMESTAMP if path.is_relative_to(ROOT) else modes.UNCHECKED_HASH
    py_compile.compile(str(source), str(bytecode), str(path), doraise=True, optimize=2, invalidation_mode=mode)
