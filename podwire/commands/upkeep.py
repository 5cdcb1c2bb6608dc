"""`podwire gc`, `status` and `version`: what is asked of a whole network, and of the files of its plugins.

With --json `gc` prints {"network", "kept": [{"containerID", "ifname"}], "deleted": [...], "steps": [...]}, its steps as
`podwire add` has them; `status` {"networks": [{"network", "path", "ready", "asked", "unasked", "steps"}, {"path",
"problem"}]}, where `asked` is "STATUS", or "VERSION" when `unasked` names plugins that have no STATUS; `version` a list
of {"plugin", "file", "versions", "program", "podwire"}, with "error" for one that cannot be used.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from attachment import cache
from attachment.cache import Entry
from cni import delegate, versions
from cni.conf import Attachment
from cni.errors import CniError, Code
from podwire import attachments, networks
from podwire.command import Command, Context, Status, bin_dirs, conf_dir, require_root
from podwire.commands.verbs import add_dry_run, add_explain, add_options, runtime
from podwire.networks import Network
from podwire.node.records import Directories
from podwire.output import Cell, Text
from podwire.verbs import network_list, origin, running_attachments
from podwire.verbs.invoke import Call, Pod, environment, execute
from podwire.verbs.network_list import Runtime
from podwire.verbs.running_attachments import RunningAttachments


def _gc(context: Context, options: Namespace) -> Status:
    require_root(context, "gc")
    network = _network_to_collect(context, options)
    results = attachments.results_dir(options.cache_dir)
    _refuse_unknown(results, network.name)
    known = list(attachments.list_cached(options.cache_dir, network.name))
    if not (options.all or network.disable_gc):
        running_attachments.require_witness(known, results, network.name)
    own = runtime(context, options, dry_run=options.dry_run)
    living = RunningAttachments.read(
        Directories(conf_dir(context, options), options.cache_dir), network.name, options.force
    )
    if not network.disable_gc:
        living.require_proof()
    gone = [one for one in known if living.is_gone(one)]
    _tell_kept(context, living, len(known) - len(gone), len(gone))
    if network.disable_gc:
        gone = []
        if not context.out.as_json:
            context.out.print("nothing was done: the network has disableGC")
    deleted = []
    for one in gone:
        if not running_attachments.is_unchanged(one):
            continue
        if not context.out.as_json:
            context.out.print(f"container {one.attachment.container_id}, {one.attachment.ifname} of {one.netns}:")
        pod = Pod(one.attachment, one.netns, one.cni_args, one.capability_args)
        if network_list.delete(own, one.network or network, pod, one.result):
            deleted.append(one.attachment)
            if options.dry_run and not context.out.as_json:
                context.out.print(f"{one.path} would be removed")
    if not network.disable_gc:
        _tell_uncollected(context, network, network_list.gc(own, network, living.valid))
    if context.out.as_json:
        steps = [step.to_json() for step in own.done]
        told = {"kept": _named(living.valid()), "deleted": _named(deleted)}
        context.out.print_json({"network": network.name, **told, "steps": steps})
    return Status.WRONG if own.failed else Status.FINE


def _network_to_collect(context: Context, options: Namespace) -> Network:
    """Returns the network from net.d, else from the cache, which has podman's default one and removed ones."""
    try:
        return networks.get_network(conf_dir(context, options), options.network)
    except CniError:
        network = attachments.get_network(options.cache_dir, options.network)
        if network is None:
            raise
    if not context.out.as_json:
        context.out.print(f"{conf_dir(context, options)} has no network {network.name}: taken from the cache")
    return network


def _tell_kept(context: Context, living: RunningAttachments, number: int, gone: int) -> None:
    if context.out.as_json:
        return
    context.out.print(f"network {living.network}: of its attachments live {number}, are gone {gone}")
    for container_id, ifname in living.unlisted():
        context.out.print(f"kept, as it has an address and is not in the cache: container {container_id}, {ifname}")


def _tell_uncollected(context: Context, network: Network, kinds: tuple[str, ...]) -> None:
    if kinds and not context.out.as_json:
        context.out.print(f"GC was not run, which cniVersion {network.version} does not have: {', '.join(kinds)}")


