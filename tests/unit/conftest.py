"""How Hypothesis tries examples, and which process unit tests take for the machine's first.

One rule: no example is timed, since `make test` runs these tests beside many others; a whole test has pytest's limit.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from attachment import presence

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def readable_init(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process stand for process 1 of the machine, into which not every root may look."""
    monkeypatch.setattr(presence, "INIT", "/proc/self")
    monkeypatch.setattr(presence, "_FIRST_PID_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)
