"""How Hypothesis tries examples, and which process unit tests take for the machine's first.

One rule: no example is timed, since `make test` runs these tests beside many others; a whole test has pytest's limit.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from attachment import presence
from podwire.doctor.node import CheckedNode
from tests.support.unit_node import new_node

# Tests with a function of the standard library, scapy or Python beside it fail with the first examples, or never.
settings.register_profile("untimed", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", settings.get_profile("untimed"), max_examples=1000)


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the number of examples."""
    settings.load_profile("nightly" if config.getoption("--nightly") else "untimed")


@pytest.fixture
def node(tmp_path: Path) -> CheckedNode:
    """A node with one network, for doctor's checks; modules with other nodes have this fixture themselves."""
    return new_node(tmp_path)


@pytest.fixture(autouse=True)
def readable_init(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process stand for process 1 of the machine, into which not every root may look."""
    monkeypatch.setattr(presence, "INIT", "/proc/self")
    monkeypatch.setattr(presence, "_FIRST_PID_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)
