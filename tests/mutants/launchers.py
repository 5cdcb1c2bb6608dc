"""The directory of launchers: the programs' names, which run the programs from source in place of the built files.

One rule: the launchers are built once; a mutant is another content of the source tree at the same path.
"""

from __future__ import annotations

import importlib.util
import py_compile
import subprocess
import sys
import sysconfig
from pathlib import Path

from pack.install import install, list_names
from tests.mutants.recording import ROOT

BUILD = ROOT / "build" / "mutants"
DIRECTORY = BUILD / "bin"
_BYTECODE = BUILD / "bytecode"
_SOURCE = Path(__file__).with_name("launcher.c")
# All modules of the programs, also those that are imported late, and those of a recording.
_COMPILE = "import podwire.main, tests.mutants.start, coverage; coverage.Coverage(data_file=None).start()\n"
_COMPILE += "from tests.mutants import launchers; launchers.compile_imported()"


def build() -> None:
    """Compiles the launcher and the bytecode of all modules, and creates the directory of the names."""
    version = sysconfig.get_python_version()
    program = BUILD / "launcher"
    BUILD.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-O2", "-Wall", "-o", str(program), f'-DPROJECT="{ROOT}"', f'-DVERSION="{version}"']
    command += [f'-DBYTECODE="{_BYTECODE}"', f"-I{sysconfig.get_path('include')}", str(_SOURCE), f"-lpython{version}"]
    subprocess.run(command, check=True)
    subprocess.run([sys.executable, "-c", _COMPILE], cwd=ROOT, check=True)
    install(program, DIRECTORY, ["podwire"])
    install(program, DIRECTORY, list_names(DIRECTORY / "podwire"))


def compile_imported() -> None:
    """Writes the bytecode of all imported modules."""
    for module in list(sys.modules.values()):
        if str(source := getattr(module, "__file__", None)).endswith(".py"):
            compile_file(Path(str(source)), Path(str(source)))


def compile_file(source: Path, path: Path, upper: Path | None = None) -> None:
    """Writes the bytecode of a source file that has the name `path`, for the launchers, in the project or in `upper`.

    Other files than the project's are not compared with their sources: the test root has others, of the same version.
    """
    sys.pycache_prefix, normal = str(_BYTECODE), sys.pycache_prefix
    target = Path(importlib.util.cache_from_source(str(path), optimization=2))
    sys.pycache_prefix = normal
    if upper:
        target = upper / target.relative_to(ROOT)
    modes = py_compile.PycInvalidationMode
    mode = modes.TIMESTAMP if path.is_relative_to(ROOT) else modes.UNCHECKED_HASH
    py_compile.compile(str(source), str(target), str(path), doraise=True, optimize=2, invalidation_mode=mode)
