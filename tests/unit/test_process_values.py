"""Immutable values (process.values)."""

import subprocess
import sys

import pytest

from process.values import dataclass, field, replace

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
