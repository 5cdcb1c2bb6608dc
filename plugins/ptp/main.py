"""The verbs of ptp.

ADD registers the undo of each change next to the change. DEL deletes every object of the attachment that still exists.
"""

from __future__ import annotations

from functools import partial

from attachment import auto_mtu, forwarding, veth
from attachment.masquerade import backend as masquerade_backend
from attachment.masquerade import options as masquerade_options
from attachment.policy import options as policy
from attachment.policy.port_guard import ROUTED
from attachment.prev_result import RECREATE_HINT
from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, attachment_ips, check_addresses_and_routes
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import internal, run_all, run_status_checks
from cni.result import Interface, Result
from cni.skel import Plugin
from kernel import link, modules, sysctl
from kernel.link import Link
from kernel.netfilter import nft
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.ptp import conf as ptp_conf
from plugins.ptp import routed
from process.undo import Undo
from process.values import replace

_CONTAINER = 1  # index of the container's interface in the result, after the host veth


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Connects the container with the host, with the addresses that IPAM allocates, or without addresses.

    A failure is rolled back, except forwarding, which other programs may rely on by then.
    """
    conf = ptp_conf.parse(net_conf)
    net_conf.refuse_missing_ipam()
    with Netns(args.netns) as namespace, Socket() as host, Undo() as undo:
        if conf.mtu_auto:
            conf = replace(conf, mtu=auto_mtu.read(host))
        ipam_result = Result()
        if conf.ipam_type:
            ipam_result = routed.assign_addresses(delegate.add_ipam(args, net_conf, undo), conf, _CONTAINER)
        created = veth.create(host, namespace, args.ifname, undo, mtu=conf.mtu)
        sysctl.try_write(f"ipv6/conf/{created.host_end.name}/accept_ra", "0")
        host_veth = created.host_veth or veth.get_host_veth(host, created.host_end.name)
        with Sandbox(namespace, args.ifname) as sandbox:
            container_veth = created.container_veth or sandbox.get_link()
            ends = (
                veth.result_interface(net_conf, host_veth),
                veth.result_interface(net_conf, container_veth, args.netns),
            )
            result = replace(ipam_result, interfaces=ends)
            if conf.network_policy:
                pod = policy.build_record(args, net_conf, result, host_veth.name, container_veth.mac, ROUTED)
                policy.add(pod, undo)
                policy.wait(pod)
            if conf.ipam_type:
                routed.configure_host(host, host_veth, result)
                sandbox.configure(container_veth, replace(result, routes=()), dad=False)
                routed.configure_container(sandbox, container_veth, result)
            else:
                sandbox.socket.change(link.set_request(container_veth, up=True))
            veth.wait_carrier(host, host_veth, "the host's end")
            sandbox.get_link()  # reading it updates its carrier, without which IPv6 does not send
            if conf.masquerade:
                conf.masquerade.add(args, net_conf, result, sandbox, undo)
        return result if conf.dns is None else replace(result, dns=conf.dns)


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the veth pair and the attachment's rules, then releases its addresses; missing parts are success.

    Keeps the addresses if the interface cannot be deleted: they are still in use. Otherwise tries all steps, then
    reports failures.
    """
    policy.release_lease(args, net_conf)
    with Socket() as host:
        other_addresses = veth.delete_attachment_veth(args, net_conf, host)
    run_all(
        *masquerade_options.removal_steps(args, net_conf, other_addresses),
        partial(policy.release, args, net_conf),
    )


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the attachment against prevResult, which later plugins may have changed; IPAM checks its part."""
    conf = ptp_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result("ptp: Required prevResult missing")
    with Netns(args.netns) as namespace, Socket() as host:
        delegate.run_ipam(args, net_conf)
        listed = veth.listed_container_interface(args, prev_result)
        with Sandbox(namespace, args.ifname) as sandbox:
            container_veth = _check_container_veth(listed, sandbox)
            host_veth = link.get_local_peer(host, container_veth, namespace)
            if host_veth is None:
                raise internal(
                    f"The host's end of {args.ifname} was not found", f"it is not on this host; {RECREATE_HINT}"
                )
            if unlisted := veth.check_host_veth(host_veth, prev_result):
                raise internal(f"The host's end of {args.ifname} was not found", unlisted)
            check_addresses_and_routes(sandbox, container_veth, prev_result)
            routed.check(sandbox, container_veth, host_veth, prev_result, host)
    if conf.masquerade:
        conf.masquerade.check(args, net_conf, prev_result)
    if conf.network_policy:
        policy.check(args, net_conf)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the rules of attachments that are not in `valid`, and has IPAM release their addresses.

    Links need no removal: the kernel deletes them with their network namespaces. Rules without proof that they belong
    to this network stay.
    """
    rules = partial(nft.run_steps, masquerade_backend.gc_steps(net_conf.name, valid))
    run_all(
        partial(masquerade_backend.gc_legacy, net_conf.name, valid),
        rules,
        partial(policy.gc, args, net_conf, valid),
    )


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD can succeed: configuration, forwarding, requirements of masquerading, IPAM.

    Raises CniError(50), CniError(51).
    """
    run_status_checks(partial(_refuse_unavailable, net_conf), partial(delegate.run_ipam, args, net_conf))


def cmd_repair(args: CmdArgs, net_conf: NetConf) -> None:
    """Recreates masquerading rules that a flush of the packet filter removed, and enables forwarding again."""
    conf = ptp_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result()
    for version in sorted({ip.address.version for ip in attachment_ips(prev_result, args.ifname, strict=False)}):
        repair_if_missing("forwarding", partial(forwarding.check, version), partial(forwarding.enable, version))
    if conf.masquerade:
        conf.masquerade.repair(args, net_conf, prev_result)
    if conf.network_policy:
        _repair_policy(args, net_conf, prev_result)


def cmd_remove_rules(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes the attachment's rules."""
    run_all(partial(masquerade_options.remove_rules, args, net_conf), partial(policy.remove_rules, args, net_conf))


