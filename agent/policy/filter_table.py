"""The desired packet filter of a node as a value: `plan` computes it, `filter` creates it in the kernel. Pure.

Chains and sets have these names:

    chains  i-<hash>  ingress of pods: the rules match the packet's source and destination port
            e-<hash>  egress of pods: the rules match the packet's destination and destination port
    sets    s4-<hash>, s6-<hash>  Address                 the pods of a peer selector
            p4-<hash>, p6-<hash>  (Address, port number)  peers with the number of a named port
            b4-<hash>, b6-<hash>  (first, last) Address   address blocks: disjoint ranges, content-addressed
            t-<hash>              (first, last) int       port ranges: disjoint ranges, content-addressed

A chain accepts the packets that one of its rules matches, and drops all others (the filter adds this last rule, with a
named counter). Names have at most 31 characters: lower-case letters, digits and "-". The table has no unused objects: a
set is there if, and only if, a rule names it, and a chain if a verdict names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

from attachment.policy.table import ChainSubject
from cni.address import Address

Element = Address | tuple[Address, int] | tuple[Address, Address] | tuple[int, int]


class AcceptRule(NamedTuple):
    """A rule that accepts the packets which match all of its fields; without any it accepts every packet.

    `version` is the IP version of the sets, 0 in a rule that names no set of addresses. `peer_set` (s or b) must
    contain the peer's address. `protocol` is "tcp", "udp", "sctp", or "" for every protocol, ICMP included. `ports` is
    the first and last destination port, or `port_set` (t) contains the port; without either, every port of the protocol
    matches. `pair_set` (p) must contain the peer's address with the destination port; with it the rule has a protocol,
    but neither `peer_set` nor `ports` nor `port_set`.
    """

    version: int = 0
    peer_set: str = ""
    protocol: str = ""
    ports: tuple[int, int] | None = None
    port_set: str = ""
    pair_set: str = ""


class ChainContent(NamedTuple):
    """The content of a chain: its subject, and its rules in order."""

    subject: ChainSubject
    rules: tuple[AcceptRule, ...]


class Verdict(NamedTuple):
    """The chains of a local pod's address: "" in a direction in which no policy isolates the pod; not "" in both."""

    egress: str = ""
    ingress: str = ""


class SetChange(NamedTuple):
    """The elements to add to a set, and to remove from it."""

    added: Collection[Element] = ()
    removed: Collection[Element] = ()


class FilterTable(NamedTuple):
    """The desired filter.

    The filter treats a mapping or set as unchanged if it is the same Python object as at the last `apply`. So a changed
    one must be a new object, with one exception: for a set that changes in place, `changes` of `apply` has the
    difference. `verdicts` is a new object after every event of a local pod, even with equal content: DEL may have
    deleted the pod's addresses from the kernel, so the filter reads the verdict maps again.
    """

    verdicts: Mapping[Address, Verdict]
    chains: Mapping[str, ChainContent]
    sets: Mapping[str, Set[Element]]


EMPTY = FilterTable({}, {}, {})
