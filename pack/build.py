"""Builds the executable, step by step: libpython, image builder, bundles, dump, image, hard links.

One rule: the steps write only to the work directory; files in dist/bin are replaced atomically after the check.

    PYTHONHASHSEED=0 python -m pack.build [--work DIR] [--out DIR] [--arm64 SYSROOT]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pack import check, freeze, image, layout, libpython, unwind
from pack import target as targets
from pack.freeze import Module
from pack.install import install, list_names
from pack.target import Target

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = ("process", "cni", "kernel", "attachment", "ipam", "plugins", "podwire")
ENTRY = "podwire.main"
LIBRARY_PACKAGES = ("pyroute2", "jeepney")  # from PyPI, as pyproject.toml pins them
# Small replacements for large modules of which podwire uses little.
STAND_INS = ROOT / "pack" / "stand_ins"
C_SOURCES = (
    *(f"pack/{name}.c" for name in ("pages", "alloc", "layout", "share", "image_builder", "launch")),
    *(
        f"pack/{name}.c" for name in ("modules", "frozen", "contextvars", "sha2", "json")
    ),  # linked before libpython's versions
    "kernel/_podwire.c",
    "kernel/_netlink.c",
    "kernel/_background.c",
)
C_HEADERS = ("pack/alloc.h", "pack/layout.h", "pack/pages.h", "pack/image_builder.h", "pack/share.h", "pack/stepping.h")
# No PIE: the image contains absolute addresses. No builtins: calloc() must not be compiled into a call of itself.
# The stack protector: Debian's Python has it, too.
C_FLAGS = ("-O2", "-fno-pie", "-fno-common", "-fno-builtin", "-fstack-protector-strong", "-DNDEBUG")
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter")
WRAPPED = ("pthread_self", "PyThread_get_thread_native_id", "_PyCode_New")  # by image_builder.c and share.c
LINKER_SCRIPT = ROOT / "pack" / "relro.ld"
# Addresses that libc computes at the start are read-only afterwards (now, relro). The build ID is a hash of the linked
# bytes, so it is the same in every build; it identifies the twin with symbols, not the image.
LINK_FLAGS = (
    "-static",
    "-no-pie",
    "-Wl,-z,relro,-z,now",
    f"-Wl,-T,{LINKER_SCRIPT}",
    "-Wl,--build-id=sha1",
    *(f"-Wl,--wrap={name}" for name in WRAPPED),
)
# libc chooses string functions by the processor. Interrupts divide repeated instructions, so functions with these use
# memory in another order on each run. Without any extensions, every x86 processor builds the same bytes.
_EXTENSIONS = (
    "AVX_Fast_Unaligned_Load",
    "AVX2",
    "AVX512F",
    "AVX512VL",
    "BMI2",
    "ERMS",
    "FSRM",
    "SSE4_1",
    "SSE4_2",
    "SSSE3",
)
_REPEATED = ("movsb", "stosb")
TUNABLES = ":".join(
    (
        "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in _EXTENSIONS),
        *(f"glibc.cpu.x86_rep_{name}_threshold={0x7FFFFFFF}" for name in _REPEATED),
    )
)
# The build's sources: if they change, every step runs again.
BUILD_SOURCES = (
    *(ROOT / "pack" / f"{name}.py" for name in ("build", "freeze", "libpython", "target", "unwind")),
    LINKER_SCRIPT,
)
NOTHING = Path(os.devnull)
WARM_UP = "_warm_up"  # the name in the image of pack/warm_up.py
# The linker warns of libc's functions that load shared libraries at run time, for users and hosts; none is called.
IGNORED_WARNINGS = ("statically linked applications requires at runtime", ": in function `")

# Modules that plugins cannot use. Some tests are not valid Python, sitecustomize belongs to the machine, and Python
# would import zipimport itself.
NOT_FROZEN = frozenset(
    {"test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "sitecustomize", "zipimport"}
)


def main() -> int:
    """Builds, checks and installs the executable; returns the exit status."""
    parser = argparse.ArgumentParser(description="Builds the executable with the start-up image.")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "image")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "bin")
    parser.add_argument("--arm64", type=Path, metavar="SYSROOT", help="build for 64-bit ARM, with the libraries here")
    options = parser.parse_args()
    target = targets.arm64(options.arm64) if options.arm64 else targets.native()
    program = build(target, options.work, application())
    step(target, "check")
    names = list_names(program, target.runner)
    install(program, options.work / "bin", names)
    check.check(options.work / "bin", names, target.runner, alone=not target.runner)
    install(program, options.out, names)
    print(f"{options.out}: {' '.join(names)} (one file of {program.stat().st_size / 2**20:.1f} MiB)")
    return 0


def application() -> list[Module]:
    """Returns podwire's modules that its program imports, the stand-ins, the warm-up and the modules of boot.py.

    Modules that only the node agent imports are left out.
    """
    everything = [
        module
        for package in PACKAGES
        for module in freeze.modules_under(ROOT / package, package=package, shown=package)
    ]
    entry = next(module for module in everything if module.name == ENTRY)
    warm_up = Module(WARM_UP, (ROOT / "pack" / "warm_up.py").read_bytes(), "pack/warm_up.py", is_package=False)
    fakes = _fake_kernel()
    imported = freeze.imported_by([entry, warm_up, *fakes], everything)
    modules = [*imported, *([] if entry in imported else [entry])]
    stand_ins = freeze.modules_under(STAND_INS, shown="pack/stand_ins")
    boot = boot_modules(ENTRY, [module.name for module in modules], warm_up.name)
    return [*stand_ins, *modules, warm_up, *fakes, *boot]


def _fake_kernel() -> list[Module]:
    """Returns the package `pack` with the modules that the warm-up imports from it: pack/fake_*.py."""
    paths = [ROOT / "pack" / "__init__.py", *sorted((ROOT / "pack").glob("fake_*.py"))]
    return [
        Module(
            "pack" if path.stem == "__init__" else f"pack.{path.stem}",
            path.read_bytes(),
            f"pack/{path.name}",
            is_package=path.stem == "__init__",
        )
        for path in paths
    ]


def boot_modules(entry: str, names: list[str], warm_up: str = "") -> list[Module]:
    """Returns `_boot`, the check `_live_objects`, and `_modules` with the names of entry, other modules and warm-up."""
    contents = f"ENTRY = {entry!r}\nNAMES = {names!r}\nWARM_UP = {warm_up!r}\n".encode()
    return [
        *(
            Module(f"_{name}", (ROOT / "pack" / f"{name}.py").read_bytes(), f"pack/{name}.py", is_package=False)
            for name in ("boot", "live_objects")
        ),
        Module("_modules", contents, "_modules", is_package=False),
    ]


def build(target: Target, work: Path, modules: list[Module], *defines: str) -> Path:
    """Builds the executable of these modules in the directory `work` and returns its path.

    Files that do not depend on them are built only if missing or out of date. `defines` are options of the C compiler.
    """
    if target.version not in targets.PYTHONS or sys.version_info[:2] != target.version or sys.flags.hash_randomization:
        raise SystemExit("this needs Debian's Python 3.11 to 3.13 with PYTHONHASHSEED=0: use `make binaries`")
    missing = [str(library) for library in target.libraries if not library.exists()]
    if missing:
        raise SystemExit(f"missing {', '.join(missing)}: use `make needs-build`")
    work.mkdir(parents=True, exist_ok=True)
    builder = build_image_builder(target, work, defines)
    libraries = [build_library_bundle(target, work, name) for name in LIBRARY_PACKAGES]
    bundles = [work / "application.bundle", *libraries, build_stdlib_bundle(target, work)]  # the first one wins
    step(target, "bundle: application")
    freeze.write_bundle(bundles[0], modules)
    dump, program, groups = work / "dump", work / "program", work / "groups"
    is_warmed_up = any(module.name == WARM_UP for module in modules)
    groups.write_bytes(learn_groups(target, builder, work / "learned", bundles) if is_warmed_up else b"")
    step(target, "image builder: import and dump")
    run_image_builder(target, builder, "dump", dump, work / "objects.txt", groups, *bundles)
    check.check_text(dump, [builder, *bundles], [str(ROOT), str(work.resolve())])
    image.write_image(builder, dump, program)
    return program


def build_image_builder(target: Target, work: Path, defines: Iterable[str]) -> Path:
    """Compiles and links the image builder; exits if the dump would miss writable memory of Python.

    For debuggers, podwire.debug has the same code, its symbols and its unwinding tables.
    """
    builder, linked, twin = work / "image-builder", work / "linked", work / "podwire.debug"
    linker_map = work / "image-builder.map"
    sources = [ROOT / source for source in C_SOURCES]
    inputs = (*target.libraries, *sources, *(ROOT / header for header in C_HEADERS), *BUILD_SOURCES)
    if is_current(builder, *inputs) and is_current(twin, *inputs):
        return builder
    step(target, "image builder: compile and link")
    archives = [renamed_library(target, work, library) for library in target.libraries]
    objects = [compile_object(target, work, source, defines) for source in sources]
    link(target, [*objects, *archives], linker_map, linked)
    stray = libpython.stray_sections(linker_map.read_text(), [str(path) for path in (*objects, *archives)])
    if stray:
        raise SystemExit("writable memory of Python outside the image: " + ", ".join(stray))
    unwind.write_twin(target.tools, linked, twin)
    run(f"{target.tools}objcopy", "--strip-all", f"--remove-section={unwind.SECTION}", linked, builder)
    return builder


def renamed_library(target: Target, work: Path, library: Path) -> Path:
    """Copies one of Debian's static libraries, with its writable sections renamed."""
    renamed = work / library.name
    if not is_current(renamed, library, *BUILD_SOURCES):
        libpython.rename_sections(target.tools, library, renamed)
    return renamed


