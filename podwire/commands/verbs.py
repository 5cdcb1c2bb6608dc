"""`podwire add`, `check` and `del`: attaching one pod to a network of net.d by hand, and what belongs to it.

With --json they print one object:

    {"network": ..., "containerID": ..., "ifname": ..., "netns": ..., "steps": [...], "result": {...}}

Each of `steps` is {"plugin", "command", "ms", "containerID", "ifname"}, with "error" ({"code", "msg", "details"}) when
it failed, "changes" with --dry-run (left out where they cannot be known), "account" with --explain, "stderr" when it
said something. `result` is ADD's, left out without one; `missing` says with `add --dry-run` where the copy differs.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial

from cni import skel
from cni.conf import Attachment
from cni.errors import CniError, Code
from podwire import networks
from podwire.attachments import CachedAttachment
from podwire.command import (
    Command,
    Context,
    Status,
    UsageError,
    add_bin_dir,
    add_cache_dir,
    add_conf_dir,
    add_json,
    bin_dirs,
    conf_dir,
    require_root,
)
from podwire.networks import Network
from podwire.verbs import dry_run, explain, network_list, printing, target
from podwire.verbs.invoke import Pod, execute
from podwire.verbs.network_list import Runtime
from podwire.verbs.planning import planning


def add_options(parser: ArgumentParser) -> None:
    """Adds the options that all verbs have."""
    add_conf_dir(parser)
    add_bin_dir(parser)
    add_cache_dir(parser)
    add_json(parser)


def runtime(context: Context, options: Namespace, *, dry_run: bool = False) -> Runtime:
    """Returns what runs the plugins as the options say; with `dry_run` it only plans."""
    skel.hold_signals()
    tell = partial(printing.print_plan if dry_run else printing.print_step, context.out)
    serve = planning(context.plugins) if dry_run else execute
    if getattr(options, "explain", False) and not dry_run:
        serve, tell = explain.execute_with_log, partial(explain.print_explained, context.out)
    path = bin_dirs(context, options)
    return Runtime(path, context.env, options.cache_dir, serve, tell, writes=not dry_run)


def _pod(context: Context, options: Namespace, known: CachedAttachment | None) -> Pod:
    """Returns the attachment that is meant: what the options say, else the environment (cnitool), else the cache."""
    netns = target.namespace_path(options.netns) if options.netns else ""
    if known and (not netns or target.is_same(known.netns, netns)):
        netns = known.netns  # by the path that the plugins know it by
    container = known.attachment.container_id if known else options.container_id or target.cnitool_container_id(netns)
    target.require_names(container, _ifname(context, options))
    capabilities = options.capability_args or context.env.get("CAP_ARGS", "")
    pairs = options.args or [pair for pair in context.env.get("CNI_ARGS", "").split(";") if pair]
    return Pod(
        Attachment(container, _ifname(context, options)),
        netns,
        target.cni_args(pairs) if pairs else known.cni_args if known else "",
        target.capability_args(capabilities) if capabilities else known.capability_args if known else {},
    )


def _ifname(context: Context, options: Namespace) -> str:
    return options.ifname or context.env.get("CNI_IFNAME") or "eth0"


def _require_values(context: Context, options: Namespace) -> None:
    """Raises UsageError for an option's value that no plugin takes, before anything of the node is looked at."""
    target.require_names(options.container_id or "x", _ifname(context, options))
    target.cni_args(options.args or [])
    target.capability_args(options.capability_args)


def _known(context: Context, options: Namespace) -> CachedAttachment | None:
    netns = target.namespace_path(options.netns) if options.netns else ""
    ifname = _ifname(context, options)
    return target.find_attachment(options.cache_dir, options.network, ifname, netns=netns, name=options.container_id)


def _add(context: Context, options: Namespace) -> Status:
    _require_values(context, options)
    require_root(context, "add")
    network = networks.get_network(conf_dir(context, options), options.network)
    netns = target.namespace_path(options.netns)
    target.require_namespace(netns)
    with target.namespace_lock(netns):
        return _attach(context, options, network, netns)


