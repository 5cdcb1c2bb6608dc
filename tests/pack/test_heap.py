"""The executable's malloc, in a separate program.

One rule: the program uses blocks that were packed in the image and then freed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PACK = Path(__file__).resolve().parent.parent.parent / "pack"


def test_packed_blocks_behave_like_others(tmp_path: Path):
    """Packed blocks can be resized, freed and reused, but are not reused for a larger alignment."""
    if not shutil.which("gcc"):
        pytest.skip("no compiler")
    program = tmp_path / "heap"
    sources = [Path(__file__).with_name("heap.c"), PACK / "alloc.c", PACK / "pages.c"]
    subprocess.run(["gcc", "-O2", "-fno-builtin", "-fno-common", f"-I{PACK}", "-o", program, *sources], check=True)
    ran = subprocess.run([program], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")
