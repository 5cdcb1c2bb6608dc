"""`podwire check`: asks the plugins whether an attachment is still as ADD created it."""

from __future__ import annotations

from argparse import Namespace

from cni.errors import CniError, Code
from podwire import networks
from podwire.command import Command, Context, ExitStatus, conf_dir, layers, require_root
from podwire.commands.attachment_options import (
    JSON,
    KNOWN,
    NETNS,
    add_attachment_arguments,
    build_pod,
    build_runtime,
    find_known,
    interface_name,
    print_header,
    print_outcome,
    require_valid_options,
)
from podwire.layers import describe_caches
from podwire.verbs import network_list, target


def _check(context: Context, options: Namespace) -> ExitStatus:
    require_valid_options(context, options)
    require_root(context, "check")
    known = find_known(context, options)
    network = (known and known.network) or networks.get_network(conf_dir(context, options), options.network)
    if known is None or known.result is None:
        ifname = interface_name(context, options)
        caches = describe_caches(layers(context, options))
        raise CniError(
            Code.UNKNOWN_CONTAINER,
            f'the cache has no attachment of {options.netns}, {ifname}, to "{options.network}"',
            f"podwire show lists the attachments; the cache is {caches} (--cache-dir)",
        )
    pod = build_pod(context, options, known)
    target.require_namespace(pod.netns)
    runtime = build_runtime(context, options)
    print_header(context, network, pod)
    network_list.check(runtime, network, pod, known.result)
    if network.disable_check:
        context.out.print(f'nothing was checked: network "{network.name}" sets disableCheck')
    print_outcome(context, runtime, network, pod)
    return ExitStatus.WRONG if runtime.failed else ExitStatus.FINE


CHECK = Command(
    "check",
    "ask the plugins whether an attachment is still as ADD created it",
    "Runs CHECK of each plugin with the result of ADD from the cache. An error names what is missing: a rule\n"
    "that was flushed (podwire repair), a deleted interface (remove the pod)." + NETNS + KNOWN + JSON,
    _check,
    add_attachment_arguments,
    (("podwire check podwire 4711", "is the pod of process 4711 still connected as it should be?"),),
)