def _refuse_unknown(results: str, network: str) -> None:
    """Raises CniError(5) when the cache cannot tell which attachments live: GC would take the rest for garbage."""
    try:
        names = os.listdir(results)
    except OSError as error:
        hint = "without it every attachment would count as garbage; give the runtime's with --cache-dir"
        raise CniError(Code.IO_FAILURE, f"cannot read the cache {results}: {error.strerror}", hint) from error
    known: list[Entry] = list(cache.read_entries(results))
    unread = network_list.unreadable(names, network, known)
    if unread:
        msg = f"cannot read {os.path.join(results, unread[0])}: its attachment would count as garbage"
        raise CniError(Code.IO_FAILURE, msg, attachments.UNREAD_FIX)


def _named(found: list[Attachment]) -> list[dict[str, str]]:
    return [{"containerID": one.container_id, "ifname": one.ifname} for one in found]


def _status(context: Context, options: Namespace) -> Status:
    require_root(context, "status")
    directory = conf_dir(context, options)
    files = networks.read_directory(directory)
    if options.network:
        files = (networks.NetworkFile("", networks.get_network(directory, options.network)),)
    own = runtime(context, options)
    told: list[dict[str, object]] = []
    for file in files:
        if file.network:
            told.append(_ask(context, own, file.network))
        elif file.problem:
            told.append({"path": file.path, "problem": file.problem.msg})
            if not context.out.as_json:
                context.out.print(Cell(f"{file.path}: {file.problem.msg}", "bad"))
                context.out.print(f"  {file.problem.details}" if file.problem.details else "")
    if context.out.as_json:
        context.out.print_json({"networks": told})
    elif not files:
        context.out.print(Cell(f"there is no network in {directory}", "bad"))
    fine = bool(files) and all(one.get("ready") for one in told)
    return Status.FINE if fine else Status.WRONG


def _ask(context: Context, own: Runtime, network: Network) -> dict[str, object]:
    """Asks one network's plugins for their STATUS, those that do not have it for their versions at least."""
    own.done.clear()
    if not context.out.as_json:
        context.out.print(Cell(f"network {network.name}", "bold"), f"cniVersion {network.version}", network.path)
    unasked = network_list.status(own, network)
    asked_versions = (step for step in own.done if step.command == "VERSION" and not step.error)
    unspoken = [step.kind for step in asked_versions if not _speaks(step.result, network)]
    if not context.out.as_json:
        for kind in unspoken:
            context.out.print(Cell(f"{kind} does not know cniVersion {network.version}", "bad"))
        if unasked and not unspoken:
            reason = f"not asked for STATUS, which cniVersion {network.version} does not have"
            context.out.print(f"  {reason}: {', '.join(unasked)}")
    return {
        "network": network.name,
        "path": network.path,
        "ready": not own.failed and not unspoken,
        "asked": "VERSION" if unasked else "STATUS",
        "unasked": list(unasked),
        "steps": [step.to_json() for step in own.done],
    }


def _speaks(answer: object, network: Network) -> bool:
    return network.version in _supported(answer)


