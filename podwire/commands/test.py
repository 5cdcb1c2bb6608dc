"""`podwire test`: sends real packets on every path of pods, and names the first suspect where one is lost."""

from __future__ import annotations

import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable
from contextlib import ExitStack
from ipaddress import ip_address
from itertools import chain

from cni.address import Address
from podwire import attachments
from podwire.command import (
    Command,
    Context,
    ExitStatus,
    add_cache_dir,
    add_conf_dir,
    add_json,
    exit_status,
    layers,
    places,
    require_root,
)
from podwire.commands.trace import NEXT, print_suspect
from podwire.node.inspection import read_snapshot
from podwire.output import Cell, Output, plural
from podwire.probe import paths
from podwire.probe.run import PathResult, PathState, test_limits, test_pods
from podwire.trace import outside, run
from podwire.trace.topology import Topology, name_of
from process import signals

_STYLES = {
    PathState.OK: "good",
    PathState.LOST: "bad",
    PathState.DENIED: "dim",
    PathState.SLOW: "warning",
    PathState.WRONG: "bad",
}
_FINE = (PathState.OK, PathState.DENIED)
_RARE = (PathState.DENIED, PathState.WRONG)  # in the summary only if there are any
_TIMEOUT_S = 1.0
_TITLE, _WAY = 21, 41  # the widths of columns; IPv6 needs more
_INDENT = " " * 7  # of what stands below a path
_DESCRIPTION = """\
Sends real packets on the paths of pods, from inside their network namespaces, and prints a line for each path: ok,
lost, slow, or denied by network policies, about which it asks podwire-agent. Below a lost one is the first suspect,
found by a trace of the same packet (`podwire trace`).

The paths of a pod, for IPv4 and IPv6: its gateway, the node, the next pod of its network and one of each other network
(unless the configuration isolates them), from the node to the pod, the outside, its published ports (from outside, from
the node, from 127.0.0.1, from the pod itself), the resolvers of its resolv.conf; and a search for a second machine with
its address. A network without the pods' default routes is tested among its own pods; "not tested" names the rest. TCP
connections carry a segment of the full size in each direction, which must not be fragmented. The outside is a network
namespace that is joined to the node by a veth for the time of the test.

With --limits it also measures, with TCP between node and pod, whether the pods' rate limits hold.

A path has few packets, and they go only to pods, the node, the resolvers, and the ADDRESSes on the command line.
Nothing is installed in a pod; where no program uses a port there, podwire listens meanwhile. Afterwards the node is as
before.

Exit status: 0 no packet was lost, except those that policies deny; 1 at least one was; 4 none was, but not every pod
could be tested.

--json: {"complete", "paths": [{"pod", "network", "path", "protocol", "ipVersion", "source", "destination", "port",
"state", "ms", "detail", "suspect"}], "unseen", "leftOut"}; state is "ok", "lost", "denied", "slow", or "wrong" for a
limit that does not hold; suspect is that of `podwire trace`, or null. With --every one document for each round."""


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pods", metavar="POD", nargs="*", help="a pod (namespace/name), a container ID; default: all pods"
    )
    parser.add_argument("--pod", metavar="POD", action="append", default=[], help="as the argument POD")
    parser.add_argument(
        "--address", metavar="ADDRESS", type=_address, action="append", default=[],
        help="also send an echo from each pod to this address",
    )  # fmt: skip
    parser.add_argument(
        "--limits", action="store_true", help="also measure whether rate limits hold: up to 64 MiB and 4 s for each"
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=_TIMEOUT_S, help="for each path (1)")
    parser.add_argument(
        "--every", metavar="SECONDS", type=_seconds, help="repeat the test; print only what is neither ok nor denied"
    )
    add_conf_dir(parser)
    add_cache_dir(parser)
    add_json(parser)


def _run(context: Context, options: Namespace) -> ExitStatus:
    require_root(context, "test")
    attachments.require_caches(layers(context, options))
    signals.block()
    run.delete_stale_tables()
    if options.every is None:
        return _round(context, options)
    status = ExitStatus.FINE
    try:
        while True:
            began_s = time.monotonic()
            status = _round(context, options)
            context.out.stream.flush()
            with signals.unblocked():
                time.sleep(max(0.0, began_s + options.every - time.monotonic()))
    except signals.Terminated:
        return status


