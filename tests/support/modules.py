"""Removes modules of the running kernel, in user-mode Linux.

One rule: after the block the modules can be loaded again.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_LOADER = Path("/proc/sys/kernel/modprobe")
_PATIENCE_S = 20.0


@contextlib.contextmanager
def withheld(modules: Sequence[str]) -> Iterator[None]:
    """Removes modules during a block, and prevents loading them."""
    program = _LOADER.read_text()
    _LOADER.write_text("/bin/false\n")
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while loaded := [name for name in modules if Path("/sys/module", name).exists()]:
            assert time.monotonic() < deadline, f"{loaded} are still in use, by namespaces that the kernel is deleting"
            subprocess.run(["rmmod", *loaded], check=False, capture_output=True, timeout=60)
        yield
    finally:
        _LOADER.write_text(program)
