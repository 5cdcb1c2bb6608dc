"""The options of the commands that run verbs (add, check, del, gc, status), and the values built from them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial

from cni import skel
from cni.conf import Attachment
from podwire.attachments import CachedAttachment
from podwire.command import Context, add_options, bin_dirs, layers
from podwire.networks import Network
from podwire.verbs import explain, printing, target
from podwire.verbs.invoke import PodArgs, execute
from podwire.verbs.network_list import PluginRunner
from podwire.verbs.planning import planning

# Parts of the descriptions.
NETNS = """
NETNS is a path, a name in /run/netns, or the PID of a process in the container."""
JSON = """

--json: {"network", "containerID", "ifname", "netns", "steps": [{"plugin", "command", "ms", "error", "changes",
"account", "stderr"}], "result"}; empty keys of a step are left out."""
NEW = " The container ID is derived from the path\nas cnitool does, unless --container-id is set."
KNOWN = """
The command works on the attachment in the cache (/var/lib/cni/results) that is in this namespace, whichever
runtime created it, with the configuration of its ADD. If there is none, the container ID is derived from the path as
cnitool does."""


def add_dry_run(parser: ArgumentParser) -> None:
    """Adds --dry-run."""
    parser.add_argument("--dry-run", action="store_true", help="print the changes and make none")


def add_explain(parser: ArgumentParser) -> None:
    """Adds --explain."""
    parser.add_argument("--explain", action="store_true", help="print the steps and changes of podwire's plugins")


def add_attachment_options(parser: ArgumentParser) -> None:
    """Adds the options that describe an attachment."""
    parser.add_argument(
        "-i", "--ifname", metavar="NAME", help="name of the interface in the container (eth0; $CNI_IFNAME)"
    )
    parser.add_argument(
        "--container-id", metavar="ID", default="", help="the container's ID (derived from NETNS as cnitool does)"
    )
    parser.add_argument(
        "--capability-args", metavar="JSON", default="", help="arguments of the capabilities, a JSON object ($CAP_ARGS)"
    )
    parser.add_argument(
        "--args", metavar="K=V", action="append", help="an argument for CNI_ARGS, repeatable ($CNI_ARGS)"
    )
    add_explain(parser)
    add_options(parser)


def add_attachment_arguments(parser: ArgumentParser) -> None:
    """Adds NETWORK and NETNS, both required, and the options of an attachment."""
    parser.add_argument("network", metavar="NETWORK", help="name of a network of net.d")
    parser.add_argument(
        "netns", metavar="NETNS", help="path of a namespace, its name in /run/netns, or a process's PID"
    )
    add_attachment_options(parser)


def build_runtime(context: Context, options: Namespace, *, dry_run: bool = False) -> PluginRunner:
    """Blocks signals and returns the PluginRunner that the options describe; with `dry_run` it changes nothing."""
    skel.block_signals()
    report = partial(printing.print_plan if dry_run else printing.print_step, context.out)
    serve = planning(context.plugins) if dry_run else execute
    if getattr(options, "explain", False) and not dry_run:
        serve, report = explain.execute_with_log, partial(explain.print_explained, context.out)
    path = bin_dirs(context, options)
    return PluginRunner(path, context.env, layers(context, options), serve, report, writes=not dry_run)


def build_pod(context: Context, options: Namespace, known: CachedAttachment | None) -> PodArgs:
    """Returns the attachment from the options, else from the environment (cnitool), else from the cache."""
    netns = target.namespace_path(options.netns) if options.netns else ""
    if known and (not netns or target.is_same(known.netns, netns)):
        netns = known.netns  # the path that ADD had
    container = known.attachment.container_id if known else options.container_id or target.cnitool_container_id(netns)
    target.require_names(container, interface_name(context, options))
    capabilities = options.capability_args or context.env.get("CAP_ARGS", "")
    pairs = options.args or [pair for pair in context.env.get("CNI_ARGS", "").split(";") if pair]
    return PodArgs(
        Attachment(container, interface_name(context, options)),
        netns,
        target.cni_args(pairs) if pairs else known.cni_args if known else "",
        target.capability_args(capabilities) if capabilities else known.capability_args if known else {},
    )


def interface_name(context: Context, options: Namespace) -> str:
    """Returns the interface name of the options, else of CNI_IFNAME, else eth0."""
    return options.ifname or context.env.get("CNI_IFNAME") or "eth0"


def require_valid_options(context: Context, options: Namespace) -> None:
    """Raises UsageError for an option's value that no plugin accepts, before reading anything from the node."""
    target.require_names(options.container_id or "x", interface_name(context, options))
    target.cni_args(options.args or [])
    target.capability_args(options.capability_args)


def find_known(context: Context, options: Namespace) -> CachedAttachment | None:
    """Returns the attachment in the cache that the options name; None if there is none."""
    netns = target.namespace_path(options.netns) if options.netns else ""
    ifname = interface_name(context, options)
    return target.find_attachment(
        layers(context, options), options.network, ifname, netns=netns, name=options.container_id
    )


def print_header(context: Context, network: Network, pod: PodArgs) -> None:
    """Prints the attachment's network, container, interface and namespace."""
    where = f" in {pod.netns}" if pod.netns else ""
    context.out.print(
        f"network {network.name}, container {pod.attachment.container_id}, {pod.attachment.ifname}{where}"
    )


def print_outcome(
    context: Context,
    runtime: PluginRunner,
    network: Network,
    pod: PodArgs,
    result: object = None,
    *,
    missing: list[str] | None = None,
) -> None:
    """Prints the result, with --json the whole document."""
    if result is not None:
        printing.print_result(context.out, result, network)
    body: dict[str, object] = {
        "network": network.name,
        "containerID": pod.attachment.container_id,
        "ifname": pod.attachment.ifname,
        "netns": pod.netns,
        "steps": [step.to_json() for step in runtime.done],
    }
    body |= {} if result is None else {"result": result}
    context.out.print_json(body if missing is None else {**body, "missing": missing})
