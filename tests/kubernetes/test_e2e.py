"""Upstream's tests of the network on a cluster with podwire."""

import pytest

from tests.kubernetes import e2e, results
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.modes import Mode


@pytest.fixture(scope="module")
def outcomes(cluster: Cluster) -> dict[str, str]:
    """The outcomes of all tests that run, by name; those of the first mode are written for the page."""
    by_name = e2e.run(cluster)
    if cluster.mode == Mode():
        results.write(by_name)
    return by_name


@pytest.mark.parametrize("name", e2e.names())
def test_upstream(outcomes: dict[str, str], name: str) -> None:
    """Upstream's test of this name passes."""
    assert outcomes.get(name, "it did not run") == e2e.PASSED
