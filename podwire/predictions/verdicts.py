"""What a rule says about a packet: whether it matches, and its action."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from cni.address import Address


class Match(IntEnum):
    """The answer whether a rule matches a packet; SOME: some of such packets, at random or above a rate."""

    NO = 0
    MAYBE = 1
    SOME = 2
    YES = 3


class RuleAction(NamedTuple):
    """An action: accept, drop, reject, queue, jump, goto, return, dnat, snat, masquerade, redirect, untrack.

    `address` and `port` are the new ones of dnat and snat, None and 0 if unknown; of queue, `port` is its number.
    `ports` is the number of source ports that snat and masquerade may use, 0 if a rule does not limit it.
    """

    kind: str
    chain: str = ""
    address: Address | None = None
    port: int = 0
    ports: int = 0


UNCHANGED = object()  # a rule that does not set the packet's mark
