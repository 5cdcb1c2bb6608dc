"""`datetime` for tomllib, which creates such values for dates in a file; no code computes with them."""

from __future__ import annotations


class _Parts(tuple[object, ...]):
    """The numbers of a date, a time or an offset."""

    __slots__ = ()
    utc = "UTC"  # of timezone

    def __new__(cls, *parts: object, **named: object) -> _Parts:
        """Stores the numbers in the order of the arguments."""
        return super().__new__(cls, (*parts, *named.values()))


date = time = datetime = timedelta = timezone = tzinfo = _Parts
