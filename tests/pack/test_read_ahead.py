"""The first call after a boot: what the executable reads from a disk."""

import os
import shutil
from pathlib import Path

import pytest

from tests.pack.conftest import run_version
from tests.support.processes import output

PAGE_BYTES = 4096
# Measured 41 % with a disk's read-ahead of 8 MiB; without MADV_RANDOM all of the file.
SHARE = 0.8


def cached_bytes(file: Path) -> int:
    return int(output("fincore", "--bytes", "--noheadings", "--output", "RES", str(file)))


def test_first_call_reads_a_part_of_the_file(program: Path, tmp_path: Path):
    """A call without the file in the page cache reads what verbs use, and the last page: a mark that it has done so."""
    copy = tmp_path / "loopback"
    shutil.copy(program, copy)
    with open(copy, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_bytes(copy):
            pytest.skip("the file system of tmp_path keeps files in memory")
        run_version(copy)
        size = file.seek(0, os.SEEK_END)
        assert 0 < cached_bytes(copy) < SHARE * size
        os.posix_fadvise(file.fileno(), 0, size - PAGE_BYTES, os.POSIX_FADV_DONTNEED)
        assert cached_bytes(copy) > 0
