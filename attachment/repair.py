"""Repairing: what a verb's own CHECK misses is made again, and nothing else.

One rule: what CHECK passes is not touched, so that a repair where nothing is missing changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from cni.errors import CniError
from process.record import change


def repair_if_missing(what: str, check: Callable[[], object], make: Callable[[], object]) -> bool:
    """Runs `check`, and `make` when that finds something missing; returns whether it did, or would if only planned.

    What is missing is noted in the words of `check`: "masquerading: chain CNI-... is missing".
    """
    try:
        check()
    except CniError as error:
        if change(f"make again {what}: {error.msg}"):
            make()
        return True
    return False
