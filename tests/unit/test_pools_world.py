"""Some orders of events around the real manager and the real host-local; tests/hard/test_pools_world.py has more."""

from __future__ import annotations

import pytest

from tests.pools_world.mutations import MUTATIONS, broken_by
from tests.pools_world.walk import walk
from tests.pools_world.world import World

# Wrong managers that a short walk finds: the number of the walk.
QUICK = {
    "blocks of nodes that are not fenced are reclaimed": 5,
    "a block with reservations is revoked": 3,
    "granted before it is claimed": 0,
    "given back before it is revoked": 0,
}


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_events_breaks_an_invariant(tmp_path, seed):
    """No random order of events breaks an invariant or loses a block."""
    walk(World(tmp_path), seed, 80)


@pytest.mark.parametrize("name", QUICK)
def test_a_wrong_manager_breaks_an_invariant(name, tmp_path, monkeypatch):
    """A manager that is wrong by one function breaks an invariant after some events."""
    broken = broken_by(name, [QUICK[name]], tmp_path, monkeypatch)
    assert broken is not None
    assert broken.name in MUTATIONS[name].breaks
