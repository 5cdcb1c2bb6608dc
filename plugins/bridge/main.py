"""The verbs of bridge.

One rule: each change is followed by its undo, and DEL takes away everything whatever is already gone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attachment import forwarding, veth
from attachment.masquerade import backend, options
from attachment.sandbox import Sandbox
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code, run_all, run_status_checks
from cni.result import Result
from cni.skel import Plugin
from kernel import link
from kernel.link import Link
from kernel.netfilter import nft
from kernel.netns import Netns
from kernel.rtnl import Socket
from kernel.vlan import probe_create_bridge
from plugins.bridge import addresses, bridge_device, mac_spoof, mtu, netfilter, port, vlan
from plugins.bridge import conf as bridge_conf
from plugins.bridge.check import check_attachment
from plugins.bridge.conf import BridgeConf
from plugins.bridge.gateway import add_gateways, find_gateway, refuse_long_name
from plugins.bridge.repair import repair
from process import record
from process.undo import Undo
from process.values import replace

_CONTAINER = 2  # index of the sandbox's interface in the result: bridge, host end, sandbox end
_BRIDGE_TRIES = 5  # each loss takes another ADD that fails within the same millisecond


def cmd_add(args: CmdArgs, conf: NetConf) -> Result:
    """Attaches the sandbox to the bridge, with the addresses that IPAM gives.

    Nothing is left behind by a failure, except what other attachments may use by then: a bridge with ports, its
    gateway address, forwarding.
    """
    own = bridge_conf.parse(args, conf)
    conf.refuse_addressless()
    refuse_long_name(own)
    with Netns(args.netns) as namespace, Socket() as host, Undo() as undo:
        own = mtu.resolved(host, own)
        joined = _join(host, namespace, args.ifname, own, undo)
        bridge, outside = joined.bridge, joined.outside
        fitted = mtu.fitted(host, bridge, own)
        given = Result()
        if own.ipam_type:
            given = addresses.completed(delegate.add_ipam(args, conf, undo), own, _CONTAINER)
        vlan.enforce(host, bridge, joined.filtering)  # the pod's end is down until now: no frame has passed
        with Sandbox(namespace, args.ifname) as sandbox:
            inside = joined.inside or sandbox.get_link()
            result = _result(args, conf, given, (fitted, outside, inside))
            if own.mac_spoof_check:
                undo.push("remove the MAC spoof check", partial(nft.run_steps, [_unprotecting(args, conf)]))
                mac_spoof.protect(conf.name, args.container_id, args.ifname, outside.name, inside.mac_bytes)
            _bring_up(sandbox, inside, own, result)
            if not own.container_interface_down:
                veth.wait_carrier(host, outside, "bridge port")
            if own.masquerade:
                own.masquerade.add(args, conf, result, sandbox, undo)
            if own.is_gateway:  # last, since others share the bridge: what failed before has not touched it
                gateway = add_gateways(host, bridge, outside, own, result, undo)
                if gateway is not bridge:
                    result = replace(result, interfaces=(*result.interfaces, veth.result_interface(conf, gateway)))
            netfilter.ensure(own)
            mtu.fit(host, bridge, fitted)
            if own.ipam_type:
                sandbox.announce(inside)
        return replace(result, dns=own.dns or result.dns)


def cmd_del(args: CmdArgs, conf: NetConf) -> None:
    """Deletes the sandbox's interface and the attachment's rules, then releases its addresses; gone is success.

    The addresses are kept while the interface cannot be deleted: they are still in use. Otherwise all is tried, and
    what failed is told at the end. Rules are looked for whatever is configured by now: some 0.3 ms, no process.
    """
    with Socket() as host:
        others = veth.delete_attachment_veth(args, conf, host, bridge_conf.name_for_del(conf))
    run_all(
        *options.removal_steps(args, conf, others, _unprotecting(args, conf)), partial(delegate.run_ipam, args, conf)
    )


def cmd_check(args: CmdArgs, conf: NetConf) -> None:
    """Checks that the attachment is as ADD left it, or as a later plugin says in prevResult; IPAM checks its part."""
    own = bridge_conf.parse(args, conf)
    prev_result = conf.required_prev_result()
    with Netns(args.netns) as namespace, Socket() as host:
        delegate.run_ipam(args, conf)
        check_attachment(args, conf.name, own, prev_result, namespace, host)
    if own.masquerade:
        own.masquerade.check(args, conf, prev_result)


def cmd_gc(args: CmdArgs, conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the rules of what is no listed attachment and has IPAM release its addresses.

    The links of such attachments died with their sandboxes. What cannot be proven to be this network's stays.
    """
    rules = [*backend.gc_steps(conf.name, valid), lambda socket: mac_spoof.gc(socket, conf.name, valid)]
    run_all(
        partial(backend.gc_legacy, conf.name, valid),
        partial(nft.run_steps, rules),
        partial(delegate.run_ipam, args, conf),
    )


