"""`podwire status`: asks the plugins whether networks are ready for pods."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from podwire import networks
from podwire.command import Command, Context, ExitStatus, add_options, conf_dir, require_root
from podwire.commands.attachment_options import add_explain, build_runtime
from podwire.commands.version import supported_versions
from podwire.networks import Network
from podwire.output import Cell
from podwire.verbs import network_list
from podwire.verbs.network_list import PluginRunner


def _status(context: Context, options: Namespace) -> ExitStatus:
    require_root(context, "status")
    directory = conf_dir(context, options)
    files = networks.read_directory(directory)
    if options.network:
        files = (networks.NetworkFile("", networks.get_network(directory, options.network)),)
    runtime = build_runtime(context, options)
    reports: list[dict[str, object]] = []
    for file in files:
        if file.network:
            reports.append(_run_status(context, runtime, file.network))
        elif file.problem:
            reports.append({"path": file.path, "problem": file.problem.msg})
            context.out.print(Cell(f"{file.path}: {file.problem.msg}", "bad"))
            context.out.print(f"  {file.problem.details}" if file.problem.details else "")
    context.out.print_json({"networks": reports})
    if not files:
        context.out.print(Cell(f"there is no network in {directory}", "bad"))
    fine = bool(files) and all(report.get("ready") for report in reports)
    return ExitStatus.FINE if fine else ExitStatus.WRONG


def _run_status(context: Context, runtime: PluginRunner, network: Network) -> dict[str, object]:
    """Runs STATUS of one network's plugins, VERSION of those without STATUS; returns the JSON report."""
    runtime.done.clear()
    context.out.print(Cell(f"network {network.name}", "bold"), f"cniVersion {network.version}", network.path)
    without_status = network_list.status(runtime, network)
    version_steps = (step for step in runtime.done if step.command == "VERSION" and not step.error)
    unsupporting = [step.kind for step in version_steps if network.version not in supported_versions(step.result)]
    for kind in unsupporting:
        context.out.print(Cell(f"{kind} does not support cniVersion {network.version}", "bad"))
    if without_status and not unsupporting:
        reason = f"STATUS was not run, as cniVersion {network.version} does not have it"
        context.out.print(f"  {reason}: {', '.join(without_status)}")
    return {
        "network": network.name,
        "path": network.path,
        "ready": not runtime.failed and not unsupporting,
        "asked": "VERSION" if without_status else "STATUS",
        "unasked": list(without_status),
        "steps": [step.to_json() for step in runtime.done],
    }


def _status_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", metavar="NETWORK", nargs="?", default="", help="name of a network (all of net.d)")
    add_explain(parser)
    add_options(parser)


STATUS = Command(
    "status",
    "ask whether networks are ready for pods",
    "Runs STATUS of each plugin of NETWORK, or of every network in net.d, and reports what is missing on the node.\n"
    "STATUS came with cniVersion 1.1.0. In a list of an earlier version podwire's plugins also run\n"
    "STATUS; other plugins only run VERSION, and their names are printed.\n\n"
    '--json: {"networks": [{"network", "path", "ready", "asked", "unasked", "steps"} or {"path", "problem"}]};\n'
    'unasked lists the plugins without STATUS; asked is "VERSION" when there are any, else "STATUS".',
    _status,
    _status_arguments,
    (("podwire status", "why is the node NotReady (cni plugin not initialized)?"),),
)
