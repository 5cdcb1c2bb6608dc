"""Routes and policy rules of the warm-up's fake kernel: table main has one route, and the others those that verbs add.

One rule: there is one pod, so a deletion deletes all routes, or all rules, that verbs have added.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import kernel.route
import kernel.rule
from kernel.codec import RouteMessage
from kernel.wire import encode

_HEADER = struct.Struct("=IHHII")
# Creation, deletion and listing, by each of the three.
KINDS = {
    kind: kinds
    for kinds in (
        (kernel.rule.RTM_NEWRULE, kernel.rule.RTM_DELRULE, kernel.rule.RTM_GETRULE),
        (kernel.route.RTM_NEWROUTE, kernel.route.RTM_DELROUTE, kernel.route.RTM_GETROUTE),
    )
    for kind in kinds
}

# The contents of the messages of added rules and routes, by the kind of their creation.
_added: dict[int, list[bytes]] = {}


def answers(kind: int, header: tuple[int, int, int], content: bytes, interface: int) -> Iterator[bytes]:
    """Yields the answers to a request but its acknowledgement; the route in table main is through `interface`."""
    create, delete, read = KINDS[kind]
    family, table = content[0] or socket.AF_INET, content[4]
    if kind == create and table != kernel.route.TABLE_MAIN:
        _added.setdefault(create, []).append(content)
    elif kind == delete and table != kernel.route.TABLE_MAIN:
        _added.pop(create, None)
    elif kind == kernel.route.RTM_GETROUTE:
        values = {"family": family, "table": kernel.route.TABLE_MAIN, "type": 1}
        yield encode(RouteMessage, (create, *header[:2]), values, [("RTA_OIF", interface)])
    if kind == read:
        for added in _added.get(create, ()):
            yield _HEADER.pack(_HEADER.size + len(added), create, *header) + added


def clear() -> None:
    """Deletes the added rules and routes."""
    _added.clear()
