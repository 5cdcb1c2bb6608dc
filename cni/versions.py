"""CNI versions: the supported ones, their order, and the version that introduced each verb.

Membership is by text ("1.0" is not "1.0.0"), order is by number, as in the reference library.
"""

from __future__ import annotations

import re

SUPPORTED = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
CURRENT = "1.1.0"

# Results of one family have the same shape; a prevResult must be of the family of its configuration.
FAMILIES = (("", "0.1.0", "0.2.0"), ("0.3.0", "0.3.1", "0.4.0"), ("1.0.0", "1.1.0"))

# The version that introduced a verb; older configurations may not use it.
SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

_KNOWN = {version: (int(version[0]), int(version[2]), int(version[4])) for version in SUPPORTED}
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


def parse(version: str) -> tuple[int, int, int]:
    """Returns (major, minor, micro) of 1 to 3 dot separated integers; "" is 0.1.0. Raises ValueError."""
    known = _KNOWN.get(version or "0.1.0")
    if known:
        return known
    parts = version.split(".")
    if len(parts) > 3:
        raise ValueError(f"invalid version {version!r}: too many parts")
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise ValueError(f"failed to convert version part of {version!r} to a number")
    numbers = [int(part) for part in parts] + [0, 0]
    return (numbers[0], numbers[1], numbers[2])


def at_least(version: str, floor: str) -> bool:
    """Returns whether `version` is `floor` or later; raises ValueError for an invalid version."""
    return parse(version) >= parse(floor)


def family(version: str) -> tuple[str, ...] | None:
    """Returns the versions whose results have the shape of `version`'s, or None for an unknown version."""
    return next((names for names in FAMILIES if version in names), None)
