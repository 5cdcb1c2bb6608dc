"""Fixtures of the hard tests: sample or nightly run, and hosts for the fault scenarios."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import namespaces, pod_interfaces
from tests.support.chained import CHAIN, Chain
from tests.support.fault_scenarios import ScenarioHost


@pytest.fixture(scope="session")
def nightly(request: pytest.FixtureRequest) -> bool:
    """Whether all points are tested (`make nightly`), and not the sample of `make test-all`."""
    return bool(request.config.getoption("--nightly"))


@pytest.fixture
def nightly_only(nightly: bool) -> None:
    """Skips the test in `make test-all`."""
    if not nightly:
        pytest.skip("in `make nightly` only")


@pytest.fixture
def new_scenario_host(root: None, bin_dir: Path, tmp_path: Path) -> Iterator[Callable[..., ScenarioHost]]:
    """A function that creates a host with another pod, for the backend "none" only its lease; anew for a dirty host."""
    with ExitStack() as stack:

        def create(
            backend: str, kind: type[Chain] = Chain, prepare: Callable[[Path], object] | None = None
        ) -> ScenarioHost:
            host = stack.enter_context(namespaces.temporary_host())
            pod_interfaces.create_objects(host, 1)
            pod, other = (stack.enter_context(namespaces.temporary()) for _ in range(2))
            chain = kind(host, tmp_path / f"leases-{host.name}", backend)
            if prepare:
                prepare(chain.store)
            plugins = CHAIN if backend != "none" else ("host-local",)
            replace(chain, published=("9080:80",)).add(other, *plugins)
            return ScenarioHost(chain, pod, other)

        yield create
