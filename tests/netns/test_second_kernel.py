"""The second kernel itself: what it runs, what it gives back, and what it cannot touch."""

import os
from pathlib import Path

import pytest

from tests.support import kernels
from tests.support.binaries import ROOT
from tests.support.second_kernel import NoAnswerError, boot

pytestmark = [pytest.mark.needs("user_mode_linux"), pytest.mark.usefixtures("root")]


def told(tmp_path, script):
    """Boots, runs a shell script inside; returns its exit status and what it printed."""
    with (tmp_path / "output").open("wb+") as output:
        status = boot(["sh", "-c", script], tmp_path, stdout=output, timeout_s=60)
        output.seek(0)
        return status, output.read().decode()


def content(file):
    """Returns what a file holds; nothing when it has just gone."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def test_a_command_runs_on_another_kernel_and_tells_how_it_ended(tmp_path):
    """The command runs in the project's directory, and its exit status, output and files come back."""
    status, output = told(tmp_path, "uname -r; pwd; echo hello > /run/shared/file; exit 7")
    release, directory = output.splitlines()
    assert (status, directory, (tmp_path / "file").read_text()) == (7, str(ROOT), "hello\n")
    assert release != os.uname().release


def test_nothing_but_the_shared_directory_can_be_written(tmp_path):
    """Inside, the machine's files are read-only and its leases and namespaces are not to be seen."""
    script = f"touch {ROOT}/written /etc/written /usr/written; ls /run/netns; echo secret > /var/tmp/written"
    told(tmp_path, script)
    written = [directory for directory in (ROOT, "/etc", "/usr", "/var/tmp") if os.path.exists(f"{directory}/written")]
    assert written == []


def test_each_boot_is_a_new_one(tmp_path):
    """Two boots have two boot ids, so that a reboot of a node can be tested."""
    _, first = told(tmp_path, "cat /proc/sys/kernel/random/boot_id")
    _, second = told(tmp_path, "cat /proc/sys/kernel/random/boot_id")
    assert len({first, second, ""}) == 3


def test_a_kernel_that_dies_is_told_with_what_it_said(tmp_path):
    """A kernel that gives no exit status is a failure that shows its last words."""
    with pytest.raises(NoAnswerError, match="sysrq"):
        told(tmp_path, "echo c > /proc/sysrq-trigger")


def test_a_command_that_does_not_end_is_ended(tmp_path):
    """A command that takes too long ends with its kernel, and no process of it stays."""
    with pytest.raises(NoAnswerError, match="within 4 s"):
        boot(["sleep", "600"], tmp_path, timeout_s=4)
    assert [file for file in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in content(file)] == []


def test_what_is_missing_is_found_by_trying(monkeypatch):
    """A test is left out for the first feature whose probe fails, with the kernel and the feature named."""
    monkeypatch.setattr(kernels, "FEATURES", {"links": "ip link show lo", "luck": "true; false; true"})
    assert kernels.lacking(["links"]) == ""
    assert kernels.lacking(["links", "luck"]) == f"this kernel ({os.uname().release}) has no luck"
