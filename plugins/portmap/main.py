"""The verbs of portmap.

ADD registers the undo of each change. DEL removes the rules of both backends, whichever is configured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from attachment.repair import repair_if_missing
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf, not_chained
from cni.errors import CniError, Code, UnchangedError, invalid_conf, run_all
from cni.result import Result
from cni.skel import Plugin
from kernel.netfilter import nft
from kernel.netfilter.backends import Backends
from plugins.portmap import conf as portmap_conf
from plugins.portmap import conntrack, iptables, localhost, nftables
from plugins.portmap.conf import HostPorts, PortmapConf
from plugins.portmap.port_conflicts import ShadowedError
from process.record import is_dry_run
from process.undo import Undo

BACKENDS: Backends[HostPorts] = Backends(
    iptables, nftables, "install iptables or a kernel with nftables, or publish no host ports"
)


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Publishes the host ports that the runtime requests; returns prevResult unchanged.

    A failure is rolled back, except the shared chains and route_localnet of a bridge, which other pods may already use.
    """
    conf, prev_result = _parse_for_add(args, net_conf)
    if prev_result is None:
        raise not_chained("portmap")
    ports = conf.ports
    if ports.mappings:
        _warn_of_unused_mappings(ports)
        with Undo() as undo:
            undo.push("remove the host ports", partial(_remove_ports, ports, legacy=True))
            try:
                BACKENDS.add(ports, conf.backend)
            except UnchangedError:
                undo.clear()  # the rules of an earlier ADD still exist: keep them
                raise
            if ports.refuse_conflicts:
                _refuse_lost_race(ports, conf.backend)
            localhost.ensure(ports)
            conntrack.delete_flows(ports)
    return prev_result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes the attachment's host ports in both backends; absent host ports and an invalid conf are success."""
    legacy = portmap_conf.may_have_host_ports(net_conf)
    _remove_ports(portmap_conf.parse_leniently(args, net_conf), legacy=legacy)


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the rules of the host ports, and that no rule of another container comes before them."""
    prev_result = net_conf.prev_result()
    conf = portmap_conf.parse(args, net_conf, prev_result)
    if prev_result is None:
        raise invalid_conf("Required prevResult missing", "CHECK needs the result of ADD")
    if conf.ports.mappings:
        BACKENDS.check(conf.ports, conf.backend)
        localhost.check(conf.ports)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the host ports of this network's attachments that are not in `valid`.

    Keeps rules that may belong to another network.
    """
    netlink_steps: list[Callable[[nft.NftSocket], object]] = [
        lambda socket: iptables.gc(socket, net_conf.name, valid),
        lambda socket: nftables.gc(socket, net_conf.name, valid),
        localhost.gc,
    ]
    run_all(
        partial(iptables.gc_legacy, net_conf.name, valid), localhost.gc_legacy, partial(nft.run_steps, netlink_steps)
    )


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Raises CniError(50) if the configured backend does not work; without a configured backend, if neither works."""
    conf = portmap_conf.parse(args, net_conf)
    if problem := BACKENDS.get_problem(conf.backend):
        fix = 'install the missing part, or set "backend" to the other backend'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f"host ports cannot be published: {problem}", fix)


def cmd_repair(args: CmdArgs, net_conf: NetConf) -> None:
    """Recreates missing rules, for example after a flush of the packet filter.

    Deletes UDP flows that began without the rules and do not reach the pod; flows to the pod continue.
    """
    conf = portmap_conf.parse(args, net_conf, net_conf.required_prev_result())
    ports = conf.ports
    if ports.mappings:
        check, create = partial(_check_rules, ports, conf.backend), partial(BACKENDS.add, ports, conf.backend)
        was_missing = repair_if_missing("the host ports", check, create)
        # If check() is False, the flows belong to the container whose rule comes first.
        if was_missing and not is_dry_run() and check():
            conntrack.delete_stray_flows(ports)
        # Raises WrongRouteError: a repair must not change the route of another program.
        localhost.get_interface_to_pod(ports)
        create_guard = partial(localhost.ensure, ports, guard_is_missing=True)
        repair_if_missing("127.0.0.1:hostPort", partial(localhost.check_with_guard, ports), create_guard)


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
    cmd_remove_rules=cmd_del,  # portmap creates nothing but rules
)


def _parse_for_add(args: CmdArgs, net_conf: NetConf) -> tuple[PortmapConf, Result | None]:
    """Parses the configuration; prefixes errors like the ADD of the reference plugin."""
    try:
        prev_result = net_conf.prev_result()
        return portmap_conf.parse(args, net_conf, prev_result), prev_result
    except CniError as error:
        raise error.prefixed("failed to parse config: ") from None


def _check_rules(ports: HostPorts, backend: str) -> bool:
    """Checks the rules; returns False if a rule of another container comes first, which a repair cannot change."""
    try:
        BACKENDS.check(ports, backend)
    except ShadowedError:
        return False
    return True


def _refuse_lost_race(ports: HostPorts, backend: str) -> None:
    """Raises CniError(11) if a parallel ADD has inserted its rule for the same port before this one.

    Each ADD checks the order after it has created its rules: only the ADD whose rule comes first succeeds.
    """
    try:
        BACKENDS.check(ports, backend)
    except ShadowedError as error:
        raise CniError(Code.TRY_AGAIN_LATER, error.msg, error.details) from error
    except CniError:
        return  # CHECK reports any other problem


def _warn_of_unused_mappings(ports: HostPorts) -> None:
    """Prints mappings without effect to stderr; ADD accepts them, as the reference plugin does."""
    used: set[tuple[object, ...]] = set()
    for mapping in ports.mappings:
        port = mapping.protocol, mapping.host_port
        versions = [version for version in ports.ip_versions if mapping.applies_to(version)]
        if not versions:
            print(f"portmap: host port {mapping}: {ports.ifname} has no address for it in prevResult", file=sys.stderr)
        for version in versions:
            if not used.isdisjoint(((version, *port, None), (version, *port, mapping.bound_ip))):
                print(f"portmap: host port {mapping} is requested twice: the first mapping gets it", file=sys.stderr)
                break
        used.update((version, *port, mapping.bound_ip) for version in versions)


def _remove_ports(ports: HostPorts, *, legacy: bool) -> None:
    """Removes the attachment's rules from nftables and iptables-nft, and with `legacy` from iptables-legacy.

    iptables-legacy costs a process and the host's xtables lock, so `legacy` is False if there were no host ports.
    Deletes UDP flows after the rules that forwarded them; disables route_localnet of the host veth, deletes its guard.
    """
    netlink_steps: list[Callable[[nft.NftSocket], object]] = [
        lambda socket: iptables.delete(socket, ports),
        lambda socket: nftables.delete(socket, ports),
        lambda socket: conntrack.delete_flows_with_socket(socket, ports),
        lambda socket: localhost.delete(socket, ports),
    ]
    delete_over_netlink = partial(nft.run_steps, netlink_steps)
    if not legacy:
        run_all(delete_over_netlink)
        return
    # The guard in iptables-legacy comes last: if the guard was in nftables, route_localnet is disabled by then, and no
    # process is needed.
    run_all(partial(iptables.delete_legacy, ports), delete_over_netlink, partial(localhost.delete_legacy, ports))
