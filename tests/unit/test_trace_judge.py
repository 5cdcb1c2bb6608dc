"""Where a lost packet was seen last (podwire.trace.judge)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from podwire.trace.judge import _stayed_in


def sighting(place: str, kind: str, *, is_outgoing: bool) -> tuple[Any, Any]:
    where = SimpleNamespace(name=place, link=lambda _name: SimpleNamespace(kind=kind))
    return where, SimpleNamespace(interface="dev0", is_outgoing=is_outgoing)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([], True),
        ([sighting("pod", "veth", is_outgoing=True), sighting("node", "veth", is_outgoing=False)], True),
        ([sighting("node", "ifb", is_outgoing=True)], True),  # the queue of a limit
        ([sighting("node", "veth", is_outgoing=True)], False),
        ([sighting("node", "veth", is_outgoing=False), sighting("pod", "veth", is_outgoing=False)], False),
    ],
)
def test_packet_that_stayed_in_the_node(seen: list[tuple[Any, Any]], expected: bool) -> None:
    """A packet has stayed in the node if it was not seen to leave it, nor in another place after that."""
    assert _stayed_in(cast(Any, SimpleNamespace(sightings=seen)), "node") is expected