def _round(context: Context, options: Namespace) -> ExitStatus:
    """Tests once, and prints the results."""
    snapshot = read_snapshot(places(context, options), rules=False)
    unseen = [*snapshot.records.unread, *snapshot.kernel.unseen]
    results: list[PathResult] = []
    previous: PathResult | None = None
    with Topology(snapshot) as topology, ExitStack() as stack:
        names = [*options.pods, *options.pod]
        pods = [pod for name in names for pod in topology.attachments(name)] if names else list(topology.pods)
        outer = stack.enter_context(outside.joined(topology.node)) if pods else None
        tested = test_pods(topology, pods, outer, tuple(options.address), options.timeout, unseen)
        for result in chain(tested, test_limits(topology, pods) if options.limits else ()):
            results.append(result)
            context.progress.clear()
            if not context.out.as_json and (options.every is None or result.state not in _FINE):
                _print(result, previous, topology, context.out)
                previous = result
            context.progress.show(f"{plural(len(results), 'path')} tested")
        context.progress.clear()
        left_out = list(paths.describe_left_out(topology, pods))
    bad = any(result.state.is_bad for result in results)
    if context.out.as_json:
        document = {"complete": not unseen, "paths": [result.to_json() for result in results], "unseen": unseen}
        context.out.print_json({**document, "leftOut": left_out})
    else:
        for text in () if options.every else left_out:
            context.out.print_text(Cell(f"not tested: {text}", "dim"))
        number = len({pod.attachment.container_id for pod in pods})
        _print_summary(context.out, results, number, unseen, timed=options.every is not None)
    return exit_status(wrong=bad, complete=not unseen)


def _print(result: PathResult, previous: PathResult | None, topology: Topology, out: Output) -> None:
    """Prints a line for a path, below the name of its pod, or second interface, if the line above is of another one."""
    path = result.path
    if previous is None or path.pod != previous.path.pod:
        is_default = path.pod in topology.default_attachments
        interface = "" if is_default else f" {path.pod.attachment.ifname} of {path.pod.network}"
        out.print(Cell(f"{name_of(path.pod)}{interface}", "bold"))
    time_text = "" if result.ms is None else f"{result.ms:.1f} ms"
    ending = " ".join(filter(None, (time_text, result.detail and f"({result.detail})")))
    text = f"{path.title:<{_TITLE}} {path.way:<{_WAY}} {ending}".rstrip()
    out.print_text(text, _INDENT, Cell(f"{result.state:<6}", _STYLES[result.state]))
    if result.suspect and previous and result.suspect == previous.suspect:
        out.print(f"{_INDENT}suspect: as above")
    elif result.suspect:
        print_suspect(result.suspect, out, _INDENT)


def _print_summary(out: Output, results: list[PathResult], pods: int, unseen: Iterable[str], *, timed: bool) -> None:
    for text in unseen:
        out.print(Cell("not seen:", "warning"), text)
    numbers = {state: sum(result.state is state for result in results) for state in PathState}
    counts = ", ".join(f"{number} {state}" for state, number in numbers.items() if number or state not in _RARE)
    prefix = f"{time.strftime('%H:%M:%S')} " if timed else ""
    out.print(f"{prefix}{plural(pods, 'pod')}, {plural(len(results), 'path')}: {counts}")
    if any(result.state.is_bad for result in results) and not timed:
        out.print(NEXT)


def _address(text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not an IP address") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 86400:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds, such as 5 or 0.5s")
    return seconds


COMMAND = Command(
    "test",
    "do packets pass on every path of the pods? what loses them?",
    _DESCRIPTION,
    _run,
    _arguments,
    (
        ("podwire test", "all paths of all pods of this node"),
        ("podwire test default/web-0 --address 1.1.1.1", "those of one pod, and an address outside"),
        ("podwire test --every 5s", "watch while something is changed; Ctrl-C ends it"),
    ),
)
