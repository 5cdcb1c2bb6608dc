"""`podwire ipam list|verify|free`: lists, verifies and releases host-local's addresses; lists dhcp's leases.

An address is released under its store's lock, and without --force only if its owner is no longer running. The commands
for the addresses of a cluster are in ipam_cluster_options.py.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable

from cni.errors import CniError, Code
from podwire.command import (
    Command,
    Context,
    ExitStatus,
    UsageError,
    add_json,
    add_parser,
    exit_status,
    places,
    require_root,
    run_subcommand,
)
from podwire.commands import ipam_cluster, ipam_cluster_options
from podwire.commands.agent_command import add_socket
from podwire.commands.show import add_places
from podwire.node import dhcp_leases, release, reservations
from podwire.node.dhcp_leases import DhcpLease, LeaseState
from podwire.node.inspection import read_snapshot
from podwire.node.records import Directories, Reservation
from podwire.node.release import ReleaseOutcome
from podwire.node.reservations import ListedReservation, ReservationFault, ReservationState
from podwire.node.snapshot import Snapshot
from podwire.output import Cell, Text, plural

_STYLES = {
    ReservationState.RUNNING: "good",
    ReservationState.GONE: "bad",
    ReservationState.FOREIGN: "bad",
    ReservationState.EMPTY: "dim",
}
_LEASE_STYLES = {LeaseState.LEASED: "good", LeaseState.EXPIRED: "bad"}
_LEAST = 12  # characters of an abbreviated ID, as `podwire show` prints it

_DESCRIPTION = """\
host-local records each allocated address in <dataDir>/<network>, in a file named after the address. These commands
read those files, compare them with the runtime's cache and with the addresses of interfaces, and release addresses of
containers that are no longer running. `list` also prints the leases of dhcp, from the files of its daemon, which
alone releases them.

The addresses of a network with "pool" come from the blocks that this node has of a pool of the cluster. `pools`,
`blocks`, `who`, `why`, `verify --cluster`, `reclaim` and `recover` ask podwire-agent of this node about them."""
_LIST = """\
Prints every reserved address with its owner.

STATE   running       its container is running, or the address is in use in a namespace connected to the network
        gone          its container is proven to be no longer running: `podwire ipam free` releases the address
        new           reserved less than a minute ago and not in the runtime's cache: its ADD may still be running
        unknown       its container may be running: not everything could be inspected from here, or no pod runs on
                      this host
        remark        an administrator reserved it, to keep it unallocated
        empty         residue of a killed ADD: the address is free
        foreign       the file names no owner, so the address is never allocated
        last_reserved only with --json, not a reservation: the search for a free address starts after this one

The leases of dhcp follow, with their servers and ends.

STATE   leased         the daemon renews it
        expired        no server renewed it, or the daemon is not running: the pod has lost the address
        another boot   the node was rebooted, and the daemon has not asked a server yet
        to be released DEL ran without a daemon: the daemon releases it when it starts

Exit status: 0, or 4 when not everything could be inspected.

--json prints [{"address", "network", "dataDir", "state", "containerID", "ifname", "pod", "since", "beforeBoot"}]; a
lease of dhcp also has "server" and "expiresInS", null if it has no end or an unknown one."""
_VERIFY = """\
Cross-checks the reservations, the runtime's cache and the kernel, and prints each fault with its fix: addresses of
containers that are no longer running, addresses in use that are not reserved (another pod may get them) or that are
reserved for another container, addresses that two pods have, files that host-local did not write, ranges of which 90
% are in use, an index that differs from the files. Nothing is changed.

With --cluster it compares, without a lock, all blocks and nodes of the cluster's store, which podwire-agent reads
(some 30,000 objects in a large cluster), and this node's reservations with its blocks: blocks without a running owner,
of no pool, or that overlap; entries of nodes that list blocks of others, or have one name; nodes of another epoch,
for which all wait; objects that are not valid; addresses of pods that are in no block of this node.

Exit status: 0 no fault; 1 at least one; 4 no fault was detected, but not everything could be inspected.

--json prints {"complete", "findings": [{"kind", "network", "address", "what", "cure"}], "unseen": ["..."]}, with
--cluster {"complete", "findings": [{"kind", "object", "what", "fix"}], "unseen": ["..."]}."""
_FREE = """\
Releases addresses whose owner is no longer running, under the lock that ADD takes, after a second check. Without
--force it refuses to release an address whose container is running, one that is configured on an interface, one that
was reserved less than a minute ago and is not in the runtime's cache yet (its ADD may still be running), and
administrators' remarks.

A running pod whose reservation is released keeps its address, but another pod may get the same one.