PLUGIN = Plugin(
    "ptp",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: ptp_conf.parse(net_conf),
    keys=ptp_conf.KEYS,
    cmd_repair=cmd_repair,
    cmd_remove_rules=cmd_remove_rules,
)


def _refuse_unavailable(net_conf: NetConf) -> None:
    conf = ptp_conf.parse(net_conf)
    with Socket() as host:
        modules.refuse_missing_links(host, "veth")
    if conf.ipam_type:
        forwarding.refuse_unavailable()
    if conf.network_policy:
        policy.refuse_unavailable(ROUTED)
    if conf.masquerade:
        conf.masquerade.refuse_unavailable()


def _repair_policy(args: CmdArgs, net_conf: NetConf, prev_result: Result) -> None:
    container_veth = veth.listed_container_interface(args, prev_result)
    host_veth = next((item.name for item in prev_result.interfaces if not item.sandbox), "")
    policy.repair(policy.build_record(args, net_conf, prev_result, host_veth, container_veth.mac, ROUTED))


def _check_container_veth(listed: Interface, sandbox: Sandbox) -> Link:
    """Returns the container veth if it matches prevResult; raises CniError(999) with the texts of the reference."""
    container_veth = sandbox.find_link()
    if container_veth is None:
        msg = f"ptp: Container Interface name in prevResult: {sandbox.ifname} not found"
        raise internal(msg, f"the network namespace is {sandbox.path}; {RECREATE_HINT}")
    if container_veth.kind != "veth":
        details = f"it is {container_veth.kind or 'unknown'}; {RECREATE_HINT}"
        raise internal(f"Error: Container interface {sandbox.ifname} not of type veth/p2p", details)
    if listed.mac and container_veth.mac != listed.mac:
        msg = f"ptp: Interface {sandbox.ifname} Mac {listed.mac} doesn't match container Mac: {container_veth.mac}"
        raise internal(msg, RECREATE_HINT)
    if not container_veth.is_up:
        details = f'in the container: ip link set "{sandbox.ifname}" up'
        raise internal(f"Container interface {sandbox.ifname} is down", details)
    # prevResult has the MTU since CNI 1.1.0; a later plugin may have changed the configured one.
    if listed.mtu and container_veth.mtu != listed.mtu:
        details = f"it is {container_veth.mtu}; set it back, or remove the container and create it again"
        raise internal(f"Interface {sandbox.ifname} MTU doesn't match: {listed.mtu}", details)
    return container_veth
