"""The verbs of bridge.

ADD registers the undo of each change next to the change. DEL deletes every object of the attachment that still exists.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attachment import auto_mtu, forwarding, veth
from attachment.masquerade import backend as masquerade_backend
from attachment.masquerade import options as masquerade_options
from attachment.policy import options as policy
from attachment.policy.port_guard import BRIDGE
from attachment.sandbox import Sandbox
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code, run_all, run_status_checks
from cni.result import Result
from cni.skel import Plugin
from kernel import link, modules, neighbour
from kernel.link import Link
from kernel.netfilter import nft
from kernel.netns import Netns
from kernel.rtnl import Socket
from kernel.vlan import probe_create_bridge
from plugins.bridge import addresses, bridge_device, bridge_nf_call, mac_spoof, mtu, port, vlan
from plugins.bridge import conf as bridge_conf
from plugins.bridge.check import check_attachment
from plugins.bridge.conf import BridgeConf
from plugins.bridge.gateway import ensure_gateways, get_gateway_link
from plugins.bridge.repair import repair
from process import record
from process.undo import Undo
from process.values import replace

_CONTAINER_INDEX = 2  # in the result's interfaces: bridge, host veth, container veth
_BRIDGE_TRIES = 5  # a retry is needed only if another ADD rolls back after this one has looked up the bridge


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Attaches the container to the bridge, with the addresses that IPAM allocates.

    A failure is rolled back, except for objects that other attachments may use by then: a bridge with ports, its
    gateway address, forwarding.
    """
    conf = bridge_conf.parse(args, net_conf)
    net_conf.refuse_missing_ipam()
    bridge_nf_call.refuse_bypass(conf)
    with Netns(args.netns) as namespace, Socket() as host, Undo() as undo:
        conf = replace(conf, mtu=auto_mtu.read(host)) if conf.mtu_auto else conf
        attached = _attach(host, namespace, args.ifname, conf, undo)
        bridge, host_veth = attached.bridge, attached.host_veth
        bridge_mtu = mtu.choose_bridge_mtu(host, bridge, conf)
        ipam_result = _allocate_addresses(args, net_conf, conf, undo)
        vlan.ensure_filtering(host, bridge, attached.filtering)  # no frame has passed: the container veth is still down
        with Sandbox(namespace, args.ifname) as sandbox:
            container_veth = attached.container_veth or sandbox.get_link()
            links = bridge._replace(mtu=bridge_mtu), host_veth, container_veth
            result = _result(args, net_conf, ipam_result, links)
            if conf.mac_spoof_check:
                _add_mac_spoof_check(args, net_conf, host_veth, container_veth, undo)
            if conf.network_policy:
                pod = policy.build_record(args, net_conf, result, host_veth.name, container_veth.mac, BRIDGE)
                policy.add(pod, undo)
                policy.wait(pod)
                _drop_waiting_packets(host, bridge, conf, result)
            _bring_up(sandbox, container_veth, conf, result)
            if not conf.container_interface_down:
                veth.wait_carrier(host, host_veth, "bridge port")
            if conf.masquerade:
                conf.masquerade.add(args, net_conf, result, sandbox, undo)
            if conf.is_gateway:  # last: other attachments share the bridge, so an earlier failure must not change it
                gateway_link = ensure_gateways(host, bridge, host_veth, conf, result, undo)
                if gateway_link is not bridge:
                    gateway_interface = veth.result_interface(net_conf, gateway_link)
                    result = replace(result, interfaces=(*result.interfaces, gateway_interface))
            bridge_nf_call.ensure(conf)
            mtu.ensure_bridge_mtu(host, bridge, bridge_mtu)
            if conf.ipam_type:
                sandbox.announce(container_veth)
        return replace(result, dns=conf.dns or result.dns)


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the container's interface and the attachment's rules, then releases its addresses.

    Missing objects count as deleted. If the interface cannot be deleted, its addresses stay reserved because they are
    still in use. Otherwise all steps run, and failures are reported at the end. DEL looks for rules of every option,
    even if the configuration no longer has it; that takes about 0.3 ms and starts no process.
    """
    policy.release_lease(args, net_conf)
    with Socket() as host:
        other_addresses = veth.delete_attachment_veth(args, net_conf, host, bridge_conf.name_for_del(net_conf))
    run_all(
        *masquerade_options.removal_steps(args, net_conf, other_addresses, _mac_spoof_removal_step(args, net_conf)),
        partial(policy.release, args, net_conf),
    )


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks that the attachment matches prevResult, and has the IPAM plugin check the addresses.

    prevResult, not the configuration, is the expected state: later plugins of the list may have changed the interface.
    """
    conf = bridge_conf.parse(args, net_conf)
    prev_result = net_conf.required_prev_result()
    with Netns(args.netns) as namespace, Socket() as host:
        delegate.run_ipam(args, net_conf)
        check_attachment(args, net_conf.name, conf, prev_result, namespace, host)
    if conf.masquerade:
        conf.masquerade.check(args, net_conf, prev_result)
    if conf.network_policy:
        policy.check(args, net_conf)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the rules of attachments that are not in `valid`, and has IPAM release their addresses.

    Links need no removal: the kernel deletes them with their network namespaces. Rules without proof that they belong
    to this network stay.
    """
    rules = [
        *masquerade_backend.gc_steps(net_conf.name, valid),
        lambda socket: mac_spoof.gc(socket, net_conf.name, valid),
    ]
    run_all(
        partial(masquerade_backend.gc_legacy, net_conf.name, valid),
        partial(nft.run_steps, rules),
        partial(policy.gc, args, net_conf, valid),
    )


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD would succeed: configuration, the bridge's name, kernel features, IPAM.

    Raises CniError(50), CniError(51).
    """
    run_status_checks(partial(_refuse_unavailable, args, net_conf), partial(delegate.run_ipam, args, net_conf))


