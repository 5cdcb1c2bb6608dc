"""Many orders of events around the real manager and the real host-local; tests/unit/test_pools_world.py has a few."""

import pytest

from tests.pools_world.walk import sticky_walk, walk
from tests.pools_world.world import World


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_thousands_of_walks_keep_the_invariants(nightly, tmp_path):
    """No random order of events breaks an invariant or loses a block."""
    for seed in range(3000 if nightly else 60):
        directory = tmp_path / str(seed)
        directory.mkdir()
        walk(World(directory), seed, 80)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("has_restores", [False, True], ids=["no restore", "restores"])
def test_walks_with_sticky_addresses_keep_the_invariants(nightly_only, tmp_path, has_restores):
    """No random order of events gives a sticky address to two pods or loses its block."""
    for seed in range(300):
        directory = tmp_path / str(seed)
        directory.mkdir()
        sticky_walk(directory, seed, 250, has_restores=has_restores)
