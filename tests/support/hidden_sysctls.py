"""Plugins that run without a visible /proc/sys, as in a hardened container.

One rule: each plugin gets a new mount namespace and keeps the caller's network namespace.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import binaries

METHODS = {"subset=pid": "mount -t proc -o subset=pid proc /proc", "tmpfs": "mount -t tmpfs podwire /proc/sys"}


def install(directory: Path, *names: str, way: str = "subset=pid") -> Path:
    """Creates `directory` with plugins that run with /proc/sys hidden by one of the `METHODS`; returns it."""
    directory.mkdir()
    for name in names:
        commands = f"{METHODS[way]}; exec {binaries.directory() / name}"
        (directory / name).write_text(f"#!/bin/sh\nexec unshare --mount sh -ec '{commands}'\n")
        (directory / name).chmod(0o755)
    return directory
