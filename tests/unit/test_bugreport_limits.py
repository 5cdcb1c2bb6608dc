"""The limit of time for a part of a bug report, and the file of the archive."""

import os
from pathlib import Path

import pytest

from podwire.bugreport import archive, limits
from podwire.bugreport.limits import PartError
from process import child
from tests.support.machine import eventually


def test_result_comes_back():
    """What the function returns comes back, of any size up to the limit; no pipe remains open."""
    before = os.listdir("/proc/self/fd")
    assert limits.run(lambda: b"", 60, 10) == b""
    assert limits.run(lambda: b"x" * 300_000, 60, 1 << 20) == b"x" * 300_000
    with pytest.raises(PartError, match="more than 0 MiB"):
        limits.run(lambda: b"x" * 300_000, 60, 1000)
    assert os.listdir("/proc/self/fd") == before


def test_failure_is_the_reason():
    """The text of an exception is the reason, also of one that no caller expects."""

    def fail() -> bytes:
        raise OSError(5, "Input/output error")

    with pytest.raises(PartError, match="Input/output error"):
        limits.run(fail, 60, 1000)


def test_slow_function_is_ended_with_its_programs(tmp_path: Path):
    """After the limit the child ends, and so does a program that it runs."""
    mark = tmp_path / "mark"
    program = child.ChildCommand(("/bin/sh", "-c", f"echo $$ >{mark}; exec sleep 1000"), {})

    def run() -> bytes:
        child.run(program)
        return b""

    with pytest.raises(PartError, match="not done after 1 s"):
        limits.run(run, 1, 1000)
    if pid := mark.exists() and mark.read_text().strip():  # else it had not begun, on a machine that is very busy
        process = Path("/proc", pid, "cmdline")
        assert eventually(lambda: not process.exists() or process.read_bytes() == b"", within_s=60)  # or a zombie


def test_function_that_ignores_signals_is_killed():
    """A function that never waits for a program is killed."""

    def run() -> bytes:
        while True:
            pass

    with pytest.raises(PartError, match=r"not done after 0\.5 s"):
        limits.run(run, 0.5, 1000)
    with pytest.raises(ChildProcessError):  # no process remains, not even its exit status
        os.waitpid(-1, os.WNOHANG)


def test_archive_is_not_written_into_a_file_of_another(tmp_path: Path):
    """A file at the temporary path, which its owner could read, gets nothing of the archive."""
    other = tmp_path / f"node.tar.gz.{os.getpid()}"
    other.write_bytes(b"")
    with other.open("rb") as file:
        archive.write(str(tmp_path / "node.tar.gz"), b"secret", {})
        assert file.read() == b""
