"""Tries rules and limits of pods in a temporary network namespace, because STATUS cannot try them on the host.

The host's rules and interfaces stay as they are. The kernel loads modules, as for the first pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from ipaddress import ip_interface

from attachment.masquerade import backend as masquerade
from attachment.masquerade import options as masquerade_options
from attachment.masquerade.spec import Masquerade
from cni import versions
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code
from kernel import modules, traffic
from kernel.netns import entered
from kernel.rtnl import Socket
from kernel.unnamed_netns import create_unnamed, set_loopback_up
from plugins.bandwidth import subnets
from plugins.portmap import conf as portmap_conf
from plugins.portmap import main as portmap
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.programs import status_object
from process.values import replace

_LACKS = Fault(
    "kernel-lacks",
    Severity.PROBLEM,
    "in a temporary namespace the kernel refuses the rules or the limits of a network's pods: a module is missing",
)
_POD = {4: ip_interface("192.0.2.2/24"), 6: ip_interface("2001:db8::2/64")}
_NAME, _LO = "podwire-doctor", 1

Trial = Callable[[], None]


def _try(node: CheckedNode) -> Iterator[Finding]:
    for network in node.networks:
        ip_versions = {4}.union(*(item.versions for item in node.interfaces if item.network is network))
        for plugin in network.plugins:
            kind = str(plugin["type"])
            trial = None
            with suppress(CniError):  # an invalid configuration, which STATUS reports
                conf = {**network.build_config(plugin), "cniVersion": versions.CURRENT}
                if kind in _TRIALS and kind in node.plugins:
                    trial = _TRIALS[kind](*node.checker.build_call("STATUS", conf), ip_versions)
            if trial and (error := _run(trial)):
                subject = f"{network.name}: {kind}"
                yield _LACKS.finding(subject, error.msg, error.details, behind=(status_object(subject),))


def _run(trial: Trial) -> CniError | None:
    """Returns the error of a trial in a new namespace; raises CniError if that says nothing about the kernel.

    That is code 8 for a namespace that cannot be created, 11 for a busy lock, and 999 without CAP_NET_ADMIN.
    """
    with create_unnamed() as namespace, entered(namespace):
        set_loopback_up()  # refused without CAP_NET_ADMIN
        try:
            trial()
        except CniError as error:
            if error.code == Code.TRY_AGAIN_LATER:
                raise
            return error
    return None


def _masquerade(args: CmdArgs, net_conf: NetConf, ip_versions: Iterable[int]) -> Trial | None:
    options = masquerade_options.parse(net_conf)
    if options is None:
        return None
    addresses = tuple(_POD[version] for version in ip_versions)
    spec = Masquerade(_NAME, _NAME, "eth0", addresses, options.exempt, options.cluster)
    return partial(masquerade.BACKENDS.add, spec, options.backend)


def _publish(args: CmdArgs, net_conf: NetConf, ip_versions: Iterable[int]) -> Trial:
    """Returns the trial of a port without the configured conditions and chain, which may name objects of the host."""
    conf = portmap_conf.parse(args, net_conf)
    ports = replace(
        conf.ports,
        container_id=_NAME,
        mappings=(portmap_conf.PortMapping(1, 1, "tcp"),),
        addresses={version: _POD[version] for version in ip_versions},
        conditions={},
        external_mark_chain="",
    )
    return partial(portmap.BACKENDS.add, ports, conf.backend)


def _redirect() -> None:
    """Redirects the packets of `lo` as bandwidth does those from a pod; raises CniError."""
    requests = [traffic.create_ingress_request(_LO), *subnets.egress_requests(_LO, _LO, subnets.EVERYWHERE)]
    try:
        with Socket() as socket:
            socket.change(*requests)
    except CniError as error:
        error.details = modules.explain_missing("sch_ingress", "cls_u32", "act_mirred")
        raise


_TRIALS: dict[str, Callable[[CmdArgs, NetConf, Iterable[int]], Trial | None]] = {
    "bridge": _masquerade,
    "ptp": _masquerade,
    "portmap": _publish,
    "bandwidth": lambda *_: _redirect,
}

CHECKS = (Check("kernel", "trial", "the kernel accepts the rules and limits of the networks' pods", _try, (_LACKS,)),)
