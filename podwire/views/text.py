"""The node as text: networks, attachments, leaked objects and what could not be seen, fitted into the terminal."""

from __future__ import annotations

from ipam.host_local.allocator import format_usage
from podwire.node.model import AttachmentState, Leak, NodeInventory, NodeNetwork, Pod, fold_ports, short_id
from podwire.output import Cell, Output, Text, plural
from podwire.views.selection import FINE, lacks_rules

_HEADERS = ("NETWORK", "CONTAINER", "POD", "INTERFACE", "HOST", "ADDRESSES", "HOST PORTS", "LIMITS", "STATE")
# Columns that a narrow terminal may lack, in this order; a container is identified by its pod, if that is known.
_OPTIONAL = ("INTERFACE", "HOST", "LIMITS", "CONTAINER", "HOST PORTS")


def print_node(node: NodeInventory, out: Output, *, everything: bool) -> None:
    """Prints the node; without `everything` networks that only set up lo are one line."""
    loopback = {} if everything else _of_lo(node)
    _networks(tuple(item for item in node.networks if item.name not in loopback), out)
    out.print()
    print_pods(tuple(pod for pod in node.pods if pod.network not in loopback or pod.state not in FINE), out)
    for name, number in loopback.items():
        out.print()
        out.print(Cell(f"lo of {number} pod{'' if number == 1 else 's'}: podwire show {name}", "dim"))
    _leaks(node.leaks, out)
    _unseen(node, out)


def print_selected(node: NodeInventory, out: Output) -> None:
    """Prints the attachments and leaked objects of a selection, without the networks."""
    print_pods(node.pods, out)
    _leaks(node.leaks, out)
    _unseen(node, out)


def _unseen(node: NodeInventory, out: Output) -> None:
    if node.unseen:
        out.print()
        out.print(Cell("NOT SEEN", "warning"))
        for text in node.unseen:
            out.print_text(f"  {text}", "    ")


def _of_lo(node: NodeInventory) -> dict[str, int]:
    """Returns the networks that only set up lo, with the number of their pods."""
    names = [item.name for item in node.networks if not item.file and set(item.plugins) == {"loopback"}]
    return {name: sum(pod.network == name and pod.state in FINE for pod in node.pods) for name in names}


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
                out.print_text(Cell(f"      {leak.description}{f' of {owner}' if owner else ''}", "bad"), " " * 8)


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
    headers = ("NETWORK", "FILE", "PLUGINS", "BRIDGE", "ATTACHED", "RANGE", "IN USE", "")
    out.print_table(headers, rows, optional=("FILE", "BRIDGE"))


def _in_use(in_use: int, size: int, addresses: str) -> list[Text]:
    full = in_use >= size
    return [addresses, Cell(format_usage(in_use, size), "bad" if full else "")]


def print_pods(pods: tuple[Pod, ...], out: Output, *, with_headers: bool = True) -> None:
    """Prints the table of attachments, and what else it says with headers: marks, problems, missing columns."""
    if not pods:
        if with_headers:
            out.print("no attachments")
        return
    is_one_network = len({pod.network for pod in pods}) == 1
    optional = [name for name in _OPTIONAL if name != "CONTAINER" or all(pod.pod for pod in pods)]
    title = "POD" if all(pod.pod for pod in pods) else "CONTAINER"
    left_out = out.print_table(
        _HEADERS,
        [_row(pod) for pod in pods],
        optional=(*optional, *(["NETWORK"] if is_one_network else [])),
        title=title,
        with_headers=with_headers,
    )
    if not with_headers:
        return
    if left_out:
        out.print_text(Cell(f"not shown: {', '.join(left_out)} (podwire show --wide)", "dim"))
    if any(map(lacks_rules, pods)):
        out.print_text(Cell("! the packet filter has no rule for this host port: podwire repair", "bad"))
    for pod in pods:
        for problem in pod.problems:
            owner = f"{pod.network} {pod.pod or short_id(pod.attachment.container_id)} {pod.attachment.ifname}"
            out.print_text(Cell(f"{owner}: {problem}", "bad"), "  ")
    if any(pod.problems for pod in pods):
        out.print("for the fixes: podwire doctor")


def _row(pod: Pod) -> list[Text]:
    ports = " ".join(
        f"{text}{'' if confirmed else '?' if confirmed is None else '!'}"
        for text, confirmed in fold_ports(pod.host_ports)
    )
    style = (
        "bad"
        if pod.leaked or pod.state is AttachmentState.FAILED
        else "good"
        if pod.state is AttachmentState.OK
        else "warning"
    )
    return [
        pod.network,
        short_id(pod.attachment.container_id) or "-",
        pod.pod or "-",
        pod.attachment.ifname or "-",
        pod.host_side or "-",
        " ".join(pod.addresses) or "-",
        Cell(ports or "-", "bad" if lacks_rules(pod) else ""),
        ", ".join(pod.limits) or "-",
        Cell(str(pod.state), style),
    ]
