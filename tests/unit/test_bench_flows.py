"""How bench drives many sequences of calls at a time: with shells instead of plugins."""

from __future__ import annotations

import pytest

from bench.flows import Flow, alone, each_ms
from bench.process import Invocation


def call(program, words: str) -> Invocation:
    return Invocation(str(program), {"WORDS": words, "PATH": "/usr/bin:/bin"}, b"given")


@pytest.fixture
def program(tmp_path):
    """A program that answers with its environment and what it was given, and fails for the word FAIL."""
    path = tmp_path / "program"
    path.write_text(
        '#!/bin/sh\nread -r given\necho "$WORDS $given"\n[ "$WORDS" != FAIL ] || { echo why >&2; exit 1; }\n'
    )
    path.chmod(0o755)
    return path


def test_each_call_gets_the_answer_to_the_one_before(program):
    """The calls of a flow follow one another, and a flow learns what each wrote on stdout."""

    def flow(name: str) -> Flow:
        for word in ("one", "two"):
            heard.append((yield call(program, f"{name} {word}")))

    heard: list[bytes] = []
    assert each_ms([flow("a"), flow("b")], 1) > 0
    assert heard == [b"a one given\n", b"a two given\n", b"b one given\n", b"b two given\n"]


def test_no_more_at_a_time_than_asked_for(program):
    """A flow begins when one before it has ended, and not sooner."""

    def flow() -> Flow:
        running.append(1)
        most.append(len(running))
        yield call(program, "x")
        running.pop()

    running: list[int] = []
    most: list[int] = []
    each_ms([flow() for _ in range(5)], 2)
    assert (len(most), max(most)) == (5, 2)


def test_a_failure_ends_it_and_says_what_the_program_said(program):
    """A call that fails is an error with its stdout and stderr, never a time."""
    with pytest.raises(RuntimeError, match="FAIL given\nwhy"):
        each_ms([alone(call(program, "FAIL"))], 1)
