"""The running kernel's modules, in user-mode Linux: there they may come and go.

One rule: what is taken away can be had again when the block ends.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_LOADER = Path("/proc/sys/kernel/modprobe")
_PATIENCE_S = 20.0


@contextlib.contextmanager
def withheld(modules: Sequence[str]) -> Iterator[None]:
    """Takes modules away for a block, so that the kernel is one that lacks them."""
    program = _LOADER.read_text()
    _LOADER.write_text("/bin/false\n")
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while loaded := [name for name in modules if Path("/sys/module", name).exists()]:
            assert time.monotonic() < deadline, f"{loaded} are still in use, by namespaces that the kernel takes down"
            subprocess.run(["rmmod", *loaded], check=False, capture_output=True, timeout=60)
        yield
    finally:
        _LOADER.write_text(program)