def _supported(answer: object) -> list[str]:
    listed = answer.get("supportedVersions") if isinstance(answer, Mapping) else None
    return [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []


def _version(context: Context, options: Namespace) -> Status:
    path = bin_dirs(context, options)
    names = options.plugin or _used(conf_dir(context, options))
    if not names:
        hint = "name plugins: podwire version bridge host-local"
        raise CniError(Code.INVALID_NETWORK_CONFIG, f"there is no network in {conf_dir(context, options)}", hint)
    found = [_examined(context, name, path) for name in names]
    if context.out.as_json:
        context.out.print_json(found)
    else:
        rows = [_row(one) for one in found]
        context.out.print_table(("PLUGIN", "FILE", "CNI VERSIONS", "PROGRAM"), rows)
    return Status.WRONG if any("error" in one for one in found) else Status.FINE


def _row(one: Mapping[str, object]) -> tuple[Text, ...]:
    listed = one["versions"]
    end: Text = Cell(str(one["error"]), "bad") if "error" in one else str(one["program"])
    return (str(one["plugin"]), str(one["file"]), " ".join(listed) if isinstance(listed, list) else "", end)


def _used(directory: str) -> list[str]:
    """Returns the plugins that the networks of a directory name, IPAM plugins among them."""
    found: set[str] = set()
    for file in networks.read_directory(directory):
        for plugin in file.network.plugins if file.network else ():
            for part in (plugin, plugin.get("ipam")):
                kind = part.get("type") if isinstance(part, Mapping) else None
                found |= {kind} if isinstance(kind, str) and kind else set()
    return sorted(found)


def _examined(context: Context, name: str, path: tuple[str, ...]) -> dict[str, object]:
    """Returns what is known of one plugin's file; its program is what it says of itself when it is asked nothing."""
    body: dict[str, object] = {"plugin": name, "file": "", "versions": [], "program": "", "podwire": False}
    try:
        body["file"] = program = delegate.find(name, path)
        env = environment("VERSION", Pod(), context.env, path)
        step = execute(Call(name, "VERSION", {"cniVersion": versions.CURRENT}, env, path))
        body["versions"] = _supported(step.result)
        line = origin.about(program, env)
        body["program"] = line or "it does not say"
        body["podwire"] = origin.is_podwire(line)
        if step.error:
            raise step.error
    except OSError as error:
        body["error"] = f"cannot be run: {error.strerror}"
    except CniError as error:
        body["error"] = error.msg
    return body


def _gc_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", metavar="NETWORK", help="name of a network of net.d")
    parser.add_argument("--all", action="store_true", help="also if the cache knows no attachment of NETWORK")
    parser.add_argument(
        "--force",
        metavar="ID",
        action="append",
        default=[],
        help="treat this container as gone although nothing proves it; repeatable",
    )
    add_dry_run(parser)
    add_explain(parser)
    add_options(parser)


def _status_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", metavar="NETWORK", nargs="?", default="", help="name of a network (all of net.d)")
    add_explain(parser)
    add_options(parser)


def _version_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plugin", metavar="PLUGIN", nargs="*", help="name of a plugin (those that net.d names)")
    add_options(parser)


GC = Command(
    "gc",
    "remove what attachments have left that are gone",
    "Runs DEL for each attachment of NETWORK in the cache whose namespace is gone, then GC of every plugin with\n"
    "the running ones, which removes leases, interfaces and rules of all others. The cache must be that of every\n"
    "runtime on this node (--cache-dir): what it does not know is garbage. An attachment that it does not know is\n"
    "kept only if its address of host-local is configured in a namespace that leads to NETWORK, or is not a minute\n"
    "old (an ADD may be under way). Run it while no pod is being started.\n\n"
    "A namespace is gone if its path is missing here and in the view of process 1 (/proc/1/root), and no veth of\n"
    "the attachment exists. Where that cannot be proven, nothing is removed, and the exit status is 3; also where\n"
    "all attachments look gone and a veth of NETWORK's bridge leads into a namespace that cannot be found. Run it\n"
    "on the node then, not in a container. --force ID collects a container that you know to be gone, but refuses\n"
    "one that is proven to be running.\n\n"
    "A network without a file in net.d (podman's default, a removed one) is taken from the cache.\n\n"
    '--json: {"network", "kept": [{"containerID", "ifname"}], "deleted": [...], "steps": [...]}, steps as of add.',
    _gc,
    _gc_arguments,
    (("podwire gc podwire --dry-run", "what is left of pods that are gone"),),
)
STATUS = Command(
    "status",
    "ask whether networks are ready for pods",
    "Runs STATUS of each plugin of NETWORK, or of every network in net.d, and tells what is missing on the node.\n"
    "STATUS came with cniVersion 1.1.0. In a list of an earlier version podwire's plugins are still asked; of other\n"
    "plugins only VERSION is run, and their names are printed.\n\n"
    '--json: {"networks": [{"network", "path", "ready", "asked", "unasked", "steps"} or {"path", "problem"}]};\n'
    'unasked lists the plugins without STATUS; asked is "VERSION" when there are any, else "STATUS".',
    _status,
    _status_arguments,
    (("podwire status", "why is the node NotReady (cni plugin not initialized)?"),),
)
VERSION = Command(
    "version",
    "the plugins' files: where they are, whose, and what they speak",
    "Prints for each plugin that net.d names, or that is named here, the file that a runtime would run, the CNI\n"
    "versions it speaks, and what it says it is.\n\n"
    '--json: [{"plugin", "file", "versions", "program", "podwire", "error"}], podwire telling whether it is ours.',
    _version,
    _version_arguments,
    (("podwire version", "which plugins are podwire's, which the reference's?"),),
)
