"""Writes a network's file and checks it, as `podwire lint FILE` does.

One rule: the result depends on the file alone, not on installed plugins or the node.
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
    """Returns a network's list."""
    return {"cniVersion": "1.0.0", "name": "net", **keys, "plugins": list(plugins)}


def list_findings(page: SourceFile) -> list[FindingText]:
    """Returns the severity, key and text of each finding."""
    return [(str(finding.severity), finding.key, finding.text) for finding in page.findings]
