"""Hostile input: what is told to the plugins, kept for them or answered to them is changed at random, by the thousand.

A case that fails is in build/fuzz: append its line to tests/fuzz/corpus/<target>.jsonl, whose cases are tried first.
"""

from __future__ import annotations

import time

import pytest

from tests import promises
from tests.fuzz import campaign, world
from tests.fuzz.cases import TARGETS, Case
from tests.fuzz.world import FaultError

# How many a night; about a minute for each 20,000 where the kernel has its part in it.
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
SAMPLE_S = {"replies": 8.0, "stdin": 8.0}
OTHER_SAMPLE_S = 5.0
GROWN_KIB = 16 << 10


@pytest.mark.timeout(NIGHTLY_S + 60)
@pytest.mark.parametrize("target", TARGETS)
def test_whatever_is_told_the_answer_is_an_error_or_right(root, bin_dir, nightly, target):
    """Each case ends soon in one JSON error object with nothing left behind, or in success that DEL takes back."""
    sample = {"count": 1_000_000, "seconds": SAMPLE_S.get(target, OTHER_SAMPLE_S)}
    how = {"count": NIGHTLY[target], "seconds": NIGHTLY_S} if nightly else sample
    seed = int(time.strftime("%Y%m%d")) if nightly else 1  # other inputs each night
    outcome = campaign.run(target, seed=seed, **how)
    promises.record("fuzz", inputs=outcome.inputs)
    print(f"{target}, seed {seed}: {outcome.inputs} cases in {outcome.seconds:.0f} s, {outcome.verdicts}")
    assert outcome.faults == []
    assert outcome.inputs >= (NIGHTLY[target] if nightly else 1)  # time may run out
    assert outcome.grown_kib < GROWN_KIB
    assert outcome.verdicts["done"] > 0  # some of them get to the end
    assert any(verdict.startswith("code") for verdict in outcome.verdicts)


ERROR = b'{"cniVersion": "1.1.0", "code": 7, "msg": "m"}'
WRONG = {
    "silence": (1, b""),
    "two documents": (1, ERROR + ERROR),
    "text": (1, b"oops"),
    "a result with exit status 1": (1, b'{"cniVersion": "1.1.0"}'),
    "an empty text": (1, ERROR.replace(b'"m"', b'""')),
    "a code that is no number": (1, ERROR.replace(b"7", b"true")),
    "another exit status": (2, ERROR),
    "a defect": (1, ERROR[:-1] + b', "details": "this is a defect of podwire; please report it"}'),
    "success that is told": (0, b"{}"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_is_noticed(kind):
    """The judge of all this refuses each way of being wrong, and takes what is right."""
    case = Case("bridge", {"CNI_COMMAND": "DEL"}, "{}")
    assert world.verdict(1, ERROR, "", case) == "code 7"
    assert world.verdict(0, b"", "", case) == "done"
    with pytest.raises(FaultError):
        world.verdict(*WRONG[kind], "", case)
    with pytest.raises(FaultError):
        world.verdict(0, b"", "Traceback (most recent call last)", case)