def cmd_repair(args: CmdArgs, net_conf: NetConf) -> None:
    """Restores rules that a flush of the packet filter deleted, and settings of the host that were changed."""
    repair(args, net_conf, bridge_conf.parse(args, net_conf), net_conf.required_prev_result())


def cmd_remove_rules(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes the attachment's rules, for `podwire repair`; interface and addresses stay (skel.Plugin)."""
    run_all(
        partial(masquerade_options.remove_rules, args, net_conf, _mac_spoof_removal_step(args, net_conf)),
        partial(policy.remove_rules, args, net_conf),
    )


PLUGIN = Plugin(
    "bridge",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=bridge_conf.parse,
    keys=bridge_conf.KEYS,
    cmd_repair=cmd_repair,
    cmd_remove_rules=cmd_remove_rules,
)


def _refuse_unavailable(args: CmdArgs, net_conf: NetConf) -> None:
    """Raises CniError when ADD would fail for a reason that does not depend on the container."""
    conf = bridge_conf.parse(replace(args, args=""), net_conf)
    with Socket() as host:
        modules.refuse_missing_links(host, "veth")
        gateway_link = None
        bridge = bridge_device.get(host, conf.bridge)
        bridge_conf.refuse_long_names(bridge.name if bridge else "", conf)
        if bridge is not None:
            vlan.get_required_filtering(host, bridge, conf.vlans)  # raises if VLANs are configured but do not work
            veth.refuse_full_bridge(host, bridge)
            gateway_link = get_gateway_link(host, bridge, conf)
            if conf.is_gateway and gateway_link and not conf.force_address:
                bridge_device.refuse_conflict(host, gateway_link, delegate.gateways(args, net_conf))
        else:
            modules.refuse_missing_links(host, "bridge")
            probe_create_bridge(host, conf.bridge, filtering=conf.vlans.filtering)
    bridge_nf_call.refuse_unavailable(conf)
    bridge_nf_call.refuse_bypass(conf)
    if conf.network_policy:
        policy.refuse_unavailable(BRIDGE)
    if conf.is_gateway and conf.ipam_type:
        forwarding.refuse_unavailable()
        bridge_device.refuse_disabled_ipv6(gateway_link, delegate.gateways(args, net_conf))
    if conf.masquerade:
        conf.masquerade.refuse_unavailable()
    if conf.mac_spoof_check and (problem := mac_spoof.get_problem()):
        hint = 'use another kernel, or set "macspoofchk" to false'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f'"macspoofchk" does not work on this node: {problem}', hint)


