"""Many orders of events around the real manager and the real host-local, and managers that are wrong.

tests/unit/test_pools_world.py has a few; tests/pools_world has the world.
"""

from __future__ import annotations

import pytest

from tests.pools_world.mutations import MUTATIONS, broken_by
from tests.pools_world.walk import walk
from tests.pools_world.world import World
from tests.unit import test_pools_sticky_world

# A test of its own: tests/unit/test_pools_manager.py has the events that show it.
DIRECTED = "reservations of a lost file are ignored"
MOST_WALKS = 400
EVENTS = 80


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_thousands_of_walks_keep_the_invariants(nightly, tmp_path):
    """No random order of events breaks an invariant or loses a block."""
    for seed in range(3000 if nightly else 60):
        directory = tmp_path / str(seed)
        directory.mkdir()
        walk(World(directory), seed, EVENTS)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("has_restores", [False, True], ids=["no restore", "restores"])
def test_walks_with_sticky_addresses_keep_the_invariants(nightly_only, tmp_path, has_restores):
    """No random order of events gives a sticky address to two pods or loses its block."""
    for seed in range(300):
        directory = tmp_path / str(seed)
        directory.mkdir()
        test_pools_sticky_world.walk(directory, seed, 250, has_restores=has_restores)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in MUTATIONS if name != DIRECTED])
def test_each_wrong_manager_breaks_an_invariant(nightly_only, name, tmp_path, monkeypatch):
    """A search finds for each manager that is wrong by one function an order of events that breaks an invariant."""
    broken = broken_by(name, range(MOST_WALKS), tmp_path, monkeypatch)
    assert broken is not None
    print(f"{name}: {broken}")
