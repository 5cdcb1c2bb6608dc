"""`podwire gc`: removes the remains of deleted attachments."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from cni.conf import Attachment
from cni.errors import CniError, Code
from podwire import attachments
from podwire.attachments import CachedAttachment
from podwire.command import Command, Context, ExitStatus, add_options, places, require_root
from podwire.commands.attachment_options import add_dry_run, add_explain, build_runtime
from podwire.flannel import is_flannel
from podwire.layers import Layer
from podwire.networks import Network
from podwire.node import release
from podwire.node.inspection import read_snapshot
from podwire.node.reservations import ReservationState, state_of
from podwire.output import plural
from podwire.verbs import network_list, running_attachments
from podwire.verbs.invoke import PodArgs
from podwire.verbs.network_list import PluginRunner
from podwire.verbs.running_attachments import RunningAttachments

_LISTED = 5  # released addresses


def _gc(context: Context, options: Namespace) -> ExitStatus:
    require_root(context, "gc")
    where = places(context, options)
    network = attachments.find_network(where.conf_dir, where.layers, options.network)
    if not network.path:
        context.out.print(f"{where.conf_dir} has no network {network.name}: using the configuration in the cache")
    known = attachments.list_cached(where.layers, network.name)
    _require_readable_caches(where.layers, known, network.name)
    if not (options.all or network.disable_gc):
        running_attachments.require_witness(known, where.layers, network.name)
    runtime = build_runtime(context, options, dry_run=options.dry_run)
    running = RunningAttachments.read(where, network.name, options.force)
    if not network.disable_gc:
        running.require_proof()
    gone = [one for one in known if running.is_gone(one)]
    _print_counts(context, running, len(known) - len(gone), len(gone))
    if network.disable_gc:
        gone = []
        context.out.print("nothing was done: the network sets disableGC")
    deleted = []
    for one in gone:
        if not running_attachments.is_unchanged(one):
            continue
        context.out.print(f"container {one.attachment.container_id}, {one.attachment.ifname} of {one.netns}:")
        pod = PodArgs(one.attachment, one.netns, one.cni_args, one.capability_args)
        if network_list.delete(runtime, one.network or network, pod, one.result):
            deleted.append(one.attachment)
            if options.dry_run:
                context.out.print(f"{one.path} would be removed")
    released: list[str] = []
    if not network.disable_gc:
        released = _run_gc(context, runtime, network, running, dry_run=options.dry_run)
    if context.out.as_json:
        steps = [step.to_json() for step in runtime.done]
        lists = {"kept": _to_json(running.valid()), "deleted": _to_json(deleted), "released": released}
        context.out.print_json({"network": network.name, **lists, "steps": steps})
    return ExitStatus.WRONG if runtime.failed else ExitStatus.FINE


def _print_counts(context: Context, running: RunningAttachments, number: int, gone: int) -> None:
    context.out.print(
        f"network {running.network}: {plural(number + gone, 'attachment')}: {number} running, {gone} no longer running"
    )
    for container_id, ifname in running.unlisted():
        context.out.print(
            f"kept: not in the cache, but its address is in use or new: container {container_id}, {ifname}"
        )


def _run_gc(
    context: Context, runtime: PluginRunner, network: Network, running: RunningAttachments, *, dry_run: bool
) -> list[str]:
    """Runs GC of the plugins, and releases the addresses if a plugin has no GC; returns the released addresses."""
    without_gc = network_list.gc(runtime, network, running.valid)
    if not (without_gc or any(map(is_flannel, network.plugins))):
        return []
    released = _release_addresses(running, dry_run=dry_run)
    _print_plugins_without_gc(context, network, without_gc, released, dry_run=dry_run)
    return released


def _release_addresses(running: RunningAttachments, *, dry_run: bool) -> list[str]:
    """Releases the host-local addresses of containers that are no longer running, for plugins without GC.

    Such a plugin may allocate addresses by an IPAM plugin that the network's configuration does not name. flannel's
    accepts GC from 1.1.0 on, and does nothing.
    Returns the addresses; with `dry_run` those that would be released.
    """
    snapshot = read_snapshot(running.places, rules=False)
    reserved = (
        item for pool in snapshot.records.pools if pool.network == running.network for item in pool.reservations
    )
    gone = [item for item in reserved if state_of(snapshot, item) is ReservationState.GONE]
    if dry_run:
        return [item.file.name for item in gone]
    outcomes = release.release(snapshot, gone, force=False)
    return [outcome.item.file.name for outcome in outcomes if not outcome.reason]


def _print_plugins_without_gc(
    context: Context, network: Network, kinds: tuple[str, ...], released: list[str], *, dry_run: bool
) -> None:
    if kinds:
        reason = "before cniVersion 1.1.0 only podwire's plugins have it"
        context.out.print(f"GC of {', '.join(kinds)} was not run: {reason}")
    if released:
        verb = "would release" if dry_run else "released"
        addresses = plural(len(released), "address")
        listed = " ".join(released[:_LISTED]) + (" ..." if len(released) > _LISTED else "")
        context.out.print(f"{verb} {addresses} of containers that are no longer running: {listed}")


def _require_readable_caches(layers: tuple[Layer, ...], known: list[CachedAttachment], network: str) -> None:
    """Raises CniError(5) when a file of the caches cannot be read: GC would remove its attachment."""
    attachments.require_existing(layers)
    if missing := attachments.describe_missing_delegates(attachments.list_cached(layers)):
        raise CniError(
            Code.IO_FAILURE, f"{missing[0]}: its attachments would count as garbage", attachments.MISSING_DELEGATES_FIX
        )
    if unread := attachments.list_unreadable(layers, known, network):
        msg = f"cannot read {unread[0]}: its attachment would count as garbage"
        raise CniError(Code.IO_FAILURE, msg, attachments.UNREAD_FIX)


def _to_json(kept: list[Attachment]) -> list[dict[str, str]]:
    return [{"containerID": one.container_id, "ifname": one.ifname} for one in kept]


def _gc_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", metavar="NETWORK", help="name of a network of net.d")
    parser.add_argument("--all", action="store_true", help="also if the cache knows no attachment of NETWORK")
    parser.add_argument(
        "--force",
        metavar="ID",
        action="append",
        default=[],
        help="treat this container as no longer running although nothing proves it; repeatable",
    )
    add_dry_run(parser)
    add_explain(parser)
    add_options(parser)


GC = Command(
    "gc",
    "remove the remains of deleted attachments",
    "Runs DEL for each attachment of NETWORK in the cache whose namespace no longer exists. Then runs GC of every\n"
    "plugin with the running attachments, which removes leases, interfaces and rules of all others. The cache must\n"
    "be that of every runtime on this node (--cache-dir): GC removes what is not in it, except an attachment whose\n"
    "host-local address is configured in a namespace connected to NETWORK, or is less than a minute old (its ADD\n"
    "may still be running). Run it while no pod is being started.\n\n"
    "A namespace no longer exists if its path is missing here and in the view of process 1 (/proc/1/root), and no\n"
    "veth of the attachment exists. Without that proof nothing is removed and the exit status is 3; likewise if all\n"
    "attachments look deleted while a veth on NETWORK's bridge has its peer in a namespace that cannot be found: run\n"
    "it on the node then, not in a container. --force ID removes the attachments of a container that you know has\n"
    "stopped, but refuses a container that is proven to be running.\n\n"
    "The configuration of a network without a file in net.d (podman's default, a removed one) is read from the\n"
    "cache.\n\n"
    "If a plugin has no GC, as flannel, it also releases the host-local addresses of NETWORK whose containers are\n"
    "proven to be no longer running, as `podwire ipam free --gone` does.\n\n"
    '--json: {"network", "kept": [{"containerID", "ifname"}], "deleted": [...], "released": ["..."], "steps": [...]},\n'
    "steps as of add; released are those addresses.",
    _gc,
    _gc_arguments,
    (("podwire gc podwire --dry-run", "leases, rules and interfaces of deleted pods"),),
)
