"""Checks an executable before the build installs it in dist/bin.

One rule: the check uses only the files and the CNI protocol.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def check(directory: Path, names: list[str], runner: tuple[str, ...] = (), *, alone: bool = True) -> None:
    """Runs every name in the directory, with the command `runner` before it; exits at the first wrong answer.

    If `alone`, runs one of them, as root, in a root directory without any other file.
    """
    for name in names:
        _check_answer(name, [*runner, str(directory / name)])
    if alone and os.geteuid() == 0:
        with tempfile.TemporaryDirectory() as empty_root:
            shutil.copy(directory / names[0], empty_root)
            _check_answer(names[0], ["/usr/sbin/chroot", empty_root, f"/{names[0]}"])


def _check_answer(name: str, command: list[str]) -> None:
    if name == "podwire":
        answer = _output([*command, "--version"], {})
        good = answer.startswith("podwire ")
    else:
        answer = _output(command, {"CNI_COMMAND": "VERSION"})
        good = _is_version_answer(answer)
    if not good:
        raise SystemExit(f"check: {' '.join(command)} answered {answer!r}")


def _is_version_answer(answer: str) -> bool:
    try:
        return bool(json.loads(answer)["supportedVersions"])
    except (ValueError, LookupError, TypeError):
        return False


def _output(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"status {done.returncode}: {done.stdout}{done.stderr}"
