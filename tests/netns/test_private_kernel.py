"""A kernel that tests.support.kernel_boot booted: user-mode Linux, or Debian's kernel on an emulated machine."""

from pathlib import Path

import pytest

from tests.support.binaries import ROOT
from tests.support.kernel_boot import SHARED

pytestmark = [pytest.mark.needs("private_kernel"), pytest.mark.usefixtures("root")]


@pytest.mark.parametrize("directory", [ROOT, Path("/etc"), Path("/usr"), Path("/dev/modules/lib/modules")])
def test_files_of_the_machine_are_read_only(directory):
    """A program under the other kernel cannot write the project, the root file system or the modules."""
    with pytest.raises(OSError, match="Read-only file system"):
        (directory / "written").write_text("")


def test_the_shared_directory_and_memory_can_be_written(tmp_path):
    """A file in the shared directory, and one in pytest's, which is in memory, has the content that was written."""
    for file in (SHARED / "written", tmp_path / "written"):
        file.write_text("content")
        assert file.read_text() == "content"
