"""The verbs of bandwidth.

One rule: each change is followed by its undo, and DEL removes limits wherever they are, whatever is configured.
"""

from __future__ import annotations

import sys

from cni import versions
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf, unchained
from cni.errors import CniError, Code
from cni.result import Result
from cni.skel import Plugin
from kernel import link, traffic
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Socket
from kernel.traffic import HTB, TBF, Bucket
from plugins.bandwidth import conf as bandwidth_conf
from plugins.bandwidth import host_veth, shaper
from plugins.bandwidth.check import check_classes, check_egress, check_ingress
from plugins.bandwidth.ifb_owner import Owner, stale_ifbs
from plugins.bandwidth.limit import Limit, references, shape
from plugins.bandwidth.shaper import Wanted
from process import record
from process.undo import Undo
from process.values import replace


def cmd_add(args: CmdArgs, conf: NetConf) -> Result:
    """Limits what the pod receives and sends; hands on the earlier plugins' result, with the ifb if there is one.

    A direction for which there is no limit is left as it is. A failure leaves nothing behind.
    """
    own = bandwidth_conf.parse(conf)
    prev_result = conf.prev_result()
    if prev_result is None:
        raise unchained("bandwidth")
    if not own.limits:
        return prev_result
    owner = _owner(args, conf)
    with Netns(args.netns) as namespace, Socket() as host, Undo() as undo:
        inside = host_veth.paired(namespace, args.ifname, prev_result)
        further = [link.by_index_request(shaper.usual_index(inside.lower))] if own.egress else []
        outside, found, taken = shaper.survey(host, owner, inside, namespace, *further, filters=False)
        outside = host_veth.listed(outside, inside, prev_result)
        wanted = Wanted(
            ingress=_bucket("ingress", own.ingress, outside.mtu, own.max_burst),
            egress=_bucket("egress", own.egress, outside.mtu, own.max_burst),
            subnets=own.subnets,
        )
        with record.step("limits"):
            ifb = shaper.limit(host, owner, outside, found, wanted, undo, index_is_free=taken == [None])
    return replace(prev_result, interfaces=(*prev_result.interfaces, ifb)) if ifb else prev_result


def cmd_del(args: CmdArgs, conf: NetConf) -> None:
    """Removes the limits; gone is success, and the configuration may be broken.

    Without a namespace it removes the ifb, and the rest goes with the pod's interface. One that cannot be entered is
    reported afterwards.
    """
    with Socket() as host:
        owner, outside, found, failure = _owner(args, conf), None, None, None
        try:
            with Netns(args.netns) as namespace:
                inside = host_veth.inside(namespace, args.ifname)
                outside, found, _ = shaper.survey(host, owner, inside, namespace)
        except NetnsMissingError:
            pass
        except CniError as error:
            failure = error
        with record.step("limits"):
            shaper.remove(host, outside, found or shaper.look(host, owner, None))
        if failure:
            raise failure


def cmd_check(args: CmdArgs, conf: NetConf) -> None:
    """Checks that the limits are as ADD set them, or the reference's; raises CniError(999)."""
    own = bandwidth_conf.parse(conf)
    prev_result = conf.prev_result()
    if prev_result is None:
        details = "CHECK needs the result of ADD"
        raise CniError(Code.INVALID_NETWORK_CONFIG, "must be called as a chained plugin", details)
    with Netns(args.netns) as namespace, Socket() as host:
        inside = host_veth.paired(namespace, args.ifname, prev_result)
        if not own.limits:
            host_veth.listed(link.get_local_peer(host, inside, namespace), inside, prev_result)
            return
        usual = shaper.usual_index(inside.lower)
        further = [traffic.get_root_request(usual)] if own.egress else []
        outside, found, roots = shaper.survey(host, _owner(args, conf), inside, namespace, *further)
        outside = host_veth.listed(outside, inside, prev_result)
        if own.ingress:
            if own.subnets.networks:
                found = check_classes(host, found, outside, own.subnets)
            check_ingress(found, outside, _accepted(own.ingress, outside.mtu, own.max_burst))
        if own.egress:
            accepted = _accepted(own.egress, outside.mtu, own.max_burst)
            check_egress(host, found, outside, accepted, own.subnets, {usual: roots[0]})


def cmd_gc(args: CmdArgs, conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the ifbs of what is no listed attachment; what does not say that it is this network's stays."""
    with Socket() as host:
        gone = stale_ifbs(conf.name, valid, link.list_of_kind(host, "ifb"))
        host.change(*(link.delete_request(item) for item in gone))


def cmd_status(args: CmdArgs, conf: NetConf) -> None:
    """Tells whether ADD could be served; raises CniError(50)."""
    further = (HTB,) if bandwidth_conf.parse(conf).subnets.networks else ()
    unserved = "limits cannot be served"
    with Socket() as host:
        try:
            lacking = traffic.probe_missing_features(host, *further)
        except CniError as error:
            raise CniError(Code.PLUGIN_NOT_AVAILABLE, f"{unserved}: {error.msg}", error.details) from error
    if lacking:
        raise CniError(
            Code.PLUGIN_NOT_AVAILABLE,
            f"{unserved}: the kernel has no {' and no '.join(lacking)}",
            f"load {' and '.join(_MODULES[name] for name in lacking)}, or use another kernel",
        )


_MODULES = {
    "ifb": "the module ifb (modprobe ifb)",
    TBF: "the module sch_tbf (modprobe sch_tbf)",
    HTB: "the module sch_htb (modprobe sch_htb)",
}

PLUGIN = Plugin(
    "bandwidth",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, conf: bandwidth_conf.parse(conf),
    keys=bandwidth_conf.KEYS,
    versions=tuple(version for version in versions.SUPPORTED if versions.at_least(version, "0.3.0")),
)


def _owner(args: CmdArgs, conf: NetConf) -> Owner:
    return Owner(conf.name, args.container_id, args.ifname)


def _bucket(direction: str, limit: Limit | None, mtu: int, max_burst: int) -> Bucket | None:
    """Returns the bucket of a limit, and tells on stderr when it is not what was asked for."""
    if limit is None:
        return None
    made = shape(limit, mtu, max_burst)
    if made.note:
        print(f"bandwidth: {direction} at {limit.rate} bits/s: {made.note}", file=sys.stderr)
    return made.bucket


def _accepted(limit: Limit, mtu: int, max_burst: int) -> tuple[Bucket, ...]:
    return shape(limit, mtu, max_burst).bucket, *references(limit)
