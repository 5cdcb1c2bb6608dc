"""CHECK: compares the attachment with prevResult and reports the first difference.

prevResult, not the configuration, is the expected state: later plugins of the list may have changed the interface.
The state of other attachments does not matter.
"""

from __future__ import annotations

from attachment import veth
from attachment.prev_result import OTHER_ATTACHMENT_HINT, RECREATE_HINT
from attachment.sandbox import Sandbox, check_addresses_and_routes
from cni.args import CmdArgs
from cni.errors import internal
from cni.result import Interface, Result
from kernel import address, link
from kernel.link import Link
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.bridge import bridge_nf_call, mac_spoof, mtu, vlan
from plugins.bridge.addresses import gateway_and_prefix, is_assigned
from plugins.bridge.conf import BridgeConf
from plugins.bridge.gateway import check as check_gateway
from plugins.bridge.gateway import mac_hint


def check_attachment(
    args: CmdArgs, network: str, conf: BridgeConf, prev_result: Result, namespace: Netns, host: Socket
) -> None:
    """Checks the bridge, both veth ends, addresses, routes and rules; raises CniError(999), KernelError."""
    listed = veth.listed_container_interface(args, prev_result)
    with Sandbox(namespace, args.ifname) as sandbox:
        container_link = sandbox.find_link()
        peer_requests = link.local_peer_requests(container_link, namespace) if container_link else []
        bridge_message, *peer_answers = host.get(link.by_name_request(conf.bridge), *peer_requests)
        bridge = _check_bridge(conf, prev_result, bridge_message and link.from_message(bridge_message))
        container_veth = _check_container_veth(listed, conf, sandbox, container_link)
        peer = link.local_peer_from_answers(container_veth, namespace, peer_answers) if peer_answers else None
        host_veth = _check_host_veth(peer, bridge, prev_result)
        _check_port(conf, host_veth, host)
        vlan.check(host, conf, bridge, host_veth)
        gateway_link = check_gateway(host, conf, prev_result, bridge)
        mtu.check(conf, prev_result, gateway_link, host_veth, container_veth)
        check_addresses_and_routes(sandbox, container_veth, prev_result)
    if conf.mac_spoof_check:
        mac_spoof.check(network, args.container_id, args.ifname, host_veth.name, container_veth.mac_bytes)
    if conf.is_gateway:
        _check_gateway_addresses(prev_result, gateway_link, host)
    bridge_nf_call.check(conf)


def _check_bridge(conf: BridgeConf, prev_result: Result, existing: Link | None) -> Link:
    """Checks the bridge, which the configuration may refer to by an altname; returns it, raises CniError(999)."""
    name = existing.name if existing else conf.bridge
    listed = next((item for item in prev_result.interfaces if item.name == name and not item.sandbox), None)
    if listed is None:
        raise internal(f'prevResult has no bridge "{name}" on the host', OTHER_ATTACHMENT_HINT)
    if existing is None:
        raise internal(f"Interface name {name} not found", RECREATE_HINT)
    if existing.kind != "bridge":
        raise internal(
            f"Interface {name} in prevResult is not a bridge", f"it is {existing.kind or 'unknown'}; {RECREATE_HINT}"
        )
    # Without a gateway address, the reference plugin does not set the bridge's MAC address, so it follows the ports.
    if conf.is_gateway and listed.mac and existing.mac != listed.mac:
        raise internal(f"Bridge interface {name} Mac doesn't match: {listed.mac}", mac_hint(existing, listed))
    if not existing.is_up:
        raise internal(f"Bridge interface {name} is down", f'bring it up: ip link set "{name}" up')
    if bool(existing.flags & link.IFF_PROMISC) != conf.promisc:
        details = f'set it: ip link set "{name}" promisc {"on" if conf.promisc else "off"}'
        msg = f"Bridge interface {name} configured Promisc Mode {conf.promisc} doesn't match its state"
        raise internal(msg, details)
    return existing


def _check_container_veth(listed: Interface, conf: BridgeConf, sandbox: Sandbox, container_veth: Link | None) -> Link:
    if container_veth is None:
        raise internal(
            f"Container interface {sandbox.ifname} not found",
            f"the network namespace is {sandbox.path}; {RECREATE_HINT}",
        )
    if container_veth.kind != "veth":
        details = f"it is {container_veth.kind or 'unknown'}; {RECREATE_HINT}"
        raise internal(f"Container interface {sandbox.ifname} is not of type veth", details)
    if listed.mac and container_veth.mac != listed.mac:
        raise internal(
            f"Interface {sandbox.ifname} Mac doesn't match: {listed.mac}",
            f"it is {container_veth.mac}; {RECREATE_HINT}",
        )
    if container_veth.is_up == conf.container_interface_down:
        details = f'in the container: ip link set "{sandbox.ifname}" {"down" if container_veth.is_up else "up"}'
        raise internal(f"Container interface {sandbox.ifname} is {'up' if container_veth.is_up else 'down'}", details)
    return container_veth


def _check_host_veth(host_veth: Link | None, bridge: Link, prev_result: Result) -> Link:
    """Checks that the host veth is up, a port of the bridge, and as prevResult lists it; returns it.

    Raises CniError(999).
    """
    if host_veth is None:
        raise internal(
            f"CNI veth created for bridge {bridge.name} was not found", f"it is not on this host; {RECREATE_HINT}"
        )
    if host_veth.master != bridge.index:
        details = f'"{host_veth.name}" is not its port: ip link set "{host_veth.name}" master "{bridge.name}"'
        raise internal(f"CNI veth created for bridge {bridge.name} was not found", details)
    if unlisted := veth.check_host_veth(host_veth, prev_result):
        raise internal(f"CNI veth created for bridge {bridge.name} was not found", unlisted)
    return host_veth


def _check_port(conf: BridgeConf, host_veth: Link, host: Socket) -> None:
    if not conf.hairpin and not conf.isolated:
        return
    port = link.get_port_flags(host, host_veth)
    if conf.hairpin and not port.hairpin:
        raise internal(
            f"Interface {host_veth.name} has lost hairpin mode",
            f'set it: bridge link set dev "{host_veth.name}" hairpin on',
        )
    if conf.isolated and not port.isolated:
        raise internal(
            f"Interface {host_veth.name} has lost port isolation",
            f'set it: bridge link set dev "{host_veth.name}" isolated on',
        )


def _check_gateway_addresses(prev_result: Result, gateway_link: Link, host: Socket) -> None:
    existing = address.keys(address.list_on_link(host, gateway_link))
    for ip in prev_result.ips:
        gateway, prefix_length = gateway_and_prefix(ip) or (None, 0)
        if gateway is not None and not is_assigned(gateway, prefix_length, existing):
            details = f'add it: ip address add {gateway}/{prefix_length} dev "{gateway_link.name}"'
            raise internal(f"Bridge interface {gateway_link.name} has lost the gateway address {gateway}", details)
