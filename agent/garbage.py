"""Removes what deleted pods left on the node: runs `podwire gc` for the agent's network.

`podwire gc` removes only what is proven to be garbage; without proof, or if it could not look everywhere, the run is
reported as incomplete.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from agent.program import Ended, Program
from agent.settings import Settings
from process.loop import Loop

_LIMIT_S = 1800.0
_NO_PROOF = 3  # docs/tool.md: exit status 3, it could not do its work; 4, it could not look everywhere
_INCOMPLETE = 4


class Collection(NamedTuple):
    """A run of `podwire gc`: its result, "ok", "failed" or "incomplete", and the last lines of its output."""

    result: str
    output: str


class GarbageCollector:
    """Runs `podwire gc`, at most once at a time; `report` gets each result."""

    def __init__(self, settings: Settings, loop: Loop, report: Callable[[Collection], None]) -> None:
        self._settings, self._loop, self._report = settings, loop, report
        self._running = False

    def run(self) -> None:
        """Starts a run unless one is running."""
        if self._running:
            return
        settings = self._settings
        try:
            with open(settings.conf, encoding="utf-8") as file:
                network = json.load(file)["name"]
            arguments = [settings.podwire, "gc", network, "--cache-dir", settings.cache_dir]
            arguments += ["--conf-dir", settings.conf_dir, "--bin-dir", settings.bin_dir]
            Program(self._loop, arguments, self._done, _LIMIT_S)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._report(Collection("failed", f"cannot start podwire gc: {error}"))
            return
        self._running = True

    def _done(self, ended: Ended) -> None:
        self._running = False
        incomplete = ended.status in (_NO_PROOF, _INCOMPLETE)
        result = "ok" if ended.status == 0 else "incomplete" if incomplete else "failed"
        self._report(Collection(result, "\n".join(ended.output.splitlines()[-20:])))
