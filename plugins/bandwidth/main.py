"""The verbs of bandwidth.

One rule: each change is followed by its undo; DEL removes existing limits, whatever the configuration says.
"""

from __future__ import annotations

import sys

from cni import versions
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf, not_chained
from cni.errors import CniError, Code, invalid_conf
from cni.result import Result
from cni.skel import Plugin
from kernel import link, modules, traffic
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Socket
from kernel.traffic import HTB, TBF, Bucket
from plugins.bandwidth import conf as bandwidth_conf
from plugins.bandwidth import shaper
from plugins.bandwidth.check import check_egress, check_ingress, check_subnet_filters
from plugins.bandwidth.host_veth import check_host_veth, get_container_link, get_container_veth
from plugins.bandwidth.ifb_owner import IfbOwner, stale_ifbs
from plugins.bandwidth.limit import Limit, compute_shape, reference_buckets
from plugins.bandwidth.shaper import DesiredLimits
from process import record
from process.undo import Undo
from process.values import replace


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Limits the traffic that the pod receives and sends; returns prevResult, with the ifb added if one was created.

    A direction without a configured limit is not changed. A failure is rolled back.
    """
    conf = bandwidth_conf.parse(net_conf)
    prev_result = net_conf.prev_result()
    if prev_result is None:
        raise not_chained("bandwidth")
    if not conf.has_limits:
        return prev_result
    owner = _owner(args, net_conf)
    with Netns(args.netns) as namespace, Socket() as host, Undo() as undo:
        container_veth = get_container_veth(namespace, args.ifname, prev_result)
        ifb_index = shaper.default_ifb_index(container_veth.iflink)
        reads = [link.by_index_request(ifb_index)] if conf.egress else []
        peer, existing, links_with_index = shaper.get_host_veth_and_limits(
            host, owner, container_veth, namespace, *reads, lists_filters=False
        )
        host_veth = check_host_veth(peer, container_veth, prev_result)
        desired = DesiredLimits(
            ingress=_bucket("ingress", conf.ingress, host_veth.mtu, conf.max_burst),
            egress=_bucket("egress", conf.egress, host_veth.mtu, conf.max_burst),
            subnets=conf.subnets,
        )
        with record.timed_step("limits"):
            index_is_free = links_with_index == [None]
            ifb = shaper.set_limits(host, owner, host_veth, existing, desired, undo, index_is_free=index_is_free)
    return replace(prev_result, interfaces=(*prev_result.interfaces, ifb)) if ifb else prev_result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes the limits, even if the configuration is invalid; missing limits are success.

    Without a namespace it removes only the ifb: the kernel deletes the rest with the pod's interface. If the namespace
    cannot be entered, it removes the ifb, then raises the error.
    """
    with Socket() as host:
        owner, host_veth, existing, failure = _owner(args, net_conf), None, None, None
        try:
            with Netns(args.netns) as namespace:
                container_link = get_container_link(namespace, args.ifname)
                host_veth, existing, _ = shaper.get_host_veth_and_limits(host, owner, container_link, namespace)
        except NetnsMissingError:
            pass
        except CniError as error:
            failure = error
        with record.timed_step("limits"):
            shaper.remove_limits(host, host_veth, existing or shaper.get_limits(host, owner, None))
        if failure:
            raise failure


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks that the limits equal those that ADD, or the reference plugin's ADD, sets; raises CniError(999)."""
    conf = bandwidth_conf.parse(net_conf)
    prev_result = net_conf.prev_result()
    if prev_result is None:
        raise invalid_conf("must be called as a chained plugin", "CHECK needs the result of ADD")
    with Netns(args.netns) as namespace, Socket() as host:
        container_veth = get_container_veth(namespace, args.ifname, prev_result)
        if not conf.has_limits:
            check_host_veth(link.get_local_peer(host, container_veth, namespace), container_veth, prev_result)
            return
        ifb_index = shaper.default_ifb_index(container_veth.iflink)
        reads = [traffic.get_root_request(ifb_index)] if conf.egress else []
        peer, limits, ifb_roots = shaper.get_host_veth_and_limits(
            host, _owner(args, net_conf), container_veth, namespace, *reads
        )
        host_veth = check_host_veth(peer, container_veth, prev_result)
        if conf.ingress:
            if conf.subnets.networks:
                limits = check_subnet_filters(host, limits, host_veth, conf.subnets)
            check_ingress(limits, host_veth, _accepted(conf.ingress, host_veth.mtu, conf.max_burst))
        if conf.egress:
            accepted = _accepted(conf.egress, host_veth.mtu, conf.max_burst)
            check_egress(host, limits, host_veth, accepted, conf.subnets, {ifb_index: ifb_roots[0]})


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the ifbs whose alias names an attachment of this network that is not in `valid`."""
    with Socket() as host:
        stale = stale_ifbs(net_conf.name, valid, link.list_of_kind(host, "ifb"))
        host.change(*(link.delete_request(item) for item in stale))


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Raises CniError(50) if ADD would fail because the kernel lacks a feature."""
    needs_htb = bool(bandwidth_conf.parse(net_conf).subnets.networks)
    problem = "limits do not work on this node"
    with Socket() as host:
        try:
            missing = traffic.probe_missing_features(host, *((HTB,) if needs_htb else ()))
        except CniError as error:
            raise CniError(Code.PLUGIN_NOT_AVAILABLE, f"{problem}: {error.msg}", error.details) from error
    if missing:
        raise CniError(
            Code.PLUGIN_NOT_AVAILABLE,
            f"{problem}: the kernel has no {' and no '.join(missing)}",
            modules.explain_missing(*(_MODULES[name] for name in missing)),
        )


_MODULES = {"ifb": "ifb", TBF: "sch_tbf", HTB: "sch_htb"}

PLUGIN = Plugin(
    "bandwidth",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: bandwidth_conf.parse(net_conf),
    keys=bandwidth_conf.KEYS,
    versions=tuple(version for version in versions.SUPPORTED if versions.at_least(version, "0.3.0")),
)


def _owner(args: CmdArgs, net_conf: NetConf) -> IfbOwner:
    return IfbOwner(net_conf.name, args.container_id, args.ifname)


def _bucket(direction: str, limit: Limit | None, mtu: int, max_burst: int) -> Bucket | None:
    """Returns the bucket of a limit, None without one; prints to stderr why it differs from the configured limit."""
    if limit is None:
        return None
    shape = compute_shape(limit, mtu, max_burst)
    if shape.note:
        print(f"bandwidth: {direction} at {limit.rate} bits/s: {shape.note}", file=sys.stderr)
    return shape.bucket


def _accepted(limit: Limit, mtu: int, max_burst: int) -> tuple[Bucket, ...]:
    """Returns the buckets that CHECK accepts: podwire's and the reference plugin's."""
    return compute_shape(limit, mtu, max_burst).bucket, *reference_buckets(limit)
