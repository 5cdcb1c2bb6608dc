"""Detects damaged copies of this executable: truncated by a full disk or a crash, or modified.

Only a podwire file counts as damaged; any other file is another vendor's plugin, even if it does not run.
"""

from __future__ import annotations

import os

from process import child

_SELF = "/proc/self/exe"
_MARK = b"+podwire."  # part of what each plugin prints about itself
_HEAD_BYTES = 4096
_MAX_BYTES = 64 << 20  # podwire is 20 MB
_LIMIT_S = 5.0


def is_damaged(path: str) -> bool:
    """Returns whether a plugin's file is empty, or is podwire and fails VERSION; raises OSError."""
    if os.path.islink(path):
        return False
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES)
    return not content or (_is_podwire(content) and not _answers(path))


def _is_podwire(content: bytes) -> bool:
    """Returns whether a file contains podwire's code, or begins like this executable."""
    if _MARK in content:
        return True
    with open(_SELF, "rb") as file:
        head = file.read(_HEAD_BYTES)
    return content[:_HEAD_BYTES] == head[: len(content)]


def _answers(path: str) -> bool:
    command = child.ChildCommand((path,), {"CNI_COMMAND": "VERSION"}, capture_stderr=True)
    try:
        (outcome,) = child.run(command, limit_s=_LIMIT_S)
    except OSError:  # TimeoutError, too
        return False
    return outcome.status == 0