def cmd_status(args: CmdArgs, conf: NetConf) -> None:
    """Tells whether ADD could be served: configuration, the bridge's name, what the kernel must have, IPAM.

    Raises CniError(50), CniError(51).
    """
    run_status_checks(partial(_refuse_unavailable, args, conf), partial(delegate.run_ipam, args, conf))


def cmd_repair(args: CmdArgs, conf: NetConf) -> None:
    """Makes again what a flush of the packet filter takes away, and what the host's settings have lost."""
    repair(args, conf, bridge_conf.parse(args, conf), conf.required_prev_result())


def cmd_remove_rules(args: CmdArgs, conf: NetConf) -> None:
    """Removes the attachment's rules."""
    options.remove_rules(args, conf, _unprotecting(args, conf))


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


def _refuse_unavailable(args: CmdArgs, conf: NetConf) -> None:
    """Raises CniError when ADD would fail for a reason that has nothing to do with the container."""
    own = bridge_conf.parse(replace(args, args=""), conf)
    refuse_long_name(own)
    with Socket() as host:
        bridge = bridge_device.find(host, own.bridge)
        if bridge is not None:
            vlan.filtering(host, bridge, own.vlans)
            veth.refuse_full_bridge(host, bridge)
            gateway = find_gateway(host, bridge, own)
            if own.is_gateway and gateway and not own.force_address:
                bridge_device.refuse_conflict(host, gateway, delegate.gateways(args, conf))
        else:
            probe_create_bridge(host, own.bridge, filtering=own.vlans.filtering)
    netfilter.refuse_unavailable(own)
    if own.is_gateway and own.ipam_type:
        forwarding.refuse_unavailable()
    if own.masquerade:
        own.masquerade.refuse_unavailable()
    if own.mac_spoof_check and (problem := mac_spoof.problem()):
        cure = 'use another kernel, or set "macspoofchk" to false'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f'"macspoofchk" cannot be served: {problem}', cure)


def _join(host: Socket, namespace: Netns, ifname: str, own: BridgeConf, undo: Undo) -> port.Joined:
    """Makes or adopts the bridge and joins it.

    Another ADD that fails takes away the bridge it made, perhaps between our look and our joining; the bridge is then
    made again. Once joined, it stays: it has a port.
    """
    for tries_left in reversed(range(_BRIDGE_TRIES)):
        with record.timed_step("find or make the bridge"):
            bridge = bridge_device.ensure(host, own, undo)
        try:
            joined = port.attach(host, namespace, ifname, bridge, own, undo)
        except port.BridgeVanishedError:
            if not tries_left:
                raise
        else:
            return replace(joined, bridge=bridge_device.settled(host, bridge, joined.bridge))
    raise AssertionError("unreachable")


def _result(args: CmdArgs, conf: NetConf, given: Result, links: tuple[Link, Link, Link]) -> Result:
    bridge, outside, inside = links
    told = (
        veth.result_interface(conf, bridge),
        veth.result_interface(conf, outside),
        veth.result_interface(conf, inside, args.netns),
    )
    return replace(given, interfaces=told)


def _unprotecting(args: CmdArgs, conf: NetConf) -> Callable[[nft.NftSocket], None]:
    return lambda socket: mac_spoof.unprotect(socket, conf.name, args.container_id, args.ifname)


def _bring_up(sandbox: Sandbox, inside: Link, own: BridgeConf, result: Result) -> None:
    if own.ipam_type:
        sandbox.configure(inside, result, dad=own.dad)
    elif not own.container_interface_down:
        sandbox.socket.change(link.set_request(inside, up=True))
