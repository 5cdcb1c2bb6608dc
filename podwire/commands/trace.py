"""`podwire trace`: sends one packet and prints its way, hop by hop, and what loses it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack

from podwire.command import (
    Command,
    Context,
    ExitStatus,
    add_cache_dir,
    add_conf_dir,
    add_json,
    exit_status,
    places,
    require_root,
)
from podwire.node.inspection import read_snapshot
from podwire.output import Cell, Output
from podwire.trace import destination, network_policy, run
from podwire.trace.outside import ExternalHost, joined
from podwire.trace.place import EXTERNAL, NODE
from podwire.trace.run import Trace
from podwire.trace.suspect import Suspect
from podwire.trace.topology import Topology

NEXT = "next: podwire doctor, which inspects the whole node and prints the commands that repair it"
_DESCRIPTION = """\
Sends a marked packet from a pod and observes it on every interface of the pod, the node and the destination's pod, and
in every rule of nftables that it meets. Prints its way: the pod's route and neighbour entry, bridge ports, policy rules
and routes, translations, the interface where it leaves the node; then the answer. If the packet is lost, the last lines
name the first suspect: the rule (table, chain, handle, text), route, neighbour entry, port or setting, and the program
that it belongs to, as far as its names show.

POD is a pod (namespace/name), a container ID, a namespace, "node", or "outside": a network namespace that is joined to
the node by a veth and removed afterwards. DEST is an address, a pod, "node", "outside", "gateway" (of the pod's default
route); without it (":8080") a port of the node. With a port the packet is a TCP SYN, with /udp a datagram; without a
port an ICMP echo.

At most six packets are sent, and nothing is installed in a pod. Where no program uses the destination's port in a pod,
podwire listens there meanwhile. Tables of nftables that trace the packet are removed in any case.

Exit status: 0 the answer came back, or the packet arrived; 1 it was lost; 3 the trace failed (an unknown pod, no
permission). "unseen", and "not seen:" in the text, list what could not be observed.

--json: {"packet", "outcome", "complete", "hops": [{"place", "step", "text", "object", "owner"}],
"suspect": {"name", "place", "text", "object", "owner", "look"} or null, "unseen"}; outcome is "answered", "refused"
(it arrived, and nothing listens), "delivered" (it arrived, and the program there did not answer) or "lost"."""


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("pod", metavar="POD", help='the source: a pod, "node" or "outside"')
    parser.add_argument("destination", metavar="DEST[:PORT[/udp]]", help="the destination")
    versions = parser.add_mutually_exclusive_group()
    versions.add_argument("-4", dest="version", action="store_const", const=4, default=0, help="use IPv4")
    versions.add_argument("-6", dest="version", action="store_const", const=6, help="use IPv6")
    add_conf_dir(parser)
    add_cache_dir(parser)
    add_json(parser)


def _run(context: Context, options: Namespace) -> ExitStatus:
    require_root(context, "trace")
    desired = destination.parse(options.destination)
    run.delete_stale_tables()
    snapshot = read_snapshot(places(context, options), rules=False)
    with Topology(snapshot) as topology, ExitStack() as stack:
        outer: ExternalHost | None = None
        if EXTERNAL in (options.pod, desired.host):
            outer = stack.enter_context(joined(topology.node))
        source = outer if options.pod == EXTERNAL and outer else destination.source_place(topology, options.pod)
        flow = destination.build_flow(topology, source, desired, outer, options.version)
        trace = run.run(topology, flow)
    context.out.print_json(trace.to_json())
    _print(trace, context.out)
    return exit_status(wrong=not trace.outcome.is_ok, complete=True)


def _print(trace: Trace, out: Output) -> None:
    out.print(Cell(str(trace.flow), "bold"), f"(from {trace.flow.source.name})")
    rows = [(hop.place, hop.step, hop.text + (f" [{hop.owner}]" if hop.owner else "")) for hop in trace.hops]
    if rows:
        out.print_table(("PLACE", "STEP", "WHAT"), rows)
    style = "good" if trace.outcome.is_ok else "bad"
    texts = {
        "answered": "the answer came back",
        "refused": "the packet arrived; nothing listens there",
        "delivered": "the packet arrived; the program there sent no answer",
        "lost": "the packet or its answer was lost",
    }
    out.print(Cell(f"{trace.outcome}:", style), texts[trace.outcome])
    if trace.suspect:
        print_suspect(trace.suspect, out, "")
    for text in trace.unseen:
        out.print(Cell("not seen:", "warning"), text)
    if not trace.outcome.is_ok and not (trace.suspect and trace.suspect.name == network_policy.NAME):
        out.print(NEXT)


def print_suspect(suspect: Suspect, out: Output, indent: str) -> None:
    """Prints a suspect, its owner, and the command that shows it."""
    owner = f" (owner: {suspect.owner})" if suspect.owner else ""
    out.print_text(f"{suspect.place}: {suspect.text}{owner}", indent or "  ", Cell(f"{indent}suspect:", "bold"))
    if suspect.look:
        where = "" if suspect.place == NODE else f" in {suspect.place}"
        out.print(f"{indent}look{where}: {suspect.look}")


COMMAND = Command(
    "trace",
    "the way of one packet, and what loses it",
    _DESCRIPTION,
    _run,
    _arguments,
    (
        ("podwire trace default/web-0 10.22.0.3:80", "why does web-0 not reach 10.22.0.3?"),
        ("podwire trace default/web-0 1.1.1.1", "an ICMP echo to an address outside"),
        ("podwire trace outside :8080", "is the published port 8080 reachable from other machines?"),
    ),
)
