"""Some orders of events around the real manager and the real host-local; tests/hard/test_pools_world.py has more."""

from __future__ import annotations

import pytest

from tests.pools_world.machine import machine
from tests.pools_world.mutations import MUTATIONS, broken_by

# Wrong managers that a short walk finds: the number of the walk.
QUICK = {
    "blocks of nodes that are not fenced are reclaimed": 5,
    "a block with reservations is revoked": 7,
    "granted before it is claimed": 2,
    "given back before it is revoked": 2,
}

TestWorld = machine(examples=12, events=40)


@pytest.mark.parametrize("name", QUICK)
def test_a_wrong_manager_breaks_an_invariant(name, tmp_path, monkeypatch):
    """A manager that is wrong by one function breaks an invariant after some events."""
    broken = broken_by(name, [QUICK[name]], tmp_path, monkeypatch)
    assert broken is not None
    assert broken.name in MUTATIONS[name].breaks