def _attach(context: Context, options: Namespace, network: Network, netns: str) -> Status:
    known = _known(context, options)
    if known:
        where = f"as container {known.attachment.container_id}, {known.attachment.ifname}"
        hint = f"detach it first: podwire del {network.name} {options.netns}"
        raise CniError(Code.INVALID_ENVIRONMENT, f'{netns} is attached to "{network.name}" already, {where}', hint)
    pod = _pod(context, options, None)
    target.require_declared(network, context.plugins, pod.capability_args)
    target.require_free(netns, pod.attachment.ifname)
    if options.dry_run:
        return _rehearse(context, options, network, pod)
    own = runtime(context, options)
    _head(context, network, pod)
    result = network_list.add(own, network, pod)
    _end(context, own, network, pod, result)
    if own.failed and not context.out.as_json:
        undone = [step for step in own.done if step.command == "DEL" and step.error]
        left = (
            "some of it may be left: see the errors of DEL"
            if undone
            else "nothing is left: DEL was run for every plugin"
        )
        context.out.print(f"{pod.netns} was not attached; {left}")
    return Status.WRONG if own.failed else Status.FINE


def _rehearse(context: Context, options: Namespace, network: Network, pod: Pod) -> Status:
    own = runtime(context, options, dry_run=True)
    stage = dry_run.enter(network, options.cache_dir)
    own.serve = dry_run.rehearsing(context.plugins, stage)
    own.tell = lambda done: printing.print_plan(context.out, dry_run.renamed(done, stage, pod.netns))
    _head(context, network, pod)
    result = dry_run.replaced(network_list.add(own, network, pod), stage, pod.netns)
    own.done = [dry_run.renamed(done, stage, pod.netns) for done in own.done]
    _end(context, own, network, pod, result, missing=list(stage.missing))
    if not context.out.as_json:
        for text in stage.missing:
            context.out.print(f"not known: {text}")
        context.out.print("Nothing was changed: this was tried in a copy of the host. MAC addresses will be others.")
    return Status.WRONG if own.failed else Status.FINE


def _check(context: Context, options: Namespace) -> Status:
    _require_values(context, options)
    require_root(context, "check")
    known = _known(context, options)
    network = (known and known.network) or networks.get_network(conf_dir(context, options), options.network)
    if known is None or known.result is None:
        raise CniError(
            Code.UNKNOWN_CONTAINER,
            f'{options.netns} is not attached to "{options.network}" as {_ifname(context, options)}, says the cache',
            f"see what is attached: podwire show; the cache is {options.cache_dir}/results",
        )
    pod = _pod(context, options, known)
    target.require_namespace(pod.netns)
    own = runtime(context, options)
    _head(context, network, pod)
    network_list.check(own, network, pod, known.result)
    if network.disable_check and not context.out.as_json:
        context.out.print(f'nothing was checked: network "{network.name}" has disableCheck')
    _end(context, own, network, pod)
    return Status.WRONG if own.failed else Status.FINE


def _del(context: Context, options: Namespace) -> Status:
    _require_values(context, options)
    require_root(context, "del")
    if not (options.netns or options.container_id):
        hint = f"podwire del {options.network} NETNS, or --container-id ID; podwire show lists them"
        raise UsageError(Code.INVALID_ENVIRONMENT, "which attachment is to be deleted?", hint)
    known = _known(context, options)
    network = (known and known.network) or networks.get_network(conf_dir(context, options), options.network)
    pod = _pod(context, options, known)
    own = runtime(context, options, dry_run=options.dry_run)
    _head(context, network, pod)
    with target.namespace_lock("" if options.dry_run else pod.netns):
        network_list.delete(own, network, pod, known.result if known else None)
    _end(context, own, network, pod)
    if not (known or context.out.as_json):
        context.out.print(
            f"the cache knew of no such attachment ({options.cache_dir}/results): podwire show lists them"
        )
    if known and options.dry_run and not (own.failed or context.out.as_json):
        context.out.print(f"{known.path} would be removed")
    return Status.WRONG if own.failed else Status.FINE


def _head(context: Context, network: Network, pod: Pod) -> None:
    if not context.out.as_json:
        where = f" in {pod.netns}" if pod.netns else ""
        context.out.print(
            f"network {network.name}, container {pod.attachment.container_id}, {pod.attachment.ifname}{where}"
        )


