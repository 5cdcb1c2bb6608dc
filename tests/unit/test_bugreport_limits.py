"""The limit of time for a part of a bug report."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from podwire.bugreport import limits
from podwire.bugreport.limits import PartError
from process import child


def test_result_comes_back():
    """What the function returns comes back, of any size up to the limit."""
    assert limits.run(lambda: b"", 5, 10) == b""
    assert limits.run(lambda: b"x" * 300_000, 5, 1 << 20) == b"x" * 300_000
    with pytest.raises(PartError, match="more than 0 MiB"):
        limits.run(lambda: b"x" * 300_000, 5, 1000)


def test_failure_is_the_reason():
    """The text of an exception is the reason, also of one that no caller expects."""

    def fail() -> bytes:
        raise OSError(5, "Input/output error")

    with pytest.raises(PartError, match="Input/output error"):
        limits.run(fail, 5, 1000)


def test_slow_function_is_ended_with_its_programs(tmp_path: Path):
    """After the limit the child ends, and so does a program that it runs."""
    mark = tmp_path / "mark"
    program = child.Command(("/bin/sh", "-c", f"sleep 4; touch {mark}"), {})

    def run() -> bytes:
        child.run(program)
        return b""

    start = time.monotonic()
    with pytest.raises(PartError, match="not done after 1 s"):
        limits.run(run, 1, 1000)
    assert time.monotonic() - start < 3.5
    time.sleep(4)
    assert not mark.exists()


def test_function_that_ignores_signals_is_killed():
    """A function that never waits for a program is killed."""

    def run() -> bytes:
        while True:
            pass

    with pytest.raises(PartError, match=r"not done after 0\.5 s"):
        limits.run(run, 0.5, 1000)
    with pytest.raises(ChildProcessError):  # no process remains, not even its exit status
        os.waitpid(-1, os.WNOHANG)
