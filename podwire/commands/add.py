"""`podwire add`: attaches a namespace to a network as a runtime does."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from cni.errors import CniError, Code
from podwire import networks
from podwire.command import Command, Context, ExitStatus, conf_dir, require_root
from podwire.commands.attachment_options import (
    JSON,
    NETNS,
    NEW,
    add_attachment_arguments,
    add_dry_run,
    build_pod,
    build_runtime,
    find_known,
    print_header,
    print_outcome,
    require_valid_options,
)
from podwire.networks import Network
from podwire.verbs import dry_run, network_list, printing, target
from podwire.verbs.invoke import PodArgs


def _add(context: Context, options: Namespace) -> ExitStatus:
    require_valid_options(context, options)
    require_root(context, "add")
    network = networks.get_network(conf_dir(context, options), options.network)
    netns = target.namespace_path(options.netns)
    target.require_namespace(netns)
    with target.namespace_lock(netns):
        return _attach(context, options, network, netns)


def _attach(context: Context, options: Namespace, network: Network, netns: str) -> ExitStatus:
    known = find_known(context, options)
    if known:
        where = f"as container {known.attachment.container_id}, {known.attachment.ifname}"
        hint = f"detach it first: podwire del {network.name} {options.netns}"
        raise CniError(Code.INVALID_ENVIRONMENT, f'{netns} is already attached to "{network.name}" {where}', hint)
    pod = build_pod(context, options, None)
    target.require_declared(network, context.plugins, pod.capability_args)
    target.require_free(netns, pod.attachment.ifname)
    if options.dry_run:
        return _try_in_copy(context, options, network, pod)
    runtime = build_runtime(context, options)
    print_header(context, network, pod)
    result = network_list.add(runtime, network, pod)
    print_outcome(context, runtime, network, pod, result)
    if runtime.failed:
        failed_dels = [step for step in runtime.done if step.command == "DEL" and step.error]
        remains = (
            "objects may remain: see the errors of DEL"
            if failed_dels
            else "nothing remains: DEL was run for every plugin"
        )
        context.out.print(f"{pod.netns} was not attached; {remains}")
    return ExitStatus.WRONG if runtime.failed else ExitStatus.FINE


def _try_in_copy(context: Context, options: Namespace, network: Network, pod: PodArgs) -> ExitStatus:
    runtime = build_runtime(context, options, dry_run=True)
    copy = dry_run.enter(network, *(layer.cache_dir for layer in runtime.layers))
    runtime.serve = dry_run.runner_in(context.plugins, copy)
    runtime.report = lambda step: printing.print_plan(context.out, dry_run.renamed(step, copy, pod.netns))
    print_header(context, network, pod)
    result = dry_run.replaced(network_list.add(runtime, network, pod), copy, pod.netns)
    runtime.done = [dry_run.renamed(step, copy, pod.netns) for step in runtime.done]
    print_outcome(context, runtime, network, pod, result, missing=list(copy.missing))
    for text in copy.missing:
        context.out.print(f"unknown: {text}")
    context.out.print(
        "Nothing was changed: the plugins ran in a copy of the host. The real ADD creates other MAC addresses."
    )
    return ExitStatus.WRONG if runtime.failed else ExitStatus.FINE


def _add_arguments(parser: ArgumentParser) -> None:
    add_attachment_arguments(parser)
    add_dry_run(parser)


ADD = Command(
    "add",
    "attach a namespace to a network, as a runtime does",
    "Runs ADD of each plugin of NETWORK in order, then prints each one's time and the pod's interfaces and addresses.\n"
    "The result goes to libcni's cache, so cnitool and runtimes know the attachment. If a plugin fails, DEL\n"
    "of every plugin runs, so that nothing remains. --dry-run runs the plugins in a disposable copy of the host and\n"
    "prints every change." + NETNS + NEW + JSON,
    _add,
    _add_arguments,
    (
        ("ip netns add web && podwire add podwire web", "attach a fresh namespace, as a test of the network"),
        ("podwire add podwire web --dry-run", "print the address, interface and rules that it would get"),
    ),
)
