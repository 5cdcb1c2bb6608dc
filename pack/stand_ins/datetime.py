"""`datetime` for tomllib, which makes these values of the dates in a file; nothing here computes with one."""

from __future__ import annotations


class _Parts(tuple[object, ...]):
    """The numbers of a date, a time or an offset, as the file has them."""

    __slots__ = ()
    utc = "UTC"  # of timezone

    def __new__(cls, *parts: object, **named: object) -> _Parts:
        """Keeps them in the order in which they are given."""
        return super().__new__(cls, (*parts, *named.values()))


date = time = datetime = timedelta = timezone = tzinfo = _Parts
