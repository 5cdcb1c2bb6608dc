"""`podwire repair`: restores rules of running pods after a flush of the packet filter.

Pods are not restarted, and rules that exist are not touched.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Sequence

from cni import skel
from podwire import attachments, networks
from podwire.command import (
    Command,
    Context,
    ExitStatus,
    add_options,
    bin_dirs,
    conf_dir,
    layers,
    require_root,
)
from podwire.layers import Layer, describe_caches
from podwire.output import Cell, Output, plural
from podwire.repairing import (
    FAILED,
    FINE,
    GONE,
    MISSING,
    REPAIRED,
    RETRACTED,
    UNKNOWN,
    UNSEEN,
    UNTRIED,
    PluginRepair,
    Repairer,
    RepairOutcome,
)

_SETTLING_S = 2.0
_LONGEST_S = 3600.0
_STATES = {
    FINE: Cell("rules in order", "dim"),
    REPAIRED: Cell("repaired", "good"),
    MISSING: Cell("would be repaired", "warning"),
    FAILED: Cell("FAILED", "bad"),
    GONE: Cell("gone: its namespace no longer exists, so no rules are restored; the runtime's DEL or GC is due", "dim"),
    UNSEEN: Cell("NOT REPAIRED: its network namespace cannot be seen from here; run this on the node itself", "bad"),
    UNKNOWN: Cell("NOT REPAIRED: the cache lacks its configuration, result or namespace; create the pod again", "bad"),
    RETRACTED: Cell("deleted meanwhile: the restored rules were removed again", "dim"),
    UNTRIED: Cell("NOT REPAIRED: another program still holds the packet filter's lock; try again later", "bad"),
}
_BAD = (FAILED, UNSEEN, UNKNOWN, UNTRIED)

_DESCRIPTION = """\
Restores rules that were flushed: masquerading, MAC spoof checks, host ports, the firewall's rules and firewalld's
sources, and IP forwarding, for every running pod, with the configuration that libcni's cache has of its ADD. No pod is
restarted, and connections continue. Run it after `nft flush ruleset`, `iptables -F`, a reload or restart of firewalld.

CHECK of each plugin decides what is missing. Nothing that passes CHECK is changed, so you can run this at any time. The
rules and routing tables of sbr and vrf in the pods are restored, too, and hostAccess of macvlan and ipvlan. An
interface of macvlan or ipvlan that the kernel deleted with its master is created again when the master is back.
host-device's name and settings of a device are restored if the kernel moved it to the host when it deleted the pod's
namespace. Other interfaces, addresses and limits are not repaired, since a flush does not delete them: if CHECK reports
one of them as missing, create the container again.

A pod that is deleted at the same time stays deleted: repaired attachments are watched for a moment (--settle), which
takes most of the command's time. Plugins of other vendors (flannel, calico) are not repaired.

