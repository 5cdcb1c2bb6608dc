"""`podwire show`: networks and attachments of this node, and objects leaked by deleted pods.

The command only reads.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from cni.errors import CniError, Code
from ipam.host_local.conf import DATA_DIR
from podwire import map_svg
from podwire.checking import Checker
from podwire.command import (
    Command,
    Context,
    Status,
    add_cache_dir,
    add_conf_dir,
    add_json,
    bin_dirs,
    conf_dir,
    exit_status,
)
from podwire.node.inspection import inspect_node
from podwire.node.model import DOCUMENT, Leak, Node, NodeNetwork, Pod, State, format_rate, short_id
from podwire.node.records import Directories
from podwire.output import Cell, Output, Text, plural

_LARGE = 2**32
_WRONG = (State.NO_INTERFACE, State.FAILED)
_FINE = (State.OK, State.NOT_CHECKED)

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


def places(context: Context, options: Namespace) -> Directories:
    """Returns the directories to read."""
    return Directories(conf_dir(context, options), options.cache_dir, options.data_dir)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", nargs="?", default="", metavar="NETWORK", help="show only this network")
    parser.add_argument(
        "--svg", metavar="FILE", help="also write the map to FILE (-: only the map, to standard output)"
    )
    add_places(parser)
    add_json(parser)


def _run(context: Context, options: Namespace) -> Status:
    checker = Checker(context.plugins, context.env, bin_dirs(context, options))
    node = inspect_node(places(context, options), checker, options.network)
    if options.svg:
        _draw(node, options.svg, context.out)
    if options.svg != "-":
        if context.out.as_json:
            context.out.print_json(node.to_json())
        else:
            _print(node, context.out, everything=bool(options.network))
    wrong = node.leaks or any(pod.state in _WRONG or _lacks_rules(pod) for pod in node.pods)
    return exit_status(wrong=bool(wrong), complete=not node.unseen)


def _draw(node: Node, path: str, out: Output) -> None:
    picture = map_svg.render(node, os.uname().nodename)
    if path == "-":
        out.print_block(picture)
        return
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(picture)
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot write the map to {path}: {error.strerror}") from error


def _print(node: Node, out: Output, *, everything: bool) -> None:
    loopback = {} if everything else _of_lo(node)
    _networks(tuple(item for item in node.networks if item.name not in loopback), out)
    _pods(tuple(pod for pod in node.pods if pod.network not in loopback or pod.state not in _FINE), out)
    for name, number in loopback.items():
        out.print()
        out.print(Cell(f"lo of {number} pod{'' if number == 1 else 's'}: podwire show {name}", "dim"))
    _leaks(node.leaks, out)
    if node.unseen:
        out.print()
        out.print(Cell("NOT SEEN", "warning"))
        for text in node.unseen:
            out.print(" ", text)


def _of_lo(node: Node) -> dict[str, int]:
    """Returns the networks that only set up lo, with the number of their pods."""
    names = [item.name for item in node.networks if not item.file and set(item.plugins) == {"loopback"}]
    return {name: sum(pod.network == name and pod.state in _FINE for pod in node.pods) for name in names}


def _leaks(leaks: tuple[Leak, ...], out: Output) -> None:
    """Prints the leaked objects below the command that removes them."""
    if leaks:
        out.print()
        out.print(Cell("LEAKED", "bad"), f"{plural(len(leaks), 'object')} of attachments that are no longer running")
    for fix in dict.fromkeys(leak.fix for leak in leaks):
        out.print(" ", Cell(fix, "bold"))
        for leak in leaks:
            owner = " ".join(filter(None, (leak.network, *leak.attachment)))
            if leak.fix == fix:
                out.print("     ", Cell(leak.description, "bad"), *([f"of {owner}"] if owner else []))


def _networks(networks: tuple[NodeNetwork, ...], out: Output) -> None:
    if not networks:
        out.print("no networks")
        return
    rows: list[list[Text]] = []
    for network in networks:
        first: list[Text] = [
            network.name or "-",
            network.file or "-",
            " ".join(network.plugins) or "-",
            " ".join(network.bridges) or "-",
            str(network.attachments),
        ]
        ranges = [_in_use(item.in_use, item.size, item.addresses) for item in network.ranges] or [["-", "-"]]
        rows.append([*first, *ranges[0], Cell(network.problem, "warning")])
        rows += [[*[""] * len(first), *more, ""] for more in ranges[1:]]
    out.print_table(("NETWORK", "FILE", "PLUGINS", "BRIDGE", "ATTACHED", "RANGE", "IN USE", ""), rows)


def _in_use(in_use: int, size: int, addresses: str) -> list[Text]:
    full = in_use >= size
    return [
        addresses,
        Cell(f"{in_use} of {size if size < _LARGE else f'2^{size.bit_length()}'}", "bad" if full else ""),
    ]


def _pods(pods: tuple[Pod, ...], out: Output) -> None:
    if not pods:
        out.print()
        out.print("no attachments")
        return
    out.print()
    headers = ("NETWORK", "CONTAINER", "POD", "INTERFACE", "HOST", "ADDRESSES", "HOST PORTS", "LIMITS", "STATE")
    out.print_table(headers, [_row(pod) for pod in pods])
    if any(map(_lacks_rules, pods)):
        out.print(Cell("! the packet filter has no rule for this host port: podwire repair", "bad"))
    for pod in pods:
        for problem in pod.problems:
            owner = f"{pod.network} {pod.pod or short_id(pod.attachment.container_id)} {pod.attachment.ifname}"
            out.print(f"{owner}:", Cell(problem, "bad"))
    if any(pod.problems for pod in pods):
        out.print("for the fixes: podwire doctor")


def _lacks_rules(pod: Pod) -> bool:
    """Returns whether the packet filter has no rule for a host port of a running pod."""
    return not pod.leaked and any(port.confirmed is False for port in pod.host_ports)


def _row(pod: Pod) -> list[Text]:
    ports = " ".join(
        f"{port}{'' if port.confirmed else '?' if port.confirmed is None else '!'}" for port in pod.host_ports
    )
    style = "bad" if pod.leaked or pod.state is State.FAILED else "good" if pod.state is State.OK else "warning"
    return [
        pod.network,
        short_id(pod.attachment.container_id) or "-",
        pod.pod or "-",
        pod.attachment.ifname or "-",
        pod.host_side or "-",
        " ".join(pod.addresses) or "-",
        ports or "-",
        limits(pod) or "-",
        Cell(str(pod.state), style),
    ]


def limits(pod: Pod) -> str:
    """Returns the rate limits of an attachment, for receiving, then for sending."""
    directions = (("receives", pod.receives), ("sends", pod.sends))
    return ", ".join(f"{word} {format_rate(bits)}" for word, bits in directions if bits)


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
        ("podwire show --svg /tmp/node.svg", "also draw the map, for a browser"),
    ),
)
