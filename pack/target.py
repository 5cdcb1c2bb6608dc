"""What an executable is built for: the Python that goes into it, the tools that make it, and what runs it here.

One rule: what depends on the machine or on Python's version is asked here; the steps of the build know neither.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# An image holds one Python's memory: of another version, it is not known which state a start must renew.
PYTHONS = ((3, 11), (3, 12), (3, 13))


@dataclass(frozen=True)
class Target:
    """A machine and its Python; the paths lead to files of this machine."""

    machine: str  # as `uname -m` says it there
    version: tuple[int, int]
    stdlib: Path
    includes: tuple[Path, ...]
    libraries: tuple[Path, ...]  # static: Python's and what it needs
    tools: str = ""  # the prefix of the names of the compiler and of objcopy
    runner: tuple[str, ...] = ()  # the command that runs an executable of that machine

    @property
    def shown_stdlib(self) -> str:
        """Where the standard library is on a machine that has it, as tracebacks show it."""
        return f"/usr/lib/{self.python}"

    @property
    def python(self) -> str:
        """The name of the version's directories and libraries."""
        return "python{}.{}".format(*self.version)


def native() -> Target:
    """Returns the machine and the Python that this runs on."""
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
    """Returns a 64-bit ARM machine, of whose Debian the directory `sysroot` holds Python's packages."""
    version = sys.version_info[:2]  # it compiles the standard library, so both must be the same
    python = "python{}.{}".format(*version)
    usr = sysroot / "usr"
    names = (f"lib{python}.a", *_needed(version))
    return Target(
        machine="aarch64",
        version=version,
        stdlib=usr / "lib" / python,
        includes=(usr / "include" / python, usr / "include"),  # the second for pyconfig.h, which is the machine's own
        libraries=tuple(usr / "lib" / "aarch64-linux-gnu" / name for name in names),
        tools="aarch64-linux-gnu-",
        runner=("qemu-aarch64",),
    )


def _needed(version: tuple[int, int]) -> tuple[str, ...]:
    """Returns the static libraries that this Python needs beside libc; libmd is for sha2.c."""
    return ("libexpat.a", "libz.a", "libmd.a") if version >= (3, 12) else ("libexpat.a", "libz.a")
