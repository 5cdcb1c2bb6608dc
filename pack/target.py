"""The target of a build: a machine, its Python, the tools that build for it, and the emulator that runs its programs.

One rule: code that depends on the machine or on Python's version is here; the steps of the build know neither.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# The versions for which boot.py and launch.c renew all state of a process.
PYTHONS = ((3, 11), (3, 12), (3, 13))


@dataclass(frozen=True)
class Target:
    """A machine and its Python; the paths are those of the building machine."""

    machine: str  # as `uname -m` prints it there
    version: tuple[int, int]
    stdlib: Path
    includes: tuple[Path, ...]
    libraries: tuple[Path, ...]  # static: Python's and those that it needs
    tools: str = ""  # the prefix of the names of the compiler and of objcopy
    runner: tuple[str, ...] = ()  # the command that runs an executable of that machine

    @property
    def shown_stdlib(self) -> str:
        """The directory of the standard library in tracebacks."""
        return f"/usr/lib/{self.python}"

    @property
    def python(self) -> str:
        """The version's name in directories and libraries, such as "python3.11"."""
        return "python{}.{}".format(*self.version)


def native() -> Target:
    """Returns the building machine and its Python."""
    python = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBRARY"))
    version = sys.version_info[:2]
    return Target(
        machine=os.uname().machine,
        version=version,
        stdlib=Path(sysconfig.get_path("stdlib")),
        includes=(Path(sysconfig.get_path("include")),),
        libraries=(python, *(python.with_name(name) for name in _needed(version))),
    )


def arm64(sysroot: Path) -> Target:
    """Returns a 64-bit ARM machine; the directory `sysroot` contains Debian's packages of its Python."""
    version = sys.version_info[:2]  # this Python compiles the standard library, so both must have the same version
    python = "python{}.{}".format(*version)
    usr = sysroot / "usr"
    names = (f"lib{python}.a", *_needed(version))
    return Target(
        machine="aarch64",
        version=version,
        stdlib=usr / "lib" / python,
        includes=(usr / "include" / python, usr / "include"),  # the second for the machine's pyconfig.h
        libraries=tuple(usr / "lib" / "aarch64-linux-gnu" / name for name in names),
        tools="aarch64-linux-gnu-",
        runner=("qemu-aarch64",),
    )


def _needed(version: tuple[int, int]) -> tuple[str, ...]:
    """Returns the static libraries that this Python needs beside libc; libmd is for sha2.c."""
    return ("libexpat.a", "libz.a", "libmd.a") if version >= (3, 12) else ("libexpat.a", "libz.a")
