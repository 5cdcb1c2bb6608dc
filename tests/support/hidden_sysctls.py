"""Plugins that run where /proc/sys is not visible, as in a hardened container.

One rule: only the plugin's own mount namespace changes; the network namespace is the caller's.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import binaries

METHODS = {"subset=pid": "mount -t proc -o subset=pid proc /proc", "tmpfs": "mount -t tmpfs podwire /proc/sys"}


def install(directory: Path, *names: str, way: str = "subset=pid") -> Path:
    """Returns a directory of plugins that run with /proc/sys hidden in one of the `WAYS`."""
    directory.mkdir()
    for name in names:
        inside = f"{METHODS[way]}; exec {binaries.directory() / name}"
        (directory / name).write_text(f"#!/bin/sh\nexec unshare --mount sh -ec '{inside}'\n")
        (directory / name).chmod(0o755)
    return directory
