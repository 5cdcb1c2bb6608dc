"""The desired packet filter of a node as a value: what `plan` computes and `filter` creates in the kernel.

This module is pure and has no bytes. The kinds have these names:

    chains  i-<hash>  ingress of the pods of one group: `AcceptRule`s match the packet's source and destination port
            e-<hash>  egress: they match the packet's destination and destination port
    sets    s4-<hash>, s6-<hash>  Address                 the pods of a peer selector
            p4-<hash>, p6-<hash>  (Address, port number)  peers with the number of a named port
            b4-<hash>, b6-<hash>  (first, last) Address   address blocks: disjoint ranges, content-addressed
            t-<hash>              (first, last) int       port ranges: disjoint ranges, content-addressed

A chain accepts what one of its rules matches, and drops everything else (the filter adds this last rule, with a named
counter). Each name is at most 31 characters long and has lower-case letters, digits and "-" only. Sets, chains and
verdicts that nothing uses are not in the table: a set is there if, and only if, a rule names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

from cni.address import Address

Element = Address | tuple[Address, int] | tuple[Address, Address] | tuple[int, int]


class AcceptRule(NamedTuple):
    """A rule that accepts the packets which match all of its fields; without any it accepts every packet.

    `version` is the IP version of the sets, 0 in a rule that names no set of addresses. `peer_set` (s or b) must
    contain the peer's address. `protocol` is "tcp", "udp", "sctp", or "" for every protocol, ICMP included. `ports` is
    the first and last destination port, or `port_set` (t) contains the port; without both every port of the protocol
    matches. `pair_set` (p) must contain the peer's address with the destination port; with it the rule has a protocol,
    and no `peer_set`, `ports` and `port_set`.
    """

    version: int = 0
    peer_set: str = ""
    protocol: str = ""
    ports: tuple[int, int] | None = None
    port_set: str = ""
    pair_set: str = ""


class ChainContent(NamedTuple):
    """A chain: the comment that `nft list` shows (the first 128 bytes), and the rules in order."""

    comment: str
    rules: tuple[AcceptRule, ...]


class Verdict(NamedTuple):
    """The chains of a local pod's address: "" in a direction in which no policy selects the pod, but not both."""

    egress: str = ""
    ingress: str = ""


class SetChange(NamedTuple):
    """The difference of one set's elements."""

    added: Collection[Element] = ()
    removed: Collection[Element] = ()


class FilterTable(NamedTuple):
    """The desired filter.

    The filter compares what changed only: a mapping or set that is the same object as at the last `apply` is taken as
    unchanged. So a change makes a new object, with one exception: a set that is changed in place is named in
    `apply`'s `changes`, with its difference. `verdicts` is a new object after every event of a local pod, also one
    that changes no content: DEL deletes the pod's addresses from the kernel, and the filter reads them again then.
    """

    verdicts: Mapping[Address, Verdict]
    chains: Mapping[str, ChainContent]
    sets: Mapping[str, Set[Element]]


EMPTY = FilterTable({}, {}, {})
