"""Whole files of a limited size (process.files)."""

import os

import pytest

from process import files


def test_a_file_that_comes_in_pieces_is_read_whole_or_refused(tmp_path):
    """The kernel gives a file of /proc in pieces; a limit that equals the first one does not make it the whole file."""
    with open("/proc/kallsyms", "rb", buffering=0) as file:
        first = file.read(1 << 20)
    with pytest.raises(ValueError, match="more than"):
        files.read("/proc/kallsyms", len(first))
    (tmp_path / "file").write_bytes(first)
    assert files.read(os.fspath(tmp_path / "file"), len(first)) == first
