"""The layout of the start-up image.

One rule: the measure is the number of pages that a process copies, not the position of a block.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from pack import layout

# Measured 185, and 310 without a layout; the kernel's read-ahead of mapped pages makes the number vary by machine.
FAULTS = 240


def test_blocks_are_grouped_by_the_verbs_that_use_them():
    """Blocks of each class are grouped by tier (every start, most verbs, some verbs), by access and by verbs."""
    written = [0b1, 0b1111_0001, 0b0101_0000, 0b0001_0000, 0, 0, 0, 0b0010_0000, 0b0010_0000]
    read = [0b1, 0, 0b1, 0b0110_0000, 0b1, 0b10, 0, 0, 0]
    uses = struct.pack("=II9I9I6I", 9, 2048, *written, *read, 0, 0, 1, 16, 0b10, 0)
    sizes = (0, 4096, 0, 16, 4096, 4096, 2048, 2048)
    grouped = struct.pack("=9II9HIIH", 8, *sizes, 9, 1, 1, 5, 6, 5, 7, 0, 4, 4, 0, 1, 3)
    assert layout.groups(uses) == grouped


def test_without_uses_there_are_no_groups():
    """An empty file of uses gives an empty file of groups."""
    assert layout.groups(b"") == b""


def test_a_start_copies_few_pages(bin_dir: Path):
    """VERSION causes few page faults, since the blocks that it uses are on few pages."""
    program = bin_dir / "loopback"
    if b"pyi-" in program.read_bytes():
        pytest.skip("the portable variant has no image")
    with open(os.devnull, "r+b") as null:
        actions = [(os.POSIX_SPAWN_DUP2, null.fileno(), number) for number in (0, 1)]
        child = os.posix_spawn(program, [str(program)], {"CNI_COMMAND": "VERSION"}, file_actions=actions)
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    assert usage.ru_minflt <= FAULTS
