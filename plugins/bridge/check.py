"""CHECK: what is compared of an attachment, and the words for what is wrong.

One rule: prevResult is the truth, as later plugins may have changed the interface; other attachments coming and going
change nothing.
"""

from __future__ import annotations

from attachment import veth
from attachment.sandbox import Sandbox, check
from cni.args import CmdArgs
from cni.errors import CniError, Code
from cni.result import Interface, Result
from kernel import address, link
from kernel.link import Link
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.bridge import mac_spoof, mtu, netfilter, vlan
from plugins.bridge.bridge_device import gateway_on_bridge
from plugins.bridge.conf import BridgeConf
from plugins.bridge.gateway import check as check_gateway

_AGAIN = "remove the container and create it again"
_OTHER_RESULT = "the runtime gave the result of another attachment, or the configuration was changed since"


def check_attachment(
    args: CmdArgs, network: str, conf: BridgeConf, prev_result: Result, namespace: Netns, host: Socket
) -> None:
    """Checks bridge, host end, sandbox end, addresses and routes; raises CniError(999), KernelError."""
    listed = veth.listed_container_interface(args, prev_result)
    listed_bridge = _listed_bridge(conf, prev_result)
    with Sandbox(namespace, args.ifname) as sandbox:
        end = sandbox.find_link()
        asked = link.local_peer_requests(end, namespace) if end else []
        found, *answers = host.get(link.by_name_request(conf.bridge), *asked)
        bridge = _check_bridge(conf, listed_bridge, found and link.from_message(found))
        inside = _check_inside(listed, conf, sandbox, end)
        other = link.local_peer_from_answers(inside, namespace, answers) if answers else None
        outside = _check_outside(other, bridge, prev_result)
        _check_port(conf, outside, host)
        vlan.check(host, conf, bridge, outside)
        gateway = check_gateway(host, conf, prev_result, bridge)
        mtu.check(conf, prev_result, gateway, outside, inside)
        check(sandbox, inside, prev_result)
    if conf.mac_spoof_check:
        mac_spoof.check(network, args.container_id, args.ifname, outside.name, inside.mac_bytes)
    if conf.is_gateway:
        _check_gateways(prev_result, gateway, host)
    netfilter.check(conf)


def _listed_bridge(conf: BridgeConf, prev_result: Result) -> Interface:
    listed = next((item for item in prev_result.interfaces if item.name == conf.bridge and not item.sandbox), None)
    if listed is None:
        raise _wrong(f'prevResult has no bridge "{conf.bridge}" on the host', _OTHER_RESULT)
    return listed


def _check_bridge(conf: BridgeConf, listed: Interface, found: Link | None) -> Link:
    if found is None:
        raise _wrong(f"Interface name {conf.bridge} not found", _AGAIN)
    if found.kind != "bridge":
        raise _wrong(
            f"Interface {conf.bridge} in prevResult is not a bridge", f"it is {found.kind or 'unknown'}; {_AGAIN}"
        )
    # Without a gateway address the reference lets the bridge's address follow its ports.
    if conf.is_gateway and listed.mac and found.mac != listed.mac:
        details = f'it is {found.mac}; set it back: ip link set "{conf.bridge}" address {listed.mac}'
        raise _wrong(f"Bridge interface {conf.bridge} Mac doesn't match: {listed.mac}", details)
    if not found.is_up:
        raise _wrong(f"Bridge interface {conf.bridge} is down", f'set it up: ip link set "{conf.bridge}" up')
    if bool(found.flags & link.IFF_PROMISC) != conf.promisc:
        details = f'set it: ip link set "{conf.bridge}" promisc {"on" if conf.promisc else "off"}'
        msg = f"Bridge interface {conf.bridge} configured Promisc Mode {conf.promisc} doesn't match its state"
        raise _wrong(msg, details)
    return found


def _check_inside(listed: Interface, conf: BridgeConf, sandbox: Sandbox, inside: Link | None) -> Link:
    if inside is None:
        raise _wrong(
            f"Container interface {sandbox.ifname} not found", f"the network namespace is {sandbox.path}; {_AGAIN}"
        )
    if inside.kind != "veth":
        details = f"it is {inside.kind or 'unknown'}; {_AGAIN}"
        raise _wrong(f"Container interface {sandbox.ifname} is not of type veth", details)
    if listed.mac and inside.mac != listed.mac:
        raise _wrong(f"Interface {sandbox.ifname} Mac doesn't match: {listed.mac}", f"it is {inside.mac}; {_AGAIN}")
    if inside.is_up == conf.container_interface_down:
        details = f'in the container: ip link set "{sandbox.ifname}" {"down" if inside.is_up else "up"}'
        raise _wrong(f"Container interface {sandbox.ifname} is {'up' if inside.is_up else 'down'}", details)
    return inside


def _check_outside(outside: Link | None, bridge: Link, prev_result: Result) -> Link:
    """The other end on the host must be a port of the bridge and be listed with its address."""
    if outside is None:
        raise _wrong(f"CNI veth created for bridge {bridge.name} was not found", f"it is not on this host; {_AGAIN}")
    if outside.master != bridge.index:
        details = f'"{outside.name}" is not its port: ip link set "{outside.name}" master "{bridge.name}"'
        raise _wrong(f"CNI veth created for bridge {bridge.name} was not found", details)
    if unlisted := veth.check_host_veth(outside, prev_result):
        raise _wrong(f"CNI veth created for bridge {bridge.name} was not found", unlisted)
    return outside


def _check_port(conf: BridgeConf, outside: Link, host: Socket) -> None:
    if not conf.hairpin and not conf.isolated:
        return
    port = link.get_port_flags(host, outside)
    if conf.hairpin and not port.hairpin:
        raise _wrong(
            f"Interface {outside.name} has lost hairpin mode",
            f'set it: bridge link set dev "{outside.name}" hairpin on',
        )
    if conf.isolated and not port.isolated:
        raise _wrong(
            f"Interface {outside.name} has lost port isolation",
            f'set it: bridge link set dev "{outside.name}" isolated on',
        )


def _check_gateways(prev_result: Result, bridge: Link, host: Socket) -> None:
    present = address.keys(address.list_on_link(host, bridge))
    for ip in prev_result.ips:
        own = gateway_on_bridge(ip)
        if own is not None and (own[0].packed, own[1]) not in present:
            details = f'put it back: ip address add {own[0]}/{own[1]} dev "{bridge.name}"'
            raise _wrong(f"Bridge interface {bridge.name} has lost the gateway address {ip.gateway}", details)


def _wrong(msg: str, details: str) -> CniError:
    return CniError(Code.INTERNAL, msg, details)
