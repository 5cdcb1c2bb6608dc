"""The simulated cluster of `make bench-cluster` in small."""

from typing import Any

import pytest

from bench import cluster_joins, cluster_page
from bench.cluster import fill_double
from bench.cluster_page import MAX_REQUESTS

NODES, PODS = 20, 250


@pytest.fixture(scope="module")
def filled() -> dict[str, Any]:
    return fill_double(NODES, PODS)


def test_a_cluster_is_filled_with_few_requests_and_objects(filled):
    """Filling takes at most twelve requests a node; space, nodes and blocks are objects of a quarter of a kilobyte."""
    assert filled["pods"] == NODES * PODS
    assert filled["blocks"] == 5 * NODES
    assert cluster_page.count_requests(filled) <= MAX_REQUESTS * NODES / 5000
    assert filled["objects"] == 1 + NODES + filled["blocks"]
    assert 150 < filled["bytes"] / filled["objects"] < 350


def test_the_cost_of_a_change_is_measured():
    """A node that joins, and one that gets another block, take processor time."""
    assert cluster_joins.join_ms(3) > 0
    assert cluster_joins.entry_ms(30) > 0
