"""The agent's log: one JSON object a line on stderr, with the fields of the plugins' log (docs/logs.md).

Messages name the object, its state, the cause and the fix. The time is UTC.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

LEVELS = ("error", "warning", "info", "debug")
_LINE_BYTES = 64 << 10
_CHANGES_MAX = 200


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
