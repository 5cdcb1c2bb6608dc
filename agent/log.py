"""The agent's log: one JSON object a line on stderr, with the fields of the plugins' log (docs/logs.md).

Messages name the object, its state, the cause and the fix. The time is UTC.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from process import record

LEVELS = ("error", "warning", "info", "debug")
_LINE_BYTES = 64 << 10
_CHANGES_MAX = 200
_RECORDED_NODES = 500  # with more nodes the log has the number of changes instead of each change


class Log:
    """Writes lines of at most the severity `level`."""

    def __init__(self, level: str, version: str, node: str) -> None:
        self._shown = LEVELS[: LEVELS.index(level) + 1]
        self._fixed = {"program": "podwire-agent", "version": version, "node": node}

    def write(self, level: str, message: str, **fields: object) -> None:
        """Writes a line if its level is shown; a line that cannot be written is lost."""
        if level not in self._shown:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        text = json.dumps({"time": stamp, "level": level, **self._fixed, "msg": message, **fields}, default=str)
        try:
            print(text[:_LINE_BYTES], file=sys.stderr, flush=True)
        except OSError:
            return

    def write_changes(self, message: str, changes: Sequence[str]) -> None:
        """Writes what was changed in the kernel, if anything: at level info, with at most 200 of the changes."""
        if changes:
            shown = list(changes[:_CHANGES_MAX])
            if len(changes) > _CHANGES_MAX:
                shown.append(f"and {len(changes) - _CHANGES_MAX} more")
            self.write("info", message, changes=shown)


class ChangeLog:
    """Logs changes of the kernel, and in a dry run prevents them.

    Each change is logged while there are few nodes; of many nodes the texts would take megabytes.
    """

    def __init__(self, log: Log, count_nodes: Callable[[], int], *, dry_run: bool) -> None:
        self._log, self._count_nodes, self._dry_run = log, count_nodes, dry_run

    @contextmanager
    def recorded(self, message: str, count_requests: Callable[[], int]) -> Iterator[None]:
        """Logs what the block changes; `count_requests` returns the number of requests so far."""
        if self._dry_run or self._count_nodes() <= _RECORDED_NODES:
            with record.recording(dry_run=self._dry_run) as recorded:
                yield
            self._log.write_changes(message, recorded.changes)
            return
        before = count_requests()
        yield
        if number := count_requests() - before:
            self._log.write("info", message, requests=number)
