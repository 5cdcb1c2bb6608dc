"""Running many sequences of calls in parallel, with a shell script instead of a plugin."""

from __future__ import annotations

import pytest

from bench.flows import Flow, ms_per_flow, single_call
from bench.process import Invocation


def call(program, text: str) -> Invocation:
    return Invocation(str(program), {"TEXT": text, "PATH": "/usr/bin:/bin"}, b"stdin")


@pytest.fixture
def program(tmp_path):
    """A program that prints its environment variable TEXT and its stdin, and fails if TEXT is FAIL."""
    path = tmp_path / "program"
    path.write_text('#!/bin/sh\nread -r line\necho "$TEXT $line"\n[ "$TEXT" != FAIL ] || { echo why >&2; exit 1; }\n')
    path.chmod(0o755)
    return path


def test_flow_receives_the_stdout_of_each_call(program):
    """The calls of a flow run one after another, and the flow receives the stdout of each."""

    def flow(name: str) -> Flow:
        for number in ("one", "two"):
            outputs.append((yield call(program, f"{name} {number}")))

    outputs: list[bytes] = []
    assert ms_per_flow([flow("a"), flow("b")], 1) > 0
    assert outputs == [b"a one stdin\n", b"a two stdin\n", b"b one stdin\n", b"b two stdin\n"]


def test_width_limits_the_flows_in_parallel(program):
    """A waiting flow starts only when another one has ended."""

    def flow() -> Flow:
        running.append(1)
        numbers.append(len(running))
        yield call(program, "x")
        running.pop()

    running: list[int] = []
    numbers: list[int] = []
    ms_per_flow([flow() for _ in range(5)], 2)
    assert (len(numbers), max(numbers)) == (5, 2)


def test_failed_call_is_an_error_with_its_output(program):
    """A call that fails is an error with its stdout and stderr, not a time."""
    with pytest.raises(RuntimeError, match="FAIL stdin\nwhy"):
        ms_per_flow([single_call(call(program, "FAIL"))], 1)
