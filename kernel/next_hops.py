"""Routes with next hops through several interfaces: divides them by interface. All functions are pure.

IPv6 merges routes with the same destination and metric, so the default routes of two interfaces are one route with two
next hops (RTA_MULTIPATH).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kernel.route_copy import TableRoute
from kernel.wire import AnswerError

_NEXT_HOP, _ATTRIBUTE = struct.Struct("=HBBi"), struct.Struct("=HH")  # struct rtnexthop, struct rtattr
_TYPE_MASK = 0x3FFF  # NLA_TYPE_MASK
_WORD, _SHORT = struct.Struct("=I"), struct.Struct("=H")
_MULTIPATH = "RTA_MULTIPATH"


class _Hop(NamedTuple):
    """A next hop of RTA_MULTIPATH: its ifindex, its RTNH_F_* flags, and all its bytes."""

    index: int  # type: ignore[assignment]  # a field, not tuple.index
    flags: int
    data: bytes


def through(item: TableRoute, index: int) -> TableRoute | None:
    """Returns the route with its next hops through one interface only, None if it has none."""
    return _divide(item, lambda hop_index: hop_index == index)


def not_through(item: TableRoute, index: int) -> TableRoute | None:
    """Returns the route with its next hops through other interfaces only, None if it has none."""
    return _divide(item, lambda hop_index: hop_index != index)


def _divide(item: TableRoute, is_kept: Callable[[int], bool]) -> TableRoute | None:
    kept = [number for number, index in enumerate(item.indexes) if is_kept(index)]
    if not kept or len(kept) == len(item.indexes):
        return item if kept else None
    attributes = dict(item.attributes)
    data = attributes.pop(_MULTIPATH, b"")
    if not isinstance(data, bytes):
        raise AnswerError("RTA_MULTIPATH has no next hops")
    hops = [hop for hop in _hops(data) if is_kept(hop.index)]
    values = dict(item.values)
    if len(hops) == 1:
        values["flags"] = hops[0].flags
        attributes |= {"RTA_OIF": hops[0].index, **dict(_attributes(hops[0].data))}
    else:
        attributes[_MULTIPATH] = b"".join(hop.data for hop in hops)
    return item._replace(
        indexes=tuple(item.indexes[number] for number in kept),
        gateways=tuple(item.gateways[number] for number in kept),
        values=values,
        attributes=tuple(attributes.items()),
    )


def _hops(data: bytes) -> Iterator[_Hop]:
    while len(data) >= _NEXT_HOP.size:
        length, flags, _, index = _NEXT_HOP.unpack_from(data)
        padded = (max(length, _NEXT_HOP.size) + 3) & ~3
        yield _Hop(index, flags, data[:padded])
        data = data[padded:]


def _attributes(hop: bytes) -> Iterator[tuple[str, object]]:
    """Yields the attributes of a next hop as those of a route with one next hop."""
    data = hop[_NEXT_HOP.size :]
    while len(data) >= _ATTRIBUTE.size:
        length, number = _ATTRIBUTE.unpack_from(data)
        length = max(length, _ATTRIBUTE.size)
        content = data[_ATTRIBUTE.size : length]
        match number & _TYPE_MASK:
            case 5:
                yield "RTA_GATEWAY", content
            case 11 if len(content) == _WORD.size:
                yield "RTA_FLOW", _WORD.unpack(content)[0]
            case 18:
                yield "RTA_VIA", content
            case 21 if len(content) == _SHORT.size:
                yield "RTA_ENCAP_TYPE", _SHORT.unpack(content)[0]
            case 22:
                yield "RTA_ENCAP", content
        data = data[(length + 3) & ~3 :]
