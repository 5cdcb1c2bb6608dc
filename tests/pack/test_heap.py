"""The executable's own malloc, in a program of its own.

One rule: what it promises is tried where blocks of the image were packed and freed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PACK = Path(__file__).resolve().parent.parent.parent / "pack"


def test_packed_blocks_are_as_good_as_others(tmp_path: Path):
    """Packed blocks are grown, shrunk, freed and used again, and never given to who asked for a larger alignment."""
    if not shutil.which("gcc"):
        pytest.skip("no compiler")
    program = tmp_path / "heap"
    sources = [Path(__file__).with_name("heap.c"), PACK / "alloc.c", PACK / "pages.c"]
    subprocess.run(["gcc", "-O2", "-fno-builtin", "-fno-common", f"-I{PACK}", "-o", program, *sources], check=True)
    ran = subprocess.run([program], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")
