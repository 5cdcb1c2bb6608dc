"""Fixtures of the hard tests: how much of each is to be run."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def nightly(request: pytest.FixtureRequest) -> bool:
    """Tells whether everything is to be run (`make nightly`), and not the sample of `make test`."""
    return bool(request.config.getoption("--nightly"))
