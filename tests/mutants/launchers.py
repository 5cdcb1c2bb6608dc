"""The directory of launchers: the programs' names, which run the programs from source in place of the built files.

One rule: the launchers are built once; a mutant is another content of the source tree at the same path.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import marshal
import py_compile
import subprocess
import sys
import sysconfig
from pathlib import Path

from pack.install import install, list_names
from tests.mutants.recording import ROOT
from tests.mutants.start import CODES

BUILD = ROOT / "build" / "mutants"
DIRECTORY = BUILD / "bin"
BYTECODE = BUILD / "bytecode"
_SOURCE = Path(__file__).with_name("launcher.c")
_STORE = "from tests.mutants import launchers; launchers.store_code()"


def build() -> None:
    """Compiles the launcher and the bytecode of all modules, and creates the directory of the names."""
    version = sysconfig.get_python_version()
    program = BUILD / "launcher"
    BUILD.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-O2", "-Wall", "-o", str(program), f'-DPROJECT="{ROOT}"', f'-DVERSION="{version}"']
    command += [f'-DBYTECODE="{BYTECODE}"', f"-I{sysconfig.get_path('include')}", str(_SOURCE), f"-lpython{version}"]
    subprocess.run(command, check=True)
    subprocess.run([sys.executable, "-OO", "-c", _STORE], cwd=ROOT, check=True)
    install(program, DIRECTORY, ["podwire"])
    install(program, DIRECTORY, list_names(DIRECTORY / "podwire"))


def store_code() -> None:
    """Writes the bytecode of the product's modules and dataclasses; for a process that has not imported the product."""
    compiled = {}

    def execute(source: str, scope: dict[str, object], names: dict[str, object]) -> None:
        compiled[source] = compile(source, "<string>", "exec")
        exec(compiled[source], scope, names)

    vars(dataclasses)["exec"] = execute
    import coverage  # noqa: F401, PLC0415 - for recordings

    import podwire.main  # noqa: F401, PLC0415 - for the dataclasses

    CODES.write_bytes(marshal.dumps(compiled))
    for module in list(sys.modules.values()):
        if str(source := getattr(module, "__file__", None)).endswith(".py"):
            compile_file(Path(str(source)), Path(str(source)))


def compile_file(source: Path, path: Path, upper: Path = Path("/")) -> None:
    """Writes the bytecode of a source file that has the name `path`, for the launchers, below `upper`.

    Other files than the project's are not compared with their sources: the test root has others, of the same version.
    """
    sys.pycache_prefix, normal = str(BYTECODE), sys.pycache_prefix
    target = upper / importlib.util.cache_from_source(str(path), optimization=2)[1:]
    sys.pycache_prefix = normal
    known = path.is_relative_to(ROOT)
    mode = py_compile.PycInvalidationMode.TIMESTAMP if known else py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), str(target), str(path), doraise=True, optimize=2, invalidation_mode=mode)
