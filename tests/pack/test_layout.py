"""What of the start-up image lies together.

One rule: the measure is what a process copies, not where a block lies.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from pack import layout

# Measured 265, and 410 without a layout; the kernel's read-ahead of mapped pages makes the number vary by machine.
FAULTS = 340


def test_blocks_are_grouped_by_the_verbs_that_use_them():
    """What every start, most verbs, some verb and none write to or read is told apart, in each class."""
    written = bytes([0b1, 0b0111_0001, 0b0101_0000, 0b0001_0000, 0, 0, 0])
    read = bytes([0b1, 0, 0b1, 0b0110_0000, 0b1, 0b10, 0])
    learned = struct.pack("=II7s7s7sIIII1B1B1B", 7, 2048, b"\1" * 7, written, read, 0, 16, 1, 16, 1, 0b10, 0)
    grouped = struct.pack("=7II7BII1B", 1, 1, 1, 0, 1, 1, 1, 7, 1, 1, 2, 4, 2, 6, 0, 0, 1, 5)
    assert layout.groups(learned) == grouped


def test_a_block_of_many_pages_stays_where_it_is():
    """Of the classes the one without a size has blocks of pages; a small one counts with all of them."""
    learned = struct.pack("=II2B2B2B", 2, 0, 3, 17, 0b1, 0b1, 0, 0)
    assert layout.groups(learned) == struct.pack("=7II2B", 17, 3, 0, 0, 0, 0, 0, 2, 1, 0)


def test_nothing_learned_gives_no_groups():
    """A seed that learned nothing leaves every block where it is."""
    assert layout.groups(b"") == b""


def test_a_start_copies_few_pages(bin_dir: Path):
    """VERSION causes few page faults, since what it uses of the image lies together."""
    program = bin_dir / "loopback"
    if b"pyi-" in program.read_bytes():
        pytest.skip("the portable variant has no image")
    with open(os.devnull, "r+b") as null:
        actions = [(os.POSIX_SPAWN_DUP2, null.fileno(), number) for number in (0, 1)]
        child = os.posix_spawn(program, [str(program)], {"CNI_COMMAND": "VERSION"}, file_actions=actions)
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    assert usage.ru_minflt <= FAULTS
