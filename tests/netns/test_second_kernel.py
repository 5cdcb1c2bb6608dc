"""The second kernel: its commands, its results, and its isolation from the machine."""

import os

import pytest

from tests.support.binaries import ROOT
from tests.support.kernel_boot import NoAnswerError
from tests.support.processes import output
from tests.support.second_kernel import boot

pytestmark = [pytest.mark.needs("user_mode_linux"), pytest.mark.usefixtures("root")]


def run(tmp_path, script):
    with (tmp_path / "output").open("wb") as file:
        status = boot(["sh", "-c", script], tmp_path, stdout=file, timeout_s=300)
    return status, (tmp_path / "output").read_text()


@pytest.mark.long
def test_a_command_runs_on_another_kernel(tmp_path):
    """The command runs in the project's directory, and its exit status, output and files are returned."""
    status, output = run(tmp_path, "uname -r; pwd; echo hello > /run/shared/file; exit 7")
    release, directory = output.splitlines()
    assert (status, directory, (tmp_path / "file").read_text()) == (7, str(ROOT), "hello\n")
    assert release != os.uname().release


def test_a_crash_is_reported_with_the_kernels_messages(tmp_path):
    """A kernel without an exit status is a failure whose message has the kernel's output."""
    with pytest.raises(NoAnswerError, match="sysrq"):
        run(tmp_path, "echo c > /proc/sysrq-trigger")


def test_a_command_that_does_not_end_is_ended(tmp_path):
    """A command that takes too long is killed with its kernel, and leaves no process."""
    with pytest.raises(NoAnswerError, match="within 4 s"):
        boot(["sleep", "600"], tmp_path, timeout_s=4)
    assert output("pgrep", "-f", str(tmp_path), check=False) == ""
