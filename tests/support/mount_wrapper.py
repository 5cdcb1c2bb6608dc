"""Runs a plugin in a mount namespace of its own, between shell commands that change what it sees of the file system.

One rule: the plugin keeps the caller's network namespace.
"""

import shlex
from pathlib import Path

from tests.support import binaries

# Commands that hide /proc/sys, as in a hardened container.
HIDING_SYSCTLS = {"subset=pid": "mount -t proc -o subset=pid proc /proc", "tmpfs": "mount -t tmpfs podwire /proc/sys"}


def install(directory: Path, plugin: str, before: str, after: str = "", *, bin_dir: Path | None = None) -> Path:
    """Adds to `directory` a program `plugin` that runs the real one between `before` and `after`; returns `directory`.

    Without `after` the program becomes the plugin, so that a signal reaches it. `bin_dir` has the real one, by default
    podwire's.
    """
    directory.mkdir(exist_ok=True)
    program, real = directory / plugin, (bin_dir or binaries.directory()) / plugin
    script = f"{before}\nstatus=0\n{real} || status=$?\n{after}\nexit $status" if after else f"{before}\nexec {real}"
    program.write_text(f"#!/bin/sh\nexec unshare --mount --propagation private sh -ec {shlex.quote(script)}\n")
    program.chmod(0o755)
    return directory