def compile_object(target: Target, work: Path, source: Path, defines: Iterable[str]) -> Path:
    """Compiles one C source and renames its writable sections."""
    compiled = work / f"{source.stem}.o"
    includes = [f"-I{directory}" for directory in target.includes]
    run(f"{target.tools}gcc", *C_FLAGS, *WARNINGS, *defines, *includes, "-c", source, "-o", compiled)
    libpython.rename_sections(target.tools, compiled, compiled)
    return compiled


def link(target: Target, objects: list[Path], linker_map: Path, out: Path) -> None:
    """Links the image builder; prints the linker's warnings that are not in IGNORED_WARNINGS."""
    warnings = run(f"{target.tools}gcc", *LINK_FLAGS, f"-Wl,-Map,{linker_map}", "-o", out, *objects, "-lm")
    for line in warnings.splitlines():
        if not any(text in line for text in IGNORED_WARNINGS):
            print(line, file=sys.stderr)


def build_stdlib_bundle(target: Target, work: Path) -> Path:
    """Freezes Debian's standard library."""
    bundle = work / "stdlib.bundle"
    if not is_current(bundle, target.stdlib, *target.libraries, *BUILD_SOURCES):
        step(target, "bundle: standard library")
        modules = freeze.modules_under(target.stdlib, shown=target.shown_stdlib, without=NOT_FROZEN)
        freeze.write_bundle(bundle, [*freeze.bootstrap(target.stdlib), *modules])
    return bundle


