"""The larger models of the protocol of blocks, and the wrong policies that a search finds later.

tests/unit/test_block_model.py has the small ones, and runs in a few seconds.
"""

import pytest

from tests.block_model.policies import ONE, POLICIES
from tests.block_model.search import Limits, search
from tests.unit.test_block_model import QUICK, run_policy

SMALLER = ONE._replace(generations=4, attachments=False)
# To the end, with a restore up to a distance of 4 generations; the results count the states beyond it.
COMPLETE = {
    "2 x 1 with two requests late": ONE._replace(late=2),
    "2 x 1 with Node objects that get another UID": ONE._replace(renames=True),
    "3 x 1": ONE._replace(machines=3),
    "2 x 1 with a restore, no late requests": ONE._replace(restores=1, late=0, generations=4),
    "2 x 1 with a restore": SMALLER._replace(restores=1),
    "2 x 1 with an epoch that begins without a restore": ONE._replace(raises=1, generations=4),
}
# To the depth that 400 seconds of processor time allow.
PARTIAL = {
    "2 x 1 with two restores": SMALLER._replace(restores=2),
    "2 x 2": ONE._replace(blocks=2),
    "3 x 1 with a restore": SMALLER._replace(machines=3, restores=1),
}

pytestmark = [pytest.mark.timeout(7200), pytest.mark.usefixtures("nightly_only")]


@pytest.mark.parametrize("name", [*COMPLETE, *PARTIAL])
def test_larger_model_keeps_the_invariants(capsys, name):
    """No order of events in a larger model breaks an invariant or loses a block, to the depth that is printed."""
    if name in COMPLETE:
        result = search(COMPLETE[name], recovers=True)
    else:
        result = search(PARTIAL[name], Limits(seconds=400), recovers=True)
    with capsys.disabled():
        print(f"\n{name}: {result}")
    assert not result.broken, str(result)
    assert result.is_complete if name in COMPLETE else result.depth > 10


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in QUICK])
def test_wrong_policy_breaks_an_invariant(capsys, monkeypatch, name):
    """The search shows for each other wrong policy the steps that break the invariant."""
    result = run_policy(name, monkeypatch)
    with capsys.disabled():
        print(f"\n{name}: {result}")
    assert result.broken == POLICIES[name].breaks
