"""The cluster of the tests: one for all of them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import GROUP_VARIABLE, KEEP_VARIABLE, Cluster
from tests.support import binaries


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Prints a failure at once: with --keep, the cluster can be looked at."""
    if report.failed:
        print(f"\n{report.longreprtext}", flush=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster of three nodes with podwire."""
    if not os.environ.get(GROUP_VARIABLE):
        binaries.skip_or_fail("these tests need private namespaces: run `make test-kubernetes`")
    with Cluster(Path("/tmp")).running() as cluster:
        yield cluster
        if os.environ.get(KEEP_VARIABLE):
            cluster.explain()
            signal.pause()
        assert [line for node in cluster.nodes for line in node.cni_errors()] == []
