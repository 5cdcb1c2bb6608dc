"""The events of a world as a state machine of hypothesis, which shortens what it finds."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.pools_world.walk import EVENTS, make_event
from tests.pools_world.world import World

_MEMORY = Path("/dev/shm")  # the disks of the nodes: a power loss is modelled, so they need no real one
_EVENTS = [name for name, (weight, _) in EVENTS.items() for _ in range(weight)]


def new_directory() -> Path:
    """Returns a new directory for a world."""
    return Path(tempfile.mkdtemp(prefix="podwire-world-", dir=_MEMORY if _MEMORY.is_dir() else None))


class WorldMachine(RuleBasedStateMachine):
    """A world whose next event hypothesis chooses; in the end nothing may be lost."""

    def __init__(self) -> None:
        super().__init__()
        self._root = new_directory()
        self._world = World(self._root)

    @rule(name=st.sampled_from(_EVENTS), seed=st.integers(0, 1 << 16))
    def happen(self, name: str, seed: int) -> None:
        make_event(self._world, name, seed)

    def teardown(self) -> None:
        try:
            self._world.heal()
        finally:
            shutil.rmtree(self._root)


def machine(examples: int, events: int, *, shrinks: bool = True) -> type:
    """Returns the test case that searches with a number of examples, each of some events; always the same ones."""
    phases = (Phase.generate, Phase.shrink) if shrinks else (Phase.generate,)
    search = settings(
        max_examples=examples,
        stateful_step_count=events,
        deadline=None,
        derandomize=True,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    about = "No order of events breaks an invariant or loses a block."
    return type("World", (WorldMachine.TestCase,), {"settings": search, "__doc__": about})