def build_library_bundle(target: Target, work: Path, name: str) -> Path:
    """Freezes an installed package; the image contains those of its modules that podwire imports."""
    bundle = work / f"{name}.bundle"
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed: use `make venv`")
    package = Path(spec.origin).parent
    if not is_current(bundle, package, *BUILD_SOURCES):
        step(target, f"bundle: {name}")
        freeze.write_bundle(bundle, freeze.modules_under(package, package=name, shown=name, without=NOT_FROZEN))
    return bundle


def learn_groups(target: Target, builder: Path, learned: Path, bundles: list[Path]) -> bytes:
    """Has the image builder import the modules and run the scenarios; returns the groups of its blocks."""
    step(target, "image builder: import and learn the layout")
    run_image_builder(target, builder, "learn", learned, NOTHING, NOTHING, *bundles)
    return layout.groups(learned.read_bytes())


def run_image_builder(target: Target, builder: Path, action: str, *files: Path) -> None:
    """Runs the image builder, which imports the modules and `action` its memory: "dump" or "learn" (the verbs' use).

    The files are the output, the objects, the groups and the bundles (image_builder.h). Its standard streams are always
    pipes, since the image contains Python's objects for them.
    """
    command: list[str | Path] = [*target.runner, builder, action, *files]
    done = subprocess.run(command, env={"GLIBC_TUNABLES": TUNABLES}, input=b"", capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(
            done.stderr.decode(errors="replace") + f"the image builder failed with status {done.returncode}"
        )


def run(*command: str | Path) -> str:
    """Runs a command and returns its stderr; exits with that if it fails."""
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is missing: use `make needs-build`") from error
    if done.returncode:
        raise SystemExit(f"{done.stderr}{command[0]} failed with status {done.returncode}")
    return done.stderr


def is_current(target: Path, *sources: Path) -> bool:
    """Returns whether a file exists and is newer than all of its sources."""
    return target.exists() and all(target.stat().st_mtime > source.stat().st_mtime for source in sources)


def step(target: Target, description: str) -> None:
    """Prints the start of a step of the build; builds for two machines may run in parallel."""
    print(f"[{time.strftime('%H:%M:%S')}] {target.machine}: {description}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
