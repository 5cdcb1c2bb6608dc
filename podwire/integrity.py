"""Damaged copies of this executable: cut off by a full disk or a crash, or changed.

One rule: only a podwire file counts as damaged; any other file is somebody's plugin, whatever it does.
"""

from __future__ import annotations

import os

from process import child

_OWN = "/proc/self/exe"
_MARK = b"+podwire."  # part of what each plugin prints about itself
_HEAD_BYTES = 4096
_MOST_BYTES = 64 << 20  # podwire has 20 MB
_LIMIT_S = 5.0


def is_damaged(path: str) -> bool:
    """Tells whether a plugin's file is empty, or is podwire and does not answer VERSION; raises OSError."""
    if os.path.islink(path):
        return False
    with open(path, "rb") as file:
        content = file.read(_MOST_BYTES)
    return not content or (_is_podwire(content) and not _answers(path))


def _is_podwire(content: bytes) -> bool:
    """Tells whether a file has podwire's code, or begins as this executable does."""
    if _MARK in content:
        return True
    with open(_OWN, "rb") as own:
        head = own.read(_HEAD_BYTES)
    return content[:_HEAD_BYTES] == head[: len(content)]


def _answers(path: str) -> bool:
    command = child.Command((path,), {"CNI_COMMAND": "VERSION"}, capture_stderr=True)
    try:
        (outcome,) = child.run(command, limit_s=_LIMIT_S)
    except OSError:  # TimeoutError, too
        return False
    return outcome.status == 0
