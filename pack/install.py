"""Installs one executable in a directory under all of its names.

One rule: each name is replaced atomically, so it is always a complete file, the old one or the new one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def list_names(program: Path, runner: tuple[str, ...] = ()) -> list[str]:
    """Returns the names of the executable's plugins, as its command `list` prints them, and `podwire`."""
    command = [*runner, str(program), "list"]
    listed = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    return [*listed.stdout.split(), "podwire"]


def install(program: Path, directory: Path, names: list[str]) -> None:
    """Creates `names` in the directory as hard links to one copy of `program`; deletes every other file there."""
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
