"""The layout of the start-up image.

One rule: the measure is the number of pages that a process copies, not the position of a block.
"""

import struct
from collections.abc import Sequence

import pytest

from pack import layout
from tests.pack.conftest import run_version

# Measured 185, and 310 without a layout; the kernel's read-ahead of mapped pages makes the number vary by machine.
FAULTS = 240


NAMES = ("VERSION", "loopback ADD", "loopback CHECK", "loopback DEL", "bridge ADD", "bridge CHECK", "bridge DEL", "tap")


def uses_of(names: Sequence[str], written: list[int], read: list[int]) -> bytes:
    """Returns the file of uses with one class of blocks, of 2048 bytes."""
    count = len(written)
    header = "".join(f"{name}\n" for name in (*names, "")).encode()
    return header + struct.pack(f"=II{2 * count}I", count, 2048, *written, *read)


def test_blocks_are_grouped_by_the_verbs_that_use_them():
    """Blocks of each class are grouped by tier (every start, most verbs, some verbs), by access and by verbs."""
    written = [0b1, 0b1111_0001, 0b0101_0000, 0b0001_0000, 0, 0, 0, 0b0010_0000, 0b0010_0000]
    read = [0b1, 0, 0b1, 0b0110_0000, 0b1, 0b10, 0, 0, 0]
    uses = uses_of(NAMES, written, read) + struct.pack("=6I", 0, 0, 1, 16, 0b10, 0)
    sizes = (0, 4096, 2048, 2048, 2048, 16, 4096, 2048)
    grouped = struct.pack("=9II9HIIH", 8, *sizes, 9, 1, 1, 2, 4, 3, 7, 0, 6, 6, 0, 1, 5)
    assert layout.groups(uses) == grouped


def test_the_order_of_the_scenarios_does_not_matter():
    """A scenario before the others leaves blocks in their tiers, since the tiers follow from names."""
    written, read = [0b1, 0b0011_0000, 0b0001_0000, 0], [0, 0, 0b10, 0b0110_0000]
    later = [[steps << 1 for steps in each] for each in (written, read)]
    assert layout.groups(uses_of(("new", *NAMES), *later)) == layout.groups(uses_of(NAMES, written, read))


@pytest.mark.parametrize("needed", ["VERSION", "bridge ADD", "bridge CHECK", "bridge DEL"])
def test_a_missing_or_second_step_of_a_needed_name_is_an_error(needed):
    """Each name that decides a tier is the name of one step; the error contains it and the names of all steps."""
    for names, count in (([name for name in NAMES if name != needed], 0), ((*NAMES, needed), 2)):
        with pytest.raises(ValueError, match=rf"^{count} steps are named '{needed}', .*loopback ADD, "):
            layout.groups(uses_of(names, [1], [0]))


def test_more_steps_than_bits_are_an_error():
    """A block has 32 bits, so 32 steps are grouped and 33 are an error."""
    names = [*NAMES, *(f"scenario {number}" for number in range(32 - len(NAMES)))]
    assert layout.groups(uses_of(names, [1 << 31], [0]))
    with pytest.raises(ValueError, match=r"^33 steps, "):
        layout.groups(uses_of([*names, "one more"], [1], [0]))


def test_uses_without_names_are_an_error():
    """The uses of an image builder that does not write names, or of none, are an error."""
    for uses in (b"", struct.pack("=4I", 1, 16, 1, 0)):
        with pytest.raises(ValueError, match="names of the steps"):
            layout.groups(uses)


def test_an_image_builder_records_32_steps(run_compiled):
    """Recording a 33rd step fails, since a block has 32 bits."""
    assert run_compiled("steps.c", "layout.c", "pages.c") == (0, "0 1\n31 1\n32 0\n33 0\n")


def test_a_start_copies_few_pages(program):
    """VERSION causes few page faults, since the blocks that it uses are on few pages."""
    assert run_version(program) <= FAULTS
