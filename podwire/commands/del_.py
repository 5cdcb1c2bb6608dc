"""`podwire del`: detaches a namespace from a network."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from cni.errors import Code
from podwire import attachments
from podwire.command import Command, Context, ExitStatus, UsageError, places, require_root
from podwire.commands.attachment_options import (
    JSON,
    KNOWN,
    NETNS,
    add_attachment_options,
    add_dry_run,
    build_pod,
    build_runtime,
    find_known,
    print_header,
    print_outcome,
    require_valid_options,
)
from podwire.layers import describe_caches
from podwire.verbs import network_list, target


def _del(context: Context, options: Namespace) -> ExitStatus:
    require_valid_options(context, options)
    require_root(context, "del")
    if not (options.netns or options.container_id):
        hint = f"podwire del {options.network} NETNS, or --container-id ID; podwire show lists the attachments"
        raise UsageError(Code.INVALID_ENVIRONMENT, "NETNS or --container-id is required", hint)
    known = find_known(context, options)
    where = places(context, options)
    network = (known and known.network) or attachments.find_network(where.conf_dir, where.layers, options.network)
    pod = build_pod(context, options, known)
    runtime = build_runtime(context, options, dry_run=options.dry_run)
    print_header(context, network, pod)
    with target.namespace_lock("" if options.dry_run else pod.netns):
        network_list.delete(runtime, network, pod, known.result if known else None)
    print_outcome(context, runtime, network, pod)
    if not known:
        context.out.print(
            f"the cache has no such attachment ({describe_caches(runtime.layers)}): podwire show lists all attachments"
        )
    if known and options.dry_run and not runtime.failed:
        context.out.print(f"{known.path} would be removed")
    return ExitStatus.WRONG if runtime.failed else ExitStatus.FINE


def _del_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", metavar="NETWORK", help="name of a network of net.d, or of the cache")
    parser.add_argument(
        "netns", metavar="NETNS", nargs="?", default="", help="path of a namespace, name in /run/netns, or PID"
    )
    add_attachment_options(parser)
    add_dry_run(parser)


DEL = Command(
    "del",
    "detach a namespace from a network",
    "Runs DEL of each plugin, backwards, and removes the attachment from the cache. The first error ends it:\n"
    "repeat it when the cause is fixed. Deleting what no longer exists is no error." + NETNS + KNOWN + JSON,
    _del,
    _del_arguments,
    (
        ("podwire del podwire web", "detach what `podwire add podwire web` attached"),
        ("podwire del podwire --container-id ID --dry-run", "what would be removed"),
    ),
)
