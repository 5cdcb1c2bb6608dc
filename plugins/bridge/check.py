"""CHECK: what is compared of an attachment, and the words for what is wrong.

One rule: prevResult is the truth, as later plugins may have changed the interface; other attachments coming and going
change nothing.
"""

from __future__ import annotations

from cni.args import CmdArgs
from cni.errors import CniError, Code
from cni.result import Interface, Result
from kernel import address, link
from kernel.configure import Sandbox, check
from kernel.link import Link
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.bridge.conf import BridgeConf
from plugins.bridge.switch import gateway_on_bridge


def check_attachment(args: CmdArgs, conf: BridgeConf, prev_result: Result, namespace: Netns, host: Socket) -> None:
    """Checks bridge, host end, sandbox end, addresses and routes; raises CniError(999), KernelError."""
    listed = _container(args, prev_result)
    bridge = _check_bridge(conf, prev_result, host)
    with Sandbox(namespace, args.ifname) as sandbox:
        inside = _check_inside(listed, conf, sandbox)
        outside = _check_outside(inside, bridge, prev_result, host, namespace)
        _check_port(conf, outside, host)
        check(sandbox, inside, prev_result)
    if conf.is_gateway:
        _check_gateways(prev_result, bridge, host)


def _container(args: CmdArgs, prev_result: Result) -> Interface:
    for item in prev_result.interfaces:
        if item.name == args.ifname and item.sandbox:
            if item.sandbox != args.netns:
                raise _wrong(f"Sandbox in prevResult {item.sandbox} doesn't match configured netns: {args.netns}")
            return item
    raise _wrong(f"Interface name {args.ifname} not found in prevResult")


def _check_bridge(conf: BridgeConf, prev_result: Result, host: Socket) -> Link:
    listed = next((item for item in prev_result.interfaces if item.name == conf.bridge and not item.sandbox), None)
    if listed is None:
        raise _wrong(f'prevResult has no bridge "{conf.bridge}" on the host')
    (found,) = link.get(host, link.by_name(conf.bridge))
    if found is None:
        raise _wrong(f"Interface name {conf.bridge} not found")
    if found.kind != "bridge":
        raise _wrong(f"Interface {conf.bridge} in prevResult is not a bridge")
    # Without a gateway address the reference lets the bridge's address follow its ports.
    if conf.is_gateway and listed.mac and found.mac != listed.mac:
        raise _wrong(f"Bridge interface {conf.bridge} Mac doesn't match: {listed.mac}", f"it is {found.mac}")
    if not found.is_up:
        raise _wrong(f"Bridge interface {conf.bridge} is down")
    if bool(found.flags & link.IFF_PROMISC) != conf.promisc:
        raise _wrong(f"Bridge interface {conf.bridge} configured Promisc Mode {conf.promisc} doesn't match its state")
    return found


def _check_inside(listed: Interface, conf: BridgeConf, sandbox: Sandbox) -> Link:
    inside = sandbox.find()
    if inside is None:
        raise _wrong(f"Container interface {sandbox.ifname} not found", f"in {sandbox.path}")
    if inside.kind != "veth":
        raise _wrong(f"Container interface {sandbox.ifname} is not of type veth", f"it is {inside.kind or 'unknown'}")
    if listed.mac and inside.mac != listed.mac:
        raise _wrong(f"Interface {sandbox.ifname} Mac doesn't match: {listed.mac}", f"it is {inside.mac}")
    if inside.is_up == conf.container_interface_down:
        raise _wrong(f"Container interface {sandbox.ifname} is {'up' if inside.is_up else 'down'}")
    return inside


def _check_outside(inside: Link, bridge: Link, prev_result: Result, host: Socket, namespace: Netns) -> Link:
    """Finds the other end on the host; it must be a port of the bridge and be listed with its address."""
    outside = link.other_end(host, inside, namespace)
    if outside is None:
        raise _wrong(f"CNI veth created for bridge {bridge.name} was not found")
    if outside.master != bridge.index:
        raise _wrong(f"CNI veth created for bridge {bridge.name} was not found", f'"{outside.name}" is not its port')
    listed = next((item for item in prev_result.interfaces if item.name == outside.name and not item.sandbox), None)
    if listed is None:
        raise _wrong(
            f"CNI veth created for bridge {bridge.name} was not found", f'"{outside.name}" is not in prevResult'
        )
    if listed.mac and outside.mac != listed.mac:
        raise _wrong(f"Interface {outside.name} Mac doesn't match: {listed.mac} not found", f"it is {outside.mac}")
    if not outside.is_up:
        raise _wrong(f"Interface {outside.name} is down")
    return outside


def _check_port(conf: BridgeConf, outside: Link, host: Socket) -> None:
    if not conf.hairpin and not conf.isolated:
        return
    port = link.port(host, outside)
    if conf.hairpin and not port.hairpin:
        raise _wrong(f"Interface {outside.name} has lost hairpin mode")
    if conf.isolated and not port.isolated:
        raise _wrong(f"Interface {outside.name} has lost port isolation")


def _check_gateways(prev_result: Result, bridge: Link, host: Socket) -> None:
    present = {assigned.address for assigned in address.on_link(host, bridge)}
    for ip in prev_result.ips:
        if ip.gateway and gateway_on_bridge(ip) not in present:
            raise _wrong(f"Bridge interface {bridge.name} has lost the gateway address {ip.gateway}")


def _wrong(msg: str, details: str = "") -> CniError:
    return CniError(Code.INTERNAL, msg, details)
