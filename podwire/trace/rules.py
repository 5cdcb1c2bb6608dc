"""The rules that a packet met, as text: nftables' by its trace, those of iptables-legacy by their counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from attachment.policy.table import TABLE
from cni.errors import CniError
from kernel.netfilter import iptables, nft, nft_chains, nft_text
from kernel.netfilter.nft import Chain, Table
from kernel.netfilter.nft_trace import ACCEPT, DROP, POLICY, QUEUE, RULE, TraceEvent
from podwire.node.programs import get_output_lines, require_legacy_program
from podwire.trace.owners import owner_of
from podwire.trace.place import Place

_LEGACY_TABLES = ("raw", "mangle", "nat", "filter", "security")
_COUNTED = re.compile(r"^\[(\d+):\d+\] (-A (\S+) .*)$")
_POLICY = re.compile(r"^:(\S+) (\S+) \[(\d+):\d+\]$")
_TARGET = re.compile(r"-[jg] (\S+)")
_ENDS = ("DROP", "REJECT")


class MetRule(NamedTuple):
    """A rule or policy that a packet met: where it is, its text, its owner, and whether it drops."""

    table: str
    chain: str
    handle: int
    text: str
    owner: str
    drops: bool
    place: str
    variant: str = "nftables"
    comment: str = ""  # of a chain of network policies

    def describe(self) -> str:
        """Returns the rule with its place: table, chain, handle, text."""
        handle = f" handle {self.handle}" if self.handle else ""
        return f"{self.table} {self.chain}{handle}: {self.text}"

    @property
    def look(self) -> str:
        """The command that lists the chain, to be run in the place."""
        if self.variant != "nftables":
            table = self.table.rpartition(" ")[2]
            return f"{self.variant} -t {table} -S {self.chain}"
        return f"nft -a list chain {self.table} {self.chain}"


def of_event(place: Place, event: TraceEvent) -> MetRule:
    """Returns the rule or policy of a trace event, read in its namespace."""
    family = nft_text.FAMILIES.get(event.family, str(event.family))
    policy = "policy drop" if event.drops else "policy accept"
    text = policy if event.kind == POLICY else place.call(lambda: _text(event))
    table = f"{family} {event.table}"
    rule = MetRule(
        table, event.chain, event.handle, text, owner_of(event.table, event.chain, text), event.drops, place.name
    )
    is_policy = event.table == TABLE.name
    return rule._replace(comment=place.call(lambda: _comment(event.chain))) if is_policy else rule


def _text(event: TraceEvent) -> str:
    try:
        with nft.open_socket() as socket:
            rules = nft.list_rules(socket, Chain(Table(event.family, event.table), event.chain))
    except CniError:
        return ""
    rule = next((one for one in rules if one.handle == event.handle), None)
    return nft_text.render(rule) if rule else ""


def _comment(chain: str) -> str:
    """Returns the comment of a chain of network policies."""
    name = chain.encode()
    try:
        with nft.open_socket() as socket:
            chains = nft_chains.list_chains(socket, lambda message: name in message)
    except CniError:
        return ""
    return next((one.comment for one in chains if (one.table.name, one.name) == (TABLE.name, chain)), "")


def dropping(events: Iterable[tuple[Place, TraceEvent]]) -> MetRule | None:
    """Returns the last rule or policy that dropped the traced packet, None if none did."""
    drops = [(place, event) for place, event in events if event.verdict == DROP and event.kind]
    return of_event(*drops[-1]) if drops else None


def queueing(events: Iterable[tuple[Place, TraceEvent]]) -> MetRule | None:
    """Returns the rule that passed the packet to a program (NFQUEUE) and was the last one that it met in its place."""
    last = dict(events)
    queued = [(place, event) for place, event in last.items() if event.kind == RULE and event.verdict & 0xFF == QUEUE]
    return of_event(*queued[-1]) if queued else None


def translating(events: Iterable[tuple[Place, TraceEvent]], kinds: Sequence[str] = ()) -> list[MetRule]:
    """Returns the rules that ended the evaluation of a chain with accept, or a statement such as dnat: candidates."""
    met = []
    for place, event in dict.fromkeys((place, event._replace(packet_id=0)) for place, event in events):
        if event.kind == RULE and event.verdict in (ACCEPT, -1):
            rule = of_event(place, event)
            if any(kind in rule.text for kind in kinds):
                met.append(rule)
    return met


class LegacyCounters(NamedTuple):
    """The packet counters of all rules and policies of iptables-legacy that drop, by (table, line)."""

    tool: str
    counters: dict[tuple[str, str], int]


def read_legacy(version: int) -> LegacyCounters | None:
    """Reads the counters of iptables-legacy in the current namespace; None if it has no tables there.

    Raises CniError if it has tables, and its program is not installed or fails.
    """
    tables = [table for table in _LEGACY_TABLES if iptables.has_legacy(version, table)]
    if not tables:
        return None
    name = f"{iptables.TOOLS[version]}-legacy"
    program = require_legacy_program(f"{name}-save")
    counters = {}
    for table in tables:
        for line in get_output_lines(program, "-c", "-t", table):
            counted, policy = _COUNTED.match(line), _POLICY.match(line)
            if counted and (target := _TARGET.search(line)) and target[1] in _ENDS:
                counters[table, counted[2]] = int(counted[1])
            elif policy and policy[2] in _ENDS:
                counters[table, f"-P {policy[1]} {policy[2]}"] = int(policy[3])
    return LegacyCounters(name, counters)


def legacy_dropping(place: Place, before: LegacyCounters, after: LegacyCounters, packets: int) -> MetRule | None:
    """Returns the rule whose counter grew by the number of packets that were sent, None without one.

    Other packets of the node are counted too, so a rule that counted more is only taken if no other counted.
    """
    grown = {key: after.counters[key] - before.counters.get(key, 0) for key in after.counters}
    exact = [key for key, number in grown.items() if number == packets]
    more = [key for key, number in grown.items() if number > packets]
    chosen = exact if len(exact) == 1 else more if not exact and len(more) == 1 else exact
    if not chosen:
        return None
    table, line = chosen[0]
    chain = line.split()[1]
    return MetRule(
        f"{before.tool} {table}", chain, 0, line, owner_of(table, chain, line), True, place.name, before.tool
    )