--json: {"attachments": [{"network", "containerID", "ifname", "pod", "netns", "state", "plugins": [{"plugin",
"changes": [...], "error": {"code", "msg", "details"}, "foreign"}]}], "counts": {state: number}, "unread": [files of
the cache that cannot be read]}. "foreign" is true for a plugin that is not in this file. The states: "fine" (nothing
was missing), "repaired", "missing" (with --dry-run), "failed", "gone" (no namespace: DEL or GC is due), "unseen" (its
namespace is missing here, which does not prove that the pod has stopped: run this on the node itself), "unknown" (the
cache lacks the configuration, result or namespace: it cannot be repaired), "retracted" (deleted meanwhile, and the
restored rules with it), "untried" (another program held the packet filter's lock)."""


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", metavar="NETWORK", nargs="?", default="", help="repair only this network (all)")
    add_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print what is missing and change nothing; exit status 1 if something is"
    )
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    parser.add_argument(
        "--settle",
        metavar="SECONDS",
        type=_seconds,
        default=_SETTLING_S,
        help=f"how long to watch repaired attachments ({_SETTLING_S:g})",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < _LONGEST_S:  # also refuses "nan"
        raise ValueError
    return seconds


def _run(context: Context, options: Namespace) -> ExitStatus:
    skel.block_signals()
    require_root(context, "repair")
    caches = layers(context, options)
    attachments.require_caches(caches)
    known = attachments.list_cached(caches, options.network)
    unread = attachments.list_unreadable(caches, known, options.network)
    if options.network and not (known or unread):
        networks.get_network(conf_dir(context, options), options.network)
    repairer = Repairer(context.plugins, bin_dirs(context, options), context.env, options.dry_run)
    outcomes: dict[str, RepairOutcome] = {}
    for outcome in repairer.repair(known):
        outcomes[outcome.known.path] = outcome
        context.progress.clear()
        _print_outcome(context.out, outcome, options)
        context.progress.show(f"repaired {len(outcomes)} of {plural(len(known), 'attachment')}")
    for outcome in repairer.settle([*outcomes.values()], options.settle):
        outcomes[outcome.known.path] = outcome
        context.progress.clear()
        _print_outcome(context.out, outcome, options)
    unread = [
        path for path in unread if os.path.lexists(path) and attachments.read(path) is None
    ]  # unless it was deleted or completed meanwhile
    missing_delegates = attachments.describe_missing_delegates(attachments.list_cached(caches))
    context.progress.clear()
    for text in missing_delegates:
        context.out.print(Cell(f"not repaired: {text}; {attachments.MISSING_DELEGATES_FIX}", "bad"))
    _sum_up(context.out, [*outcomes.values()], unread, options, caches)
    bad = any(outcome.state in (*_BAD, MISSING) for outcome in outcomes.values())
    return ExitStatus.WRONG if bad or unread or missing_delegates else ExitStatus.FINE


def _print_outcome(out: Output, outcome: RepairOutcome, options: Namespace) -> None:
    if options.quiet and outcome.state not in _BAD:
        return
    known = outcome.known
    container, ifname = known.attachment
    out.print(f"{known.network_name} {container} {ifname}", *([known.pod] if known.pod else []), _STATES[outcome.state])
    for part in outcome.parts:
        for change in part.changes:
            if change.startswith("restore "):  # repair_if_missing's line; the others, in JSON, are single changes
                out.print(f"    {part.plugin}: {change}")
        if part.error:
            out.print(Cell(f"    {part.plugin}: {part.error.msg}", "bad"))
            if part.error.details:
                out.print(f"        {part.error.details}")
    out.stream.flush()  # an operator is watching


def _sum_up(
    out: Output, outcomes: list[RepairOutcome], unread: list[str], options: Namespace, caches: Sequence[Layer]
) -> None:
    counts = Counter(outcome.state for outcome in outcomes)
    documents = [_as_json(outcome) for outcome in outcomes]
    out.print_json({"attachments": documents, "counts": dict(sorted(counts.items())), "unread": unread})
    for path in unread:
        out.print(Cell(f"cannot read {path}: its pod was not repaired; create the pod again", "bad"))
    if options.quiet:
        return
    foreign = sorted({part.plugin for outcome in outcomes for part in outcome.parts if part.foreign})
    if foreign:
        out.print(f"not repaired, since they are not podwire's plugins: {', '.join(foreign)}")
    if not outcomes:
        where = f" of network {options.network}" if options.network else ""
        out.print(f"no attachments{where} in {describe_caches(caches)}")
        return
    counts_in_words = Counter(_STATES[state].text.partition(":")[0].lower() for state in counts.elements())
    summary = ", ".join(f"{number} {words}" for words, number in sorted(counts_in_words.items()))
    out.print(f"{plural(len(outcomes), 'attachment')}: {summary}")


def _as_json(outcome: RepairOutcome) -> dict[str, object]:
    known = outcome.known
    return {
        "network": known.network_name,
        "containerID": known.attachment.container_id,
        "ifname": known.attachment.ifname,
        "pod": known.pod,
        "netns": known.netns,
        "state": outcome.state,
        "plugins": [*_parts_as_json(outcome.parts)],
    }


def _parts_as_json(parts: Iterable[PluginRepair]) -> Iterable[dict[str, object]]:
    for part in parts:
        document: dict[str, object] = {"plugin": part.plugin, "changes": [*part.changes]}
        if part.foreign:
            document["foreign"] = True
        if part.error:
            document["error"] = {"code": int(part.error.code), "msg": part.error.msg, "details": part.error.details}
        yield document


COMMAND = Command(
    "repair",
    "restore flushed rules of running pods",
    _DESCRIPTION,
    _run,
    _arguments,
    (
        ("podwire repair", "after a flush: all networks"),
        ("podwire repair --dry-run", "print what is missing and change nothing; exit status 1 if something is"),
        ("podwire repair podwire --json", "one network, for a program"),
    ),
)
