"""Checks an executable before the build installs it in dist/bin.

One rule: the checks use only the files and the CNI protocol.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

_SHORTEST_TEXT = 5  # bytes; a shorter one could be in 20 MiB by chance


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


def check_text(dump: Path, sources: list[Path], paths: list[str]) -> None:
    """Exits if the dump has a text of the building machine: one of the paths, the home directory, a name or a variable.

    Texts that are also in one of the `sources`, from which the dump was made, do not come from the machine.
    """
    known = [source.read_bytes() for source in sources]
    content = dump.read_bytes()
    for label, text in ({f"the path {path!r}": path for path in paths} | _machine_texts()).items():
        encoded = os.fsencode(text)
        if len(encoded) >= _SHORTEST_TEXT and encoded in content and not any(encoded in each for each in known):
            raise SystemExit(f"check: the image contains {label} of this machine")


def _machine_texts() -> dict[str, str]:
    """Returns the texts by a description, which omits the values of variables: some are secret."""
    kernel = os.uname()
    users = [user for user in pwd.getpwall() if user.pw_uid == os.geteuid()]
    return {
        **{f"the home directory {user.pw_dir!r}": f"{user.pw_dir}/" for user in users},
        **{f"the user name {user.pw_name!r}": user.pw_name for user in users},
        f"the host name {kernel.nodename!r}": kernel.nodename,
        f"the kernel's release {kernel.release!r}": kernel.release,
        f"the kernel's version {kernel.version!r}": kernel.version,
        **{f"the value of the variable {name}": value for name, value in os.environ.items()},
    }


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
