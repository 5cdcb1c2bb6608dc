"""Fixtures of the tests of the executable."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.binaries import ROOT


@pytest.fixture
def podwire(bin_dir: Path) -> Path:
    """The executable; skips for PyInstaller's."""
    if b"pyi-" in (bin_dir / "podwire").read_bytes():
        pytest.skip("the portable variant is not a static executable")
    return bin_dir / "podwire"


@pytest.fixture
def program(podwire: Path) -> Path:
    """The executable under the name of a plugin."""
    return podwire.with_name("loopback")


def run_version(program: Path) -> int:
    """Runs VERSION of a plugin as a child without a fork of this process; returns the page faults without I/O."""
    with open(os.devnull, "r+b") as null:
        actions = [(os.POSIX_SPAWN_DUP2, null.fileno(), number) for number in (0, 1)]
        child = os.posix_spawn(program, [str(program)], {"CNI_COMMAND": "VERSION"}, file_actions=actions)
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    return usage.ru_minflt


@pytest.fixture
def run_compiled(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """A function that compiles C files of this directory and of pack/, and returns the program's status and output."""
    if not shutil.which("gcc"):
        pytest.skip("no compiler")

    def run(source: str, *modules: str) -> tuple[int, str]:
        sources = [Path(__file__).with_name(source), *(ROOT / "pack" / name for name in modules)]
        options = ("-O2", "-fno-builtin", "-fno-common", f"-I{ROOT / 'pack'}")
        subprocess.run(["gcc", *options, "-o", tmp_path / "program", *sources], check=True)
        done = subprocess.run([tmp_path / "program"], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    return run
