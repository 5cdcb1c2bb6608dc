"""Puts one executable into a directory under all of its names.

One rule: at every moment each name stands for a whole file, the old one or the new one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def names_of(program: Path, runner: tuple[str, ...] = ()) -> list[str]:
    """Asks the executable, which `runner` runs, which plugins it holds; returns their names and its own."""
    command = [*runner, str(program), "list"]
    listed = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    return [*listed.stdout.split(), "podwire"]


def install(program: Path, directory: Path, names: list[str]) -> None:
    """Makes `names` in the directory hard links to one copy of `program`, and removes every other file there."""
    directory.mkdir(parents=True, exist_ok=True)
    fresh = directory / ".new"
    shutil.copyfile(program, fresh)
    fresh.chmod(0o755)
    for name in names:
        link = directory / f".new-{name}"
        link.unlink(missing_ok=True)
        link.hardlink_to(fresh)
        link.replace(directory / name)
    for path in directory.iterdir():
        if path.name not in names:
            path.unlink()
