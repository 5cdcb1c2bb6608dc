"""Some orders of events around the real manager and the real host-local; tests/hard/test_pools_world.py has more."""

import pytest

from tests.pools_world.walk import sticky_walk, walk
from tests.pools_world.world import World


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_events_breaks_an_invariant(tmp_path, seed):
    """No random order of events breaks an invariant or loses a block."""
    walk(World(tmp_path), seed, 80)


@pytest.mark.parametrize("has_restores", [False, True], ids=["no restore", "restores"])
@pytest.mark.parametrize("seed", range(2))
def test_no_order_of_events_gives_a_sticky_address_to_two_pods(tmp_path, seed, has_restores):
    """No address is at two pods, none at a wrong pod, no block is lost; without a restore a key has one address."""
    sticky_walk(tmp_path, seed, 80, has_restores=has_restores)
