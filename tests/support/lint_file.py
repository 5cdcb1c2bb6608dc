"""Networks that are written down and checked, as `podwire lint FILE` does.

One rule: nothing is looked for outside the file: not whether plugins are installed, not what else is on the node.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from podwire.lint import directory
from podwire.lint.source import SourceFile
from podwire.main import PLUGINS

IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}]]}
BRIDGE = {"type": "bridge", "isGateway": True, "ipam": IPAM}

FindingText = tuple[str, str, str]


def lint(path: Path, text: str | bytes | dict[str, Any]) -> SourceFile:
    """Writes a file and checks it."""
    data = json.dumps(text) if isinstance(text, dict) else text
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return directory.lint_file(str(path), PLUGINS, ()).files[0]


def network(*plugins: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Returns a list of plugins."""
    return {"cniVersion": "1.0.0", "name": "net", **keys, "plugins": list(plugins)}


def list_findings(page: SourceFile) -> list[FindingText]:
    """Returns what was found, as severity, key and text."""
    return [(str(found.severity), found.key, found.text) for found in page.findings]