--json prints {"freed": [{"address", "network", "containerID", "ifname"}], "kept": [the same with "reason"]}."""
_EXAMPLES = {
    "list": (("podwire ipam list podnet", "the addresses of a network, with owner and time"),),
    "verify": (
        ("podwire ipam verify", "faults in the reservations of all networks"),
        ("podwire ipam verify --cluster", "faults in the blocks of the cluster's pools"),
    ),
    "free": (
        ("podwire ipam free --gone podnet", "release the addresses of containers that are no longer running"),
        ("podwire ipam free 10.22.0.7", "release one address, if its owner is no longer running"),
    ),
}


def _list(context: Context, options: Namespace) -> ExitStatus:
    snapshot = read_snapshot(places(context, options), options.network, rules=False)
    items, unseen = list(reservations.entries(snapshot, options.network)), _unseen(snapshot, options.network)
    leases, unreadable = dhcp_leases.read_leases(_dhcp_directories(snapshot), options.network)
    unseen += [f"the DHCP lease in {item.path}: {item.problem}" for item in unreadable]
    documents = [line.to_json() for line in items]
    context.out.print_json(documents + [lease.to_json(_pod(snapshot, lease)) for lease in leases])
    if items := [line for line in items if line.state is not ReservationState.LAST]:
        headers = ("ADDRESS", "NETWORK", "CONTAINER", "INTERFACE", "POD", "SINCE", "STATE")
        context.out.print_table(headers, [_row(line) for line in items])
    elif not (unseen or leases):
        context.out.print("no addresses are reserved")
    if leases:
        titles = ("DHCP LEASE", "NETWORK", "CONTAINER", "INTERFACE", "POD", "SERVER", "EXPIRES", "STATE")
        context.out.print_table(titles, [_lease_row(lease, _pod(snapshot, lease)) for lease in leases])
    ipam_cluster.print_unseen(context, unseen)
    return exit_status(wrong=False, complete=not unseen)


def _dhcp_directories(snapshot: Snapshot) -> tuple[str, ...]:
    """Returns the directories of lease files, of the networks in net.d and of those in the cache."""
    cached = [item.network for item in snapshot.records.cached if item.network]
    return dhcp_leases.list_data_dirs([*snapshot.records.networks.values(), *cached])


def _pod(snapshot: Snapshot, lease: DhcpLease) -> str:
    pods = snapshot.pods_of(lease.network, lease.attachment)
    return next((pod.pod for pod in pods if pod.pod), "")


def _lease_row(lease: DhcpLease, pod: str) -> list[Text]:
    return [
        lease.address,
        lease.network,
        lease.attachment.container_id,
        lease.attachment.ifname,
        pod or "-",
        lease.server,
        lease.expiry,
        Cell(str(lease.state), _LEASE_STYLES.get(lease.state, "warning")),
    ]


def _row(line: ListedReservation) -> list[Text]:
    return [
        line.address,
        line.network,
        line.attachment.container_id or "-",
        line.attachment.ifname or "-",
        line.pod or "-",
        line.when or "-",
        Cell(str(line.state), _STYLES.get(line.state, "warning")),
    ]


def _verify(context: Context, options: Namespace) -> ExitStatus:
    if options.cluster:
        return ipam_cluster.verify(context, options)
    snapshot = read_snapshot(places(context, options), options.network, rules=False)
    items = list(reservations.findings(snapshot, options.network))
    if items:  # pods start and stop meanwhile: report only what a second snapshot shows again
        snapshot = read_snapshot(places(context, options), rules=False)
        before = {(item.kind, item.network, item.address) for item in items}
        again = reservations.findings(snapshot, options.network)
        items = [item for item in again if (item.kind, item.network, item.address) in before]
    unseen = _unseen(snapshot, options.network)
    document = {"findings": [item.to_json() for item in items], "unseen": unseen}
    context.out.print_json({"complete": not unseen, **document})
    _print(context, snapshot, items, unseen, options.network)
    return exit_status(wrong=bool(items), complete=not unseen)


def _unseen(snapshot: Snapshot, network: str) -> list[str]:
    """Returns descriptions of everything that could not be inspected."""
    unproven_owners = reservations.unproven_owners(snapshot, network)
    return list(dict.fromkeys((*snapshot.records.unread, *snapshot.kernel.unseen, *unproven_owners)))


def _print(
    context: Context, snapshot: Snapshot, items: list[ReservationFault], unseen: list[str], network: str
) -> None:
    for item in items:
        context.out.print_text(Cell(item.description, "bad"), "    ", f"{item.network}:")
        context.out.print("  fix:", item.fix)
    ipam_cluster.print_unseen(context, unseen)
    if not items:
        lines = reservations.entries(snapshot, network)
        number = plural(sum(line.state is not ReservationState.LAST for line in lines), "reservation")
        if unseen:
            context.out.print(Cell(f"{number}; whether anything is wrong is not known", "warning"))
        else:
            context.out.print(Cell(f"{number}, nothing wrong", "good"))


def _free(context: Context, options: Namespace) -> ExitStatus:
    where = places(context, options)
    require_root(context, "ipam free")
    network = _network(options)
    snapshot = read_snapshot(where, network, rules=False)
    chosen = _chosen(snapshot, options, network)
    results = list(release.release(snapshot, chosen, force=options.force))
    freed = [item.to_json() for item in results if not item.reason]
    context.out.print_json({"freed": freed, "kept": [item.to_json() for item in results if item.reason]})
    _print_outcomes(context, results, where)
    return ExitStatus.WRONG if any(item.reason for item in results) else ExitStatus.FINE


def _print_outcomes(context: Context, results: list[ReleaseOutcome], where: Directories) -> None:
    for item in results:
        attachment = item.item.attachment
        owner = " ".join(filter(None, attachment)) or "no container"
        if item.reason:
            context.out.print(
                Cell("kept", "bad"), item.item.file.name, "of", item.item.network, f"({owner}):", item.reason
            )
        else:
            context.out.print(Cell("freed", "good"), item.item.file.name, "of", item.item.network, f"({owner})")
    if any(item.reason for item in results):
        context.out.print("--force releases these, too")
    if not results:
        context.out.print(f"nothing to release in {where.data_dir} and the directories of the networks")


def _network(options: Namespace) -> str:
    """Returns the network to search, "" for all; raises UsageError if the arguments name no address to release."""
    by_address = not (options.gone or options.container)
    if by_address <= len(options.words) <= 1 + by_address:
        return "".join(options.words[by_address:])
    hint = "podwire ipam free ADDRESS [NETWORK], --container ID [NETWORK], or --gone [NETWORK]"
    raise UsageError(Code.INVALID_ENVIRONMENT, "which address is to be released?", hint)


def _chosen(snapshot: Snapshot, options: Namespace, network: str) -> list[Reservation]:
    """Returns the reservations that the options select; raises CniError if --container or ADDRESS selects none."""
    every = [item for pool in snapshot.records.pools if network in ("", pool.network) for item in pool.reservations]
    if options.gone:
        return [item for item in every if reservations.state_of(snapshot, item) is ReservationState.GONE]
    if options.container:
        items = _of_container(every, options.container)
    else:
        items = [item for item in every if item.file.name == options.words[0]]
    if items:
        return items
    what = f"container {options.container}" if options.container else f"address {options.words[0]}"
    raise CniError(Code.UNKNOWN_CONTAINER, f"no reservation of {what}", "podwire ipam list prints all reservations")


def _of_container(every: list[Reservation], requested: str) -> list[Reservation]:
    """Returns the reservations of a container, by its ID or an unambiguous prefix of at least _LEAST characters."""
    exact = [item for item in every if item.attachment.container_id == requested]
    if exact or len(requested) < _LEAST:
        return exact
    items = [item for item in every if item.attachment.container_id.startswith(requested)]
    if len({item.attachment.container_id for item in items}) > 1:
        raise CniError(
            Code.UNKNOWN_CONTAINER, f"the IDs of several containers begin with {requested}", "use the whole ID"
        )
    return items


def _arguments(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(subcommand=None)
    _add(commands, "list", "the addresses in use", _LIST, _list)
    verify = _add(commands, "verify", "compare the reservations with running containers", _VERIFY, _verify)
    verify.add_argument("--cluster", action="store_true", help="compare the blocks and nodes of the cluster's pools")
    add_socket(verify)
    free = _add(commands, "free", "release addresses whose owner is no longer running", _FREE, _free)
    free.add_argument("--container", metavar="ID", help="all addresses of this container")
    free.add_argument("--gone", action="store_true", help="all addresses whose owner is no longer running")
    free.add_argument("--force", action="store_true", help="also if the owner is or may be running, also remarks")
    ipam_cluster_options.add_commands(commands)


def _add(
    commands: _SubParsersAction[ArgumentParser],
    name: str,
    summary: str,
    about: str,
    run: Callable[[Context, Namespace], ExitStatus],
) -> ArgumentParser:
    subparser = add_parser(commands, name, summary, about, _EXAMPLES[name])
    if name == "free":
        subparser.add_argument("words", nargs="*", metavar="ADDRESS [NETWORK]", help="the address, and its network")
    else:
        subparser.add_argument("network", nargs="?", default="", metavar="NETWORK", help="only this network")
    add_places(subparser)
    add_json(subparser)
    subparser.set_defaults(subcommand=run)
    return subparser


COMMAND = Command(
    "ipam",
    "host-local's addresses: list, verify, release stale ones; dhcp's leases; a cluster's pools",
    _DESCRIPTION,
    run_subcommand,
    _arguments,
    tuple(example for examples in (_EXAMPLES | ipam_cluster_options.EXAMPLES).values() for example in examples),
)