def _attach(host: Socket, namespace: Netns, ifname: str, conf: BridgeConf, undo: Undo) -> port.AttachedVeth:
    """Creates or reuses the bridge, creates the veth and attaches its host end to the bridge.

    Another ADD that created the bridge may roll back and delete it after this ADD has looked it up; then this ADD
    creates it again. A rollback does not delete a bridge that has ports.
    """
    for tries_left in reversed(range(_BRIDGE_TRIES)):
        with record.timed_step("find or create the bridge"):
            bridge = bridge_device.ensure(host, conf, undo)
        try:
            attached = port.create(host, namespace, ifname, bridge, conf, undo)
        except port.BridgeDeletedError:
            if not tries_left:
                raise
        else:
            return replace(attached, bridge=bridge_device.restore_mac(host, bridge, attached.bridge))
    raise AssertionError("unreachable")


def _allocate_addresses(args: CmdArgs, net_conf: NetConf, conf: BridgeConf, undo: Undo) -> Result:
    """Runs the IPAM plugin; returns its result with gateways and default routes, an empty one without IPAM."""
    if not conf.ipam_type:
        return Result()
    return addresses.with_gateways(delegate.add_ipam(args, net_conf, undo), conf, _CONTAINER_INDEX)


def _result(args: CmdArgs, net_conf: NetConf, ipam_result: Result, links: tuple[Link, Link, Link]) -> Result:
    """Returns the IPAM result with the interfaces of `links`: bridge, host veth, container veth."""
    bridge, host_veth, container_veth = links
    interfaces = (
        veth.result_interface(net_conf, bridge),
        veth.result_interface(net_conf, host_veth),
        veth.result_interface(net_conf, container_veth, args.netns),
    )
    return replace(ipam_result, interfaces=interfaces)


def _add_mac_spoof_check(args: CmdArgs, net_conf: NetConf, host_veth: Link, container_veth: Link, undo: Undo) -> None:
    undo.push("remove the MAC spoof check", partial(nft.run_steps, [_mac_spoof_removal_step(args, net_conf)]))
    mac_spoof.add_rules(net_conf.name, args.container_id, args.ifname, host_veth.name, container_veth.mac_bytes)


def _mac_spoof_removal_step(args: CmdArgs, net_conf: NetConf) -> Callable[[nft.NftSocket], None]:
    """Returns the step that removes the attachment's MAC spoof check."""
    return lambda socket: mac_spoof.remove_rules(socket, net_conf.name, args.container_id, args.ifname)


def _drop_waiting_packets(host: Socket, bridge: Link, conf: BridgeConf, result: Result) -> None:
    """Drops packets that wait on the host for the pod's MAC address: they were forwarded before its policies held."""
    if gateway_link := get_gateway_link(host, bridge, conf):
        host.change(*(neighbour.delete_request(gateway_link, ip.address.ip) for ip in result.ips))


def _bring_up(sandbox: Sandbox, container_veth: Link, conf: BridgeConf, result: Result) -> None:
    if conf.ipam_type:
        # The node redirects a pod to another subnet of its bridge, such as a block of a pool. A redirect outlives the
        # move of that subnet to another node.
        sandbox.configure(container_veth, result, dad=conf.dad, redirects=not conf.is_gateway)
    elif not conf.container_interface_down:
        sandbox.socket.change(link.set_request(container_veth, up=True))
