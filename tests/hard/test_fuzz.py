"""Hostile input: thousands of random changes of the plugins' input, stored files and kernel answers.

A failed case is stored in build/fuzz: append its line to tests/fuzz/corpus/<target>.jsonl, whose cases run first.
"""

from __future__ import annotations

import time

import pytest

from tests import promises
from tests.fuzz import campaign, world
from tests.fuzz.cases import TARGETS, Case
from tests.fuzz.world import FaultError

# Cases of a nightly run; with a real kernel 20,000 cases take about a minute.
NIGHTLY = {
    "stdin": 150_000,
    "environment": 100_000,
    "previous": 100_000,
    "store": 100_000,
    "cache": 60_000,
    "replies": 500_000,
    "programs": 30_000,
}
NIGHTLY_S = 3600.0
SAMPLE = {"replies": 6_000, "stdin": 2_000}
OTHER_SAMPLE = 1_000
MEMORY_GROWTH_MAX_KIB = 16 << 10


@pytest.mark.timeout(NIGHTLY_S + 60)
@pytest.mark.parametrize("target", TARGETS)
def test_hostile_input_gets_an_error_object_or_a_correct_result(root, bin_dir, nightly, target):
    """Each case ends in time with one JSON error object and no leak, or with a success that DEL removes completely."""
    count = NIGHTLY[target] if nightly else SAMPLE.get(target, OTHER_SAMPLE)
    seed = int(time.strftime("%Y%m%d")) if nightly else 1  # other inputs each night
    outcome = campaign.run(target, seed=seed, count=count, seconds=NIGHTLY_S)
    promises.record("fuzz", inputs=outcome.inputs)
    print(f"{target}, seed {seed}: {outcome.inputs} cases in {outcome.seconds:.0f} s, {outcome.verdicts}")
    assert outcome.faults == []
    assert outcome.inputs >= count
    assert outcome.grown_kib < MEMORY_GROWTH_MAX_KIB
    assert outcome.verdicts["done"] > 0  # some cases succeed
    assert any(verdict.startswith("code") for verdict in outcome.verdicts)


ERROR = b'{"cniVersion": "1.1.0", "code": 7, "msg": "m"}'
INVALID_ANSWERS = {
    "an empty answer": (1, b""),
    "two documents": (1, ERROR + ERROR),
    "text": (1, b"oops"),
    "a result with exit status 1": (1, b'{"cniVersion": "1.1.0"}'),
    "an empty text": (1, ERROR.replace(b'"m"', b'""')),
    "a code that is no number": (1, ERROR.replace(b"7", b"true")),
    "another exit status": (2, ERROR),
    "a defect": (1, ERROR[:-1] + b', "details": "this is a defect of podwire; please report it"}'),
    "output of a successful DEL": (0, b"{}"),
}


@pytest.mark.parametrize("kind", INVALID_ANSWERS)
def test_invalid_answer_is_recognised(kind):
    """The check of answers rejects each kind of invalid answer and accepts valid ones."""
    case = Case("bridge", {"CNI_COMMAND": "DEL"}, "{}")
    assert world.verdict(1, ERROR, "", case) == "code 7"
    assert world.verdict(0, b"", "", case) == "done"
    with pytest.raises(FaultError):
        world.verdict(*INVALID_ANSWERS[kind], "", case)
    with pytest.raises(FaultError):
        world.verdict(0, b"", "Traceback (most recent call last)", case)
