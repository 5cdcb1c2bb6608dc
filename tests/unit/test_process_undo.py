"""Undo steps (process.undo), and immutable values (process.values)."""

import signal
import subprocess
import sys
import time

import pytest

from process.undo import Undo
from process.values import dataclass, field, replace
from tests.support.errors import failure_of


class Interrupted(BaseException):
    """Replaces the exception that a signal raises."""


def steps(done, error):
    """Runs three steps, the second of which cannot be undone, then fails with `error`."""
    with Undo() as undo:
        undo.push("undo step 1", lambda: done.append(1))
        undo.push("undo step 2", lambda: 1 / 0)
        undo.push("undo step 3", lambda: done.append(3))
        if error:
            raise error


@pytest.mark.parametrize("error", [ValueError("first"), Interrupted()])
def test_all_steps_run_in_reverse_order(error, capsys):
    """After a failure or a signal all steps run, last first; failures are printed, and the first error is raised."""
    done: list[object] = []
    with pytest.raises(type(error)):
        steps(done, error)
    assert done == [3, 1]
    assert capsys.readouterr().err == "podwire: could not undo step 2: division by zero\n"


def test_after_success_no_step_runs():
    """Without a failure, or after `clear`, no step runs."""
    done: list[object] = []
    steps(done, None)

    def attach():
        with Undo() as undo:
            undo.push("never", lambda: done.append(1))
            undo.clear()
            raise ValueError("x")

    assert failure_of(attach, ValueError)
    assert done == []


def test_a_signal_does_not_interrupt_the_undo():
    """SIGTERM during the undo is ignored, also if a step waits."""
    done: list[object] = []

    def on_signal(signum, frame):
        done.append("signal")

    def slow():
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.01)
        done.append("step")

    def attach():
        with Undo() as undo:
            undo.push("be slow", slow)
            raise ValueError("x")

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        assert failure_of(attach, ValueError)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done == ["step"]


USE = """
from process.values import dataclass, field, replace

@dataclass(frozen=True)
class Point:
    x: int
    y: int = 2
    names: list = field(default_factory=list, repr=False)

one, other = Point(1), replace(Point(1), y=3)
try:
    replace(one, z=1)
except TypeError:
    print(one, other, one == Point(1), one == other, one.names is other.names)
"""


@dataclass(frozen=True)
class Point:
    x: int
    names: tuple[str, ...] = field(default=(), repr=False)


def test_a_value_is_not_changed():
    """With assertions enabled a value cannot be changed; it compares and hashes by its fields."""
    point = Point(1)
    with pytest.raises(AttributeError):
        setattr(point, "x", 2)  # noqa: B010 # mypy refuses the assignment
    assert {point, Point(1)} == {Point(1)}
    assert point != Point(2)
    assert replace(point, x=2) == Point(2)


@pytest.mark.parametrize("option", ["-B", "-O", "-OO"])
def test_a_value_is_the_same_in_the_executable(option):
    """Without assertions, as in the executable, values print, compare and can be replaced in the same way."""
    done = subprocess.run([sys.executable, option, "-c", USE], capture_output=True, text=True, check=True)
    assert done.stdout == "Point(x=1, y=2) Point(x=1, y=3) True False False\n"
