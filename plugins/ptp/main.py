"""The verbs of ptp.

One rule: each change is followed by its undo, and DEL takes away everything whatever is already gone.
"""

from __future__ import annotations

from functools import partial

from attachment import forwarding, veth
from attachment.masquerade import backend, options
from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, attachment_ips, check
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code, run_all, run_status_checks
from cni.result import Interface, Result
from cni.skel import Plugin
from kernel import link, sysctl
from kernel.link import Link
from kernel.netfilter import nft
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.ptp import conf as ptp_conf
from plugins.ptp import routed
from process.undo import Undo
from process.values import replace

_CONTAINER = 1  # index of the sandbox's interface in the result: host end, sandbox end
_AGAIN = "remove the container and create it again"


def cmd_add(args: CmdArgs, conf: NetConf) -> Result:
    """Connects the sandbox with the host, with the addresses that IPAM gives, or without any.

    Nothing is left behind by a failure, except forwarding, which others may use by then.
    """
    own = ptp_conf.parse(conf)
    conf.refuse_addressless()
    with Netns(args.netns) as namespace, Socket() as host, Undo() as undo:
        given = Result()
        if own.ipam_type:
            given = routed.completed(delegate.add_ipam(args, conf, undo), own.mtu, _CONTAINER)
        made = veth.create(host, namespace, args.ifname, undo, mtu=own.mtu)
        sysctl.try_write(f"ipv6/conf/{made.host_end.name}/accept_ra", "0")
        outside = made.host_veth or veth.get_host_veth(host, made.host_end.name)
        with Sandbox(namespace, args.ifname) as sandbox:
            inside = made.container_veth or sandbox.get_link()
            ends = veth.result_interface(conf, outside), veth.result_interface(conf, inside, args.netns)
            result = replace(given, interfaces=ends)
            if own.ipam_type:
                routed.lead_in(host, outside, result)
                sandbox.configure(inside, replace(result, routes=()), dad=False)
                routed.lead_out(sandbox, inside, result)
            else:
                sandbox.socket.change(link.set_request(inside, up=True))
            veth.wait_carrier(host, outside, "the host's end")
            sandbox.get_link()  # has the kernel notice the carrier at this end, too, without which IPv6 holds back
            if own.masquerade:
                own.masquerade.add(args, conf, result, sandbox, undo)
        return result if own.dns is None else replace(result, dns=own.dns)


def cmd_del(args: CmdArgs, conf: NetConf) -> None:
    """Deletes the pair and the attachment's rules, then releases its addresses; gone is success.

    The addresses are kept while the interface cannot be deleted: they are still in use. Otherwise all is tried, and
    what failed is told at the end.
    """
    with Socket() as host:
        others = veth.delete_attachment_veth(args, conf, host)
    run_all(*options.removal_steps(args, conf, others), partial(delegate.run_ipam, args, conf))


def cmd_check(args: CmdArgs, conf: NetConf) -> None:
    """Checks that the attachment is as ADD left it, or as a later plugin says in prevResult; IPAM checks its part."""
    own = ptp_conf.parse(conf)
    prev_result = conf.required_prev_result("ptp: Required prevResult missing")
    with Netns(args.netns) as namespace, Socket() as host:
        delegate.run_ipam(args, conf)
        listed = veth.listed_container_interface(args, prev_result)
        with Sandbox(namespace, args.ifname) as sandbox:
            inside = _check_inside(listed, sandbox)
            outside = link.get_local_peer(host, inside, namespace)
            if outside is None:
                raise _wrong(f"The host's end of {args.ifname} was not found", f"it is not on this host; {_AGAIN}")
            if unlisted := veth.check_host_veth(outside, prev_result):
                raise _wrong(f"The host's end of {args.ifname} was not found", unlisted)
            check(sandbox, inside, prev_result)
            routed.check(sandbox, inside, outside, prev_result, host)
    if own.masquerade:
        own.masquerade.check(args, conf, prev_result)


def cmd_gc(args: CmdArgs, conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the rules of what is no listed attachment and has IPAM release its addresses.

    The links of such attachments died with their sandboxes. What cannot be proven to be this network's stays.
    """
    rules = partial(nft.run_steps, backend.gc_steps(conf.name, valid))
    run_all(partial(backend.gc_legacy, conf.name, valid), rules, partial(delegate.run_ipam, args, conf))


def cmd_status(args: CmdArgs, conf: NetConf) -> None:
    """Tells whether ADD could be served: configuration, forwarding, what masquerading needs, IPAM.

    Raises CniError(50), CniError(51).
    """
    run_status_checks(partial(_refuse_unavailable, conf), partial(delegate.run_ipam, args, conf))


def cmd_repair(args: CmdArgs, conf: NetConf) -> None:
    """Makes again what a flush of the packet filter takes away, and switches forwarding on again."""
    own = ptp_conf.parse(conf)
    prev_result = conf.required_prev_result()
    for version in sorted({ip.address.version for ip in attachment_ips(prev_result, args.ifname, strict=False)}):
        repair_if_missing("forwarding", partial(forwarding.check, version), partial(forwarding.enable, version))
    if own.masquerade:
        own.masquerade.repair(args, conf, prev_result)


def cmd_remove_rules(args: CmdArgs, conf: NetConf) -> None:
    """Removes the attachment's rules."""
    options.remove_rules(args, conf)


PLUGIN = Plugin(
    "ptp",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, conf: ptp_conf.parse(conf),
    keys=ptp_conf.KEYS,
    cmd_repair=cmd_repair,
    cmd_remove_rules=cmd_remove_rules,
)


def _refuse_unavailable(conf: NetConf) -> None:
    own = ptp_conf.parse(conf)
    if own.ipam_type:
        forwarding.refuse_unavailable()
    if own.masquerade:
        own.masquerade.refuse_unavailable()


def _check_inside(listed: Interface, sandbox: Sandbox) -> Link:
    """Returns the sandbox's end when it is as prevResult says (texts of the reference)."""
    inside = sandbox.find_link()
    if inside is None:
        msg = f"ptp: Container Interface name in prevResult: {sandbox.ifname} not found"
        raise _wrong(msg, f"the network namespace is {sandbox.path}; {_AGAIN}")
    if inside.kind != "veth":
        details = f"it is {inside.kind or 'unknown'}; {_AGAIN}"
        raise _wrong(f"Error: Container interface {sandbox.ifname} not of type veth/p2p", details)
    if listed.mac and inside.mac != listed.mac:
        msg = f"ptp: Interface {sandbox.ifname} Mac {listed.mac} doesn't match container Mac: {inside.mac}"
        raise _wrong(msg, _AGAIN)
    if not inside.is_up:
        details = f'in the container: ip link set "{sandbox.ifname}" up'
        raise _wrong(f"Container interface {sandbox.ifname} is down", details)
    if listed.mtu and inside.mtu != listed.mtu:  # since CNI 1.1.0; what is configured a later plugin may have changed
        details = f"it is {inside.mtu}; set it back, or remove the container and create it again"
        raise _wrong(f"Interface {sandbox.ifname} MTU doesn't match: {listed.mtu}", details)
    return inside


def _wrong(msg: str, details: str) -> CniError:
    return CniError(Code.INTERNAL, msg, details)
