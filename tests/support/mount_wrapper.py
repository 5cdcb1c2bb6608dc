"""Runs a plugin in a mount namespace of its own, between shell commands that change what it sees of the file system."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.support import binaries


def install(directory: Path, plugin: str, before: str, after: str = "") -> Path:
    """Creates `directory` with a program `plugin` that runs the real one between `before` and `after`; returns it."""
    directory.mkdir()
    program = directory / plugin
    script = f"{before}\n{binaries.directory() / plugin}\nstatus=$?\n{after}\nexit $status"
    program.write_text(f"#!/bin/sh\nexec unshare --mount --propagation private sh -c {shlex.quote(script)}\n")
    program.chmod(0o755)
    return directory
