"""An IPAM plugin that does as told: answers a fixed result, fails, sleeps, dies.

One rule: it notes every call, so that a test can tell what was asked of it and in which order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "scripted"

_SCRIPT = """\
#!/bin/sh
here=$(dirname "$0")
echo "$CNI_COMMAND $CNI_CONTAINERID" >> "$here/calls"
cat > "$here/stdin.$CNI_COMMAND"
{body}
[ "$CNI_COMMAND" != ADD ] || cat "$here/result"
"""


@dataclass(frozen=True)
class ScriptedIpam:
    """The plugin's directory, to stand first on CNI_PATH."""

    directory: Path

    def calls(self) -> list[str]:
        """Returns the commands it was run with so far."""
        file = self.directory / "calls"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def install(directory: Path, result: Mapping[str, Any] | None = None, body: str = "") -> ScriptedIpam:
    """Installs the plugin in `directory`; `body` is shell that runs before ADD's `result` is printed."""
    directory.mkdir(exist_ok=True)
    (directory / "result").write_text(json.dumps(result or {}))
    script = directory / NAME
    script.write_text(_SCRIPT.format(body=body))
    script.chmod(0o755)
    return ScriptedIpam(directory)
