"""The executable's malloc, in a separate program.

One rule: the program uses blocks that were packed in the image and then freed.
"""


def test_packed_blocks_behave_like_others(run_compiled):
    """Packed blocks can be resized, freed and reused, but are not reused for a larger alignment."""
    assert run_compiled("heap.c", "alloc.c", "pages.c") == (0, "")
