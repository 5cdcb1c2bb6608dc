"""Fixtures of the hard tests: how much of each is to be run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import namespaces
from tests.support.chained import CHAIN, Chain
from tests.support.fault_scenarios import Stage


@pytest.fixture(scope="session")
def nightly(request: pytest.FixtureRequest) -> bool:
    """Tells whether everything is to be run (`make nightly`), and not the sample of `make test`."""
    return bool(request.config.getoption("--nightly"))


@pytest.fixture
def new_stage(root: None, bin_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """A function that makes a host with a pod attached, for a backend; a test that left something makes another."""
    with ExitStack() as stack:

        def make(backend: str, kind: type[Chain] = Chain, prepare: Callable[[Path], object] | None = None) -> Stage:
            host = stack.enter_context(namespaces.temporary_host())
            pod, other = (stack.enter_context(namespaces.temporary()) for _ in range(2))
            chain = kind(host, tmp_path / f"leases-{host.name}", backend)
            if prepare:
                prepare(chain.store)
            replace(chain, published=("9080:80",)).add(other, *CHAIN)
            return Stage(chain, pod, other)

        yield make
