"""Hostile input: thousands of random changes of the plugins' input, stored filesand kernel answers.

A failed case is stored in build/fuzz: append its line to tests/fuzz/corpus/<target>.jsonl, whose cases run first.
"""

import time

import pytest

from tests import promises
from tests.fuzz import campaign
from tests.fuzz.cases import TARGETS

# Cases of a nightly run; with a real kernel 20,000 cases take about a minute.
NIGHTLY = {"stdin": 150_000, "environment": 100_000, "previous": 100_000, "store": 100_000}
NIGHTLY |= {"cache": 60_000, "replies": 500_000, "programs": 30_000}
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
