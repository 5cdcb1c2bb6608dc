"""`podwire show`: networks and attachments of this node, and objects leaked by deleted pods.

The command only reads.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace

from cni.errors import CniError, Code
from ipam.host_local.conf import DATA_DIR
from podwire.command import (
    Command,
    Context,
    ExitStatus,
    add_bin_dir,
    add_cache_dir,
    add_conf_dir,
    add_json,
    bin_dirs,
    exit_status,
    places,
)
from podwire.doctor.checks import run_checks
from podwire.doctor.finding import Severity
from podwire.doctor.node import CheckedNode
from podwire.node.inspection import inspect_snapshot
from podwire.node.model import DOCUMENT, NodeInventory
from podwire.output import Output
from podwire.views import map_svg, page, selection, text
from podwire.views.shot import Shot
from process.version import __version__

_DESCRIPTION = (
    """\
Shows this node's pod networks and their attachments, with interfaces, addresses, host ports and limits. It combines
three sources: the runtime's cache (libcni's, with the result of every ADD), host-local's stores of addresses, and the
kernel (interfaces on the host and in the pods, limits, and the rules for masquerading, host ports and firewall, in
nftables and iptables).

STATE   ok            its namespace and its interface exist, and CHECK of podwire's plugins passes
        check failed  CHECK of a plugin fails: its error is printed below, `podwire doctor` prints the fix
        not checked   its namespace and its interface exist, but CHECK was not run: the network's version has no CHECK,
                      the network disables it, or root is needed
        gone          its namespace provably no longer exists, but the runtime's cache still has it: DEL was not run
        no cache      an address is reserved for it, but it is not in the runtime's cache: its ADD is still running or
                      was killed, or the runtime keeps no cache
        no interface  its namespace exists, but its interface was deleted: remove the pod and create it again
        not seen      its namespace exists, but cannot be entered: without root, or from within a container
        unknown       its namespace is missing here, which does not prove that the container has stopped

HOST    the host veth of the pod's interface; of an interface without one, the host's interface that it is built on, its
        kind and its mode or VLAN: eth0 (macvlan bridge), eth0 (vlan 100), (dummy)

HOST PORTS  8080->80/tcp: port 8080 of the host is forwarded to port 80 of the pod. "!": the packet filter has no rule
            for it. "?": the packet filter could not be read, or CHECK of portmap fails.

On a terminal that is too narrow, columns that matter less are left out and named below the table; --wide prints all of
them in lines of any length, as into a pipe. --pod, --wrong and --sort select and sort the attachments, also of --json,
--svg and --html.

LEAKED lists objects of deleted pods, each with the command that removes it. Objects that may belong to a running
container are not listed. Nothing is changed.

Exit status: 0 all in order; 1 something is leaked, or a pod has a fault; 4 neither, but not everything could be
inspected: NOT SEEN lists the rest.

--json prints
"""
    + DOCUMENT
)


def add_places(parser: ArgumentParser) -> None:
    """Adds the options for the directories to read; `places` reads them."""
    add_conf_dir(parser)
    add_cache_dir(parser)
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        default=DATA_DIR,
        help=f'host-local\'s stores, in addition to each "dataDir" of a configuration ({DATA_DIR})',
    )


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", nargs="?", default="", metavar="NETWORK", help="show only this network")
    parser.add_argument(
        "--pod",
        metavar="POD",
        default="",
        help="only this pod: namespace/name, name, container ID or its start; may contain *",
    )
    parser.add_argument("--wrong", action="store_true", help="only attachments with a fault")
    parser.add_argument(
        "--sort", metavar="KEY", choices=tuple(selection.SORT_KEYS), default="network", help=_sort_help()
    )
    parser.add_argument("--wide", action="store_true", help="all columns, in lines of any length")
    parser.add_argument("--no-headers", action="store_true", help="only the attachments, one in each line")
    for name, what in (("svg", "the map"), ("html", "a page with search, filters, map and doctor's findings")):
        parser.add_argument(
            f"--{name}", metavar="FILE", help=f"also write {what} to FILE (-: only that, to standard output)"
        )
    add_places(parser)
    add_bin_dir(parser)
    add_json(parser)


def _sort_help() -> str:
    return f"the order of attachments: {', '.join(selection.SORT_KEYS)} (network)"


def _run(context: Context, options: Namespace) -> ExitStatus:
    doctor = CheckedNode(
        context.plugins, context.env, places(context, options), bin_dirs(context, options), options.network
    )
    node, _ = inspect_snapshot(doctor.directories, doctor.checker, options.network, context.progress.show)
    node = selection.select(node, options.pod, wrong=options.wrong)
    node = selection.sort(node, options.sort)
    shot = Shot(os.uname().nodename, time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime()), __version__)
    if options.svg:
        _write(options.svg, map_svg.render(node, shot), context.out)
    if options.html:
        context.progress.show("podwire doctor")
        findings = [one for one in run_checks(doctor) if one[1].severity is not Severity.OK]
        context.progress.clear()
        _write(options.html, page.render(node, shot, findings), context.out)
    context.progress.clear()
    if "-" not in (options.svg, options.html):
        _print(node, context.out, options, shot)
    wrong = node.leaks or any(map(selection.is_wrong, node.pods))
    return exit_status(wrong=bool(wrong), complete=not node.unseen)


def _print(node: NodeInventory, out: Output, options: Namespace, shot: Shot) -> None:
    if out.as_json:
        out.print_json({**shot.to_json(), **node.to_json()})
        return
    if options.wide:
        out = replace(out, width=0)
    if options.no_headers:
        text.print_pods(node.pods, replace(out, width=0), with_headers=False)
    elif options.pod or options.wrong:
        text.print_selected(node, out)
    else:
        text.print_node(node, out, everything=bool(options.network))


def _write(path: str, content: str, out: Output) -> None:
    if path == "-":
        out.print_block(content)
        return
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(content)
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot write {path}: {error.strerror}") from error


COMMAND = Command(
    "show",
    "networks, attachments, and objects leaked by deleted pods",
    _DESCRIPTION,
    _run,
    _arguments,
    (
        ("podwire show", "everything; exit status 1 if anything is leaked or missing"),
        (
            "podwire show podnet --json | jq -r '.attachments[] | select(.leaked) | .containerID'",
            "the containers that are no longer running",
        ),
        ("podwire show --pod 'default/web-*'", "some pods; podwire show --wrong: those with a fault"),
        ("podwire show --no-headers --sort address", "for a script: one attachment in each line"),
        ("podwire show --svg /tmp/node.svg", "also draw the map, on one page"),
        ("podwire show --html /tmp/node.html", "also write a page with search, map and findings"),
    ),
)
