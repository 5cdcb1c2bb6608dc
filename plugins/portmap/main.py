"""The verbs of portmap.

One rule: each change is followed by its undo, and DEL looks for rules wherever they may be, whatever is configured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from attachment.repair import repair_if_missing
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf, not_chained
from cni.errors import CniError, Code, UnchangedError, run_all
from cni.result import Result
from cni.skel import Plugin
from kernel.netfilter import nft
from kernel.netfilter.backends import Backends
from plugins.portmap import conf as portmap_conf
from plugins.portmap import conntrack, iptables, localhost, nftables, pod_route
from plugins.portmap.conf import PortmapConf
from plugins.portmap.port_conflicts import ShadowedError
from plugins.portmap.spec import HostPorts
from process.record import is_dry_run
from process.undo import Undo

_BACKENDS: Backends[HostPorts] = Backends(
    iptables, nftables, "install iptables or a kernel with nftables, or publish no host ports"
)


def cmd_add(args: CmdArgs, conf: NetConf) -> Result:
    """Leads the host ports that the runtime asks for to the pod; hands on the earlier plugins' result.

    A failure leaves nothing behind, except what other pods may use by then: shared chains, and a bridge's setting.
    """
    own, prev_result = _parsed(args, conf)
    if prev_result is None:
        raise not_chained("portmap")
    ports = own.ports
    if ports.mappings:
        _tell_of_idle(ports)
        with Undo() as undo:
            undo.push("remove the host ports", partial(_remove, ports, legacy=True))
            try:
                _BACKENDS.add(ports, own.backend)
            except UnchangedError:
                undo.clear()  # what an earlier ADD made is as it was
                raise
            if ports.refuse_taken:
                _refuse_overtaken(ports, own.backend)
            localhost.ensure(ports)
            conntrack.delete_flows(ports)
    return prev_result


def cmd_del(args: CmdArgs, conf: NetConf) -> None:
    """Removes the attachment's host ports, in both backends; gone is success, and the configuration may be broken."""
    _remove(portmap_conf.parse_leniently(args, conf), legacy=portmap_conf.may_have_ports(conf))


def cmd_check(args: CmdArgs, conf: NetConf) -> None:
    """Checks that the host ports lead to the pod, and that no other container's rule stands before them."""
    prev_result = conf.prev_result()
    own = portmap_conf.parse(args, conf, prev_result)
    if prev_result is None:
        raise CniError(Code.INVALID_NETWORK_CONFIG, "Required prevResult missing", "CHECK needs the result of ADD")
    if own.ports.mappings:
        _BACKENDS.check(own.ports, own.backend)
        localhost.check(own.ports)


def cmd_gc(args: CmdArgs, conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the host ports of what is no listed attachment; what cannot be proven to be this network's stays."""
    rules: list[Callable[[nft.NftSocket], object]] = [
        lambda socket: iptables.gc(socket, conf.name, valid),
        lambda socket: nftables.gc(socket, conf.name, valid),
        localhost.gc,
    ]
    run_all(partial(iptables.gc_legacy, conf.name, valid), localhost.gc_legacy, partial(nft.run_steps, rules))


def cmd_status(args: CmdArgs, conf: NetConf) -> None:
    """Tells whether ADD could be served; raises CniError(50)."""
    own = portmap_conf.parse(args, conf)
    if problem := _BACKENDS.get_problem(own.backend):
        cure = 'install what is missing, or set "backend" to the other one'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f"host ports cannot be served: {problem}", cure)


def cmd_repair(args: CmdArgs, conf: NetConf) -> None:
    """Makes again what somebody has flushed of the host ports.

    UDP flows that began meanwhile, past the pod, are forgotten; those that are led to the pod go on.
    """
    own = portmap_conf.parse(args, conf, conf.required_prev_result())
    ports = own.ports
    if ports.mappings:
        look, make = partial(_is_reached, ports, own.backend), partial(_BACKENDS.add, ports, own.backend)
        lost = repair_if_missing("the host ports", look, make)
        if lost and not is_dry_run() and look():  # else the flows to the port are those of who was first
            conntrack.delete_stray_flows(ports)
        pod_route.interface_to(ports)  # refuses a pod whose route leads elsewhere, which is not portmap's to change
        guard = partial(localhost.ensure, ports, unguarded=True)
        repair_if_missing("127.0.0.1:hostPort", partial(localhost.demand, ports), guard)


PLUGIN = Plugin(
    "portmap",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=portmap_conf.parse,
    keys=portmap_conf.KEYS,
    cmd_repair=cmd_repair,
    cmd_remove_rules=cmd_del,  # which is about rules only
)


def _parsed(args: CmdArgs, conf: NetConf) -> tuple[PortmapConf, Result | None]:
    """Reads the configuration for ADD, whose errors have a prefix (reference)."""
    try:
        prev_result = conf.prev_result()
        return portmap_conf.parse(args, conf, prev_result), prev_result
    except CniError as error:
        raise error.prefixed("failed to parse config: ") from None


def _is_reached(ports: HostPorts, backend: str) -> bool:
    """Checks the rules; returns False when another container's stand before them, which no repair changes."""
    try:
        _BACKENDS.check(ports, backend)
    except ShadowedError:
        return False
    return True


def _refuse_overtaken(ports: HostPorts, backend: str) -> None:
    """Raises CniError(11) when another ADD, which looked when we did, has put its rule in front of ours.

    Each looks again when its rules stand: of all who took a port at once only the first one sees nobody before it.
    """
    try:
        _BACKENDS.check(ports, backend)
    except ShadowedError as error:
        raise CniError(Code.TRY_AGAIN_LATER, error.msg, error.details) from error
    except CniError:
        return  # whatever else is not as CHECK would have it is CHECK's to tell


def _tell_of_idle(ports: HostPorts) -> None:
    """Tells on stderr of mappings that the reference accepts as well, and that lead nowhere."""
    taken: set[tuple[object, ...]] = set()
    for mapping in ports.mappings:
        port = mapping.protocol, mapping.host_port
        versions = [version for version in ports.families if mapping.serves(version)]
        if not versions:
            print(f"portmap: host port {mapping}: {ports.ifname} has no address for it in prevResult", file=sys.stderr)
        for version in versions:
            if not taken.isdisjoint(((version, *port, None), (version, *port, mapping.only_to))):
                print(f"portmap: host port {mapping} is asked for twice: the first one gets it", file=sys.stderr)
                break
        taken.update((version, *port, mapping.only_to) for version in versions)


def _remove(ports: HostPorts, *, legacy: bool) -> None:
    """Removes the attachment's rules wherever they are: by netlink, and what iptables-legacy made.

    The latter takes a program and the lock of the host, so `legacy` tells whether there were host ports at all. UDP
    flows are forgotten when no rule forwards them to the pod any more. The pod's own interface is closed, and its guard
    removed.
    """
    rules: list[Callable[[nft.NftSocket], object]] = [
        lambda socket: iptables.delete(socket, ports),
        lambda socket: nftables.delete(socket, ports),
        lambda socket: conntrack.delete_flows_with(socket, ports),
        lambda socket: localhost.delete(socket, ports),
    ]
    steps: list[Callable[[], object]] = [partial(nft.run_steps, rules)]
    if legacy:  # the guard last: if it was in nftables, the interface is closed by now, and no program is run for it
        before = partial(iptables.delete_legacy, ports)
        steps = [before, *steps, partial(localhost.delete_legacy, ports)]
    run_all(*steps)