def _end(
    context: Context,
    own: Runtime,
    network: Network,
    pod: Pod,
    result: object = None,
    *,
    missing: list[str] | None = None,
) -> None:
    """Prints the result, with --json the whole document."""
    if not context.out.as_json:
        if result is not None:
            printing.print_result(context.out, result, network)
        return
    body: dict[str, object] = {
        "network": network.name,
        "containerID": pod.attachment.container_id,
        "ifname": pod.attachment.ifname,
        "netns": pod.netns,
        "steps": [step.to_json() for step in own.done],
    }
    body |= {} if result is None else {"result": result}
    context.out.print_json(body if missing is None else {**body, "missing": missing})


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", metavar="NETWORK", help="name of a network of net.d")
    parser.add_argument(
        "netns", metavar="NETNS", help="path of a namespace, its name in /run/netns, or a process's PID"
    )
    _add_attachment(parser)


def _del_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", metavar="NETWORK", help="name of a network of net.d, or of the cache")
    parser.add_argument(
        "netns", metavar="NETNS", nargs="?", default="", help="path of a namespace, name in /run/netns, or PID"
    )
    _add_attachment(parser)
    add_dry_run(parser)


def _add_arguments(parser: ArgumentParser) -> None:
    _arguments(parser)
    add_dry_run(parser)


def add_dry_run(parser: ArgumentParser) -> None:
    """Adds --dry-run."""
    parser.add_argument("--dry-run", action="store_true", help="show what would be changed, and change nothing")


def add_explain(parser: ArgumentParser) -> None:
    """Adds --explain."""
    parser.add_argument("--explain", action="store_true", help="tell each plugin's steps and changes (podwire's own)")


def _add_attachment(parser: ArgumentParser) -> None:
    parser.add_argument("-i", "--ifname", metavar="NAME", help="name of the interface inside (eth0; $CNI_IFNAME)")
    parser.add_argument(
        "--container-id", metavar="ID", default="", help="the container's ID (made of NETNS as cnitool does)"
    )
    parser.add_argument(
        "--capability-args", metavar="JSON", default="", help="arguments of capabilities, a JSON object ($CAP_ARGS)"
    )
    parser.add_argument("--args", metavar="K=V", action="append", help="a pair of CNI_ARGS, repeatable ($CNI_ARGS)")
    add_explain(parser)
    add_options(parser)


_NETNS = """
NETNS is a path, a name in /run/netns, or the PID of a process in the container."""
_JSON = """

--json: {"network", "containerID", "ifname", "netns", "steps": [{"plugin", "command", "ms", "error", "changes",
"account", "stderr"}], "result"}; of a step what there is."""
_NEW = " The container ID is made of the path as\ncnitool does it, unless one is given."
_KNOWN = """
What is meant is the attachment in the cache (/var/lib/cni/results) that is in this namespace, by whichever runtime,
with the configuration it was made with; without one the container ID is made of the path as cnitool does it."""

ADD = Command(
    "add",
    "attach a namespace to a network, as a runtime does",
    "Runs ADD of each plugin of NETWORK in order and prints the time of each, then what the pod got.\n"
    "The result goes to libcni's cache, so cnitool and runtimes know of it. After a failure DEL is run for\n"
    "every plugin, so that nothing is left. --dry-run tries it in a throw-away copy of the host and tells\n"
    "every change." + _NETNS + _NEW + _JSON,
    _add,
    _add_arguments,
    (
        ("ip netns add web && podwire add podwire web", "attach a fresh namespace, as a test of the network"),
        ("podwire add podwire web --dry-run", "which address, interface and rules it would get"),
    ),
)
CHECK = Command(
    "check",
    "ask the plugins whether an attachment is still as it was made",
    "Runs CHECK of each plugin with the result of ADD from the cache. What fails names what is missing: a rule\n"
    "that was flushed (podwire repair), an interface that is gone (remove the pod)." + _NETNS + _KNOWN + _JSON,
    _check,
    _arguments,
    (("podwire check podwire 4711", "is the pod of process 4711 still connected as it should be?"),),
)
DEL = Command(
    "del",
    "detach a namespace from a network",
    "Runs DEL of each plugin, backwards, and removes the attachment from the cache. The first error ends it:\n"
    "repeat it when the reason is gone. What is gone already is no error." + _NETNS + _KNOWN + _JSON,
    _del,
    _del_arguments,
    (
        ("podwire del podwire web", "detach what `podwire add podwire web` attached"),
        ("podwire del podwire --container-id ID --dry-run", "what would be removed"),
    ),
)
