"""Repair of one part of an attachment: recreates it when its check fails.

A part that passes its check does not change, so repairing an intact attachment changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from cni.errors import CniError
from process.record import allows_change


def repair_if_missing(part: str, check: Callable[[], object], create: Callable[[], object]) -> bool:
    """Runs `check`, and `create` when it raises CniError; returns whether it raised, also in a dry run.

    Records the change with the check's message: "restore the masquerading: chain CNI-... is missing".
    """
    try:
        check()
    except CniError as error:
        if allows_change(f"restore {part}: {error.msg}"):
            create()
        return True
    return False
