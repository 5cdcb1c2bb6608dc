"""An IPAM plugin that runs a test's script: it returns a fixed result, fails, sleeps or is killed.

One rule: it records every call, so that a test can check the calls and their order.
"""

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
    """The plugin's directory, the first one on CNI_PATH."""

    directory: Path

    def calls(self) -> list[str]:
        """Returns the verbs that were called so far, in order."""
        file = self.directory / "calls"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def install(directory: Path, result: Mapping[str, Any] | None = None, body: str = "") -> ScriptedIpam:
    """Installs the plugin in `directory`; `body` is a shell script that runs before ADD prints `result`."""
    directory.mkdir(exist_ok=True)
    (directory / "result").write_text(json.dumps(result or {}))
    script = directory / NAME
    script.write_text(_SCRIPT.format(body=body))
    script.chmod(0o755)
    return ScriptedIpam(directory)
