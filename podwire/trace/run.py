"""Runs a trace: sends the packet, finds its target, follows the answer, and judges."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from cni.address import Address
from cni.errors import CniError
from kernel import discards
from kernel.errors import KernelError
from kernel.netfilter import conntrack, conntrack_cleanup, nft, nft_trace
from kernel.netfilter.conntrack import TrackedFlow
from kernel.netfilter.nft_trace import Tuple
from kernel.packet_tap import UDP
from podwire.output import plural
from podwire.trace import hops, judge, rules
from podwire.trace.exchange import Exchange, Flow, Observation, answer_tuples, observe
from podwire.trace.hops import Hop
from podwire.trace.judge import ExchangeOutcome
from podwire.trace.place import Place
from podwire.trace.rules import MetRule
from podwire.trace.suspect import Suspect
from podwire.trace.topology import PodPlace, Topology

_TRANSLATIONS = ("dnat", "snat", "masquerade", "redirect", "DNAT", "SNAT", "MASQUERADE", "REDIRECT")


class Trace(NamedTuple):
    """The result of a trace: the hops of the packet, its outcome, and the first suspect if it was lost.

    `unseen` describes what could not be observed: then a loss may have another reason.
    """

    flow: Flow
    outcome: ExchangeOutcome
    hops: tuple[Hop, ...]
    suspect: Suspect | None
    unseen: tuple[str, ...]
    seen: Observation

    def to_json(self) -> dict[str, object]:
        """Returns the trace as the JSON document."""
        flow = self.flow
        return {
            "packet": {
                "source": str(flow.source_address),
                "destination": str(flow.destination),
                "protocol": "icmp" if flow.is_echo else {6: "tcp", 17: "udp"}[flow.protocol],
                "port": flow.port,
                "from": flow.source.name,
                "to": flow.target.name if flow.target else "",
            },
            "outcome": str(self.outcome),
            "complete": not self.unseen,
            "hops": [hop.to_json() for hop in self.hops],
            "suspect": self.suspect.to_json() if self.suspect else None,
            "unseen": list(self.unseen),
        }


def run(topology: Topology, flow: Flow, *, tries: int = 2, interval_s: float = 0.25) -> Trace:
    """Traces the packet of a flow; raises CniError, OSError."""
    try:
        seen, dropping, unseen = _attempt(topology, flow, (), tries, interval_s)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        missing = missing_address(flow.source, flow.source_address)
        return Trace(flow, ExchangeOutcome.LOST, (), missing, (), Observation(flow))
    translated = _later_target(topology, seen)
    if translated is not None:
        flow = translated
        seen, dropping, unseen = _attempt(topology, flow, (), tries, interval_s)
    if seen.arrival is not None and not judge.outcome_of(seen).is_ok and dropping is None:
        answers = answer_tuples(seen)
        port = seen.source_port
        seen, dropping, unseen = _attempt(topology, flow, answers, tries, interval_s, port)
    for place in (flow.source, topology.node, *([flow.target] if flow.target else [])):
        place.forget()
    outcome = judge.outcome_of(seen)
    met = rules.translating(seen.events, _TRANSLATIONS)
    suspect: Suspect | None
    if outcome.is_ok:
        suspect = find_stale(topology, flow)
        outcome = ExchangeOutcome.LOST if suspect else outcome
    else:
        suspect = judge.find_suspect(topology, seen, dropping, met)
    return Trace(flow, outcome, tuple(hops.build(topology, seen, met)), suspect, tuple(unseen), seen)


def missing_address(place: Place, address: Address) -> Suspect:
    """Returns the suspect for an address that its place does not have, or that duplicate address detection refused."""
    text = f"the address {address} cannot be used: the interface does not have it, or it is a duplicate"
    return Suspect("address", place.name, text, str(address), look="ip address")


def delete_stale_tables() -> None:
    """Deletes what a killed trace left in the current namespace (kernels before Linux 5.12)."""
    with suppress(KernelError), nft.open_socket() as socket:
        nft_trace.delete_stale(socket)


def forget_flow(place: Place, seen: Observation) -> None:
    """Deletes the tracked connection of an exchange in a place."""
    flow = seen.flow
    item = Tuple(flow.protocol, flow.source_address, seen.source_port, flow.destination, flow.port)
    with suppress(KernelError):
        place.call(lambda: conntrack_cleanup.delete_entries([item]))


def find_stale(topology: Topology, flow: Flow) -> Suspect | None:
    """Returns tracked UDP flows to a published port that go to an address that its pod does not have, None without."""
    if flow.protocol != UDP or not isinstance(flow.target, PodPlace) or flow.target.has(flow.destination):
        return None
    try:
        with nft.open_socket() as socket:
            entries = conntrack.list_udp_flows(socket, flow.version, [flow.port])
    except KernelError:
        return None
    stale = [one for one in entries if one.destination == flow.destination and _is_stale(flow.target, one)]
    if not stale:
        return None
    first = stale[0]
    where = "this node" if not first.reply_source or topology.node.has(first.reply_source[0]) else first.reply_source[0]
    text = (
        f"connection tracking still sends packets from {first.source} port {first.source_port} to {where}, not to "
        f"{flow.target.name}: {plural(len(stale), 'stale flow')}, for as long as the client sends"
    )
    look = f"conntrack -L -p udp --orig-port-dst {flow.port}"
    return Suspect("stale-conntrack", topology.node.name, text, f"{first.source}:{first.source_port}", look=look)


def _is_stale(target: PodPlace, entry: TrackedFlow) -> bool:
    return entry.reply_source is not None and entry.reply_source[0] not in target.pod_addresses


def _attempt(
    topology: Topology, flow: Flow, answers: Sequence[Tuple], tries: int, interval_s: float, source_port: int = 0
) -> tuple[Observation, MetRule | None, list[str]]:
    """Sends the packet with all rules traced; returns what was seen, the rule that dropped it, what is unseen."""
    unseen: list[str] = []
    places = tuple(dict.fromkeys((flow.source, topology.node, *([flow.target] if flow.target else []))))
    before = {place: _legacy(place, flow.version, unseen) for place in places}
    counted = {place: place.call(discards.read) for place in places}
    exchange = Exchange(
        flow, [topology.node], rules=True, answers=answers, tries=tries, interval_s=interval_s, source_port=source_port
    )
    with exchange:
        seen = observe(exchange)
    is_lost = not judge.outcome_of(seen).is_ok
    for place, known in counted.items() if is_lost else ():
        now = place.call(discards.read).items()
        seen.discards += [(place, name) for name, value in now if value - known.get(name, 0) >= max(1, seen.sent)]
    for place in places:
        forget_flow(place, seen)
    dropping = rules.dropping(seen.events) if is_lost else None
    if is_lost and dropping is None:
        for place, counters in before.items():
            after = _legacy(place, flow.version, []) if counters else None
            if counters and after and dropping is None:
                dropping = rules.legacy_dropping(place, counters, after, seen.sent)
    return seen, dropping, unseen + seen.blind


def _legacy(place: Place, version: int, unseen: list[str]) -> rules.LegacyCounters | None:
    try:
        return place.call(lambda: rules.read_legacy(version))
    except CniError as error:
        unseen.append(f"{error.msg} ({place})")
        return None


def _later_target(topology: Topology, seen: Observation) -> Flow | None:
    """Returns the flow with the pod as target to which the node has translated the packet (a service), if any."""
    flow = seen.flow
    if flow.target is not None:
        return None
    for place, one in seen.sightings:
        if place is topology.node and one.is_outgoing and one.kind == "request":
            pod = topology.pod_of(one.destination)
            if pod is not None:
                return flow._replace(target=topology.place(pod), target_port=one.port)
    return None
