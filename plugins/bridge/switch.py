"""The bridge itself: made or adopted, with its gateway addresses.

One rule: what other attachments share is only ever made right, never taken away, except by the one that made it.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface

from cni.address import Interface, parse_mac
from cni.errors import CniError, Code
from cni.result import Result
from cni.undo import Undo
from kernel import address, link, sysctl
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Socket
from plugins.bridge.conf import BridgeConf


def ensure(host: Socket, conf: BridgeConf, undo: Undo) -> Link:
    """Returns the bridge, made if it is not there, up and as promiscuous as asked for.

    Raises CniError(7) when the name belongs to another kind of link, KernelError.
    """
    (found,) = link.get(host, link.by_name(conf.bridge))
    if found is None:
        found = _create(host, conf, undo)
    if found.kind != "bridge":
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f'failed to create bridge "{conf.bridge}": "{conf.bridge}" already exists but is not a bridge',
            f'it is {found.kind or "another kind of interface"}; set "bridge" to another name',
        )
    promisc = bool(found.flags & link.IFF_PROMISC)
    if not found.is_up or conf.promisc > promisc:
        host.change(link.settings(found, up=True, promisc=True if conf.promisc else None))
    sysctl.attempt(f"ipv6/conf/{conf.bridge}/accept_ra", "0")
    return found


def _create(host: Socket, conf: BridgeConf, undo: Undo) -> Link:
    """Makes the bridge, unless another ADD has just done so: only the one that made it takes it away again."""
    made = True
    try:
        host.change(link.bridge(conf.bridge, link.random_mac(), conf.mtu))
    except KernelError as error:
        if error.errno != errno.EEXIST:
            raise
        made = False
    (found,) = link.get(host, link.by_name(conf.bridge))
    if found is None:
        raise CniError(Code.TRY_AGAIN_LATER, f'failed to create bridge "{conf.bridge}": it vanished again')
    if made:
        undo.push(f'delete bridge "{conf.bridge}"', lambda: _delete_unused(host, found))
    return found


def settled(host: Socket, before: Link, after: Link) -> Link:
    """Returns the bridge as it is `after` a port joined, with the address it had `before`.

    A bridge that was made without an address of its own takes the lowest of its ports', and its neighbours lose it
    with every attachment; writing the address back makes it stay. An empty one may have none to write back.
    Raises KernelError.
    """
    if after.mac == before.mac:
        return after
    mac = before.mac if before.mac.strip("0:") else after.mac
    host.change(link.settings(after, mac=parse_mac(mac)))
    return replace(after, mac=mac)


def add_gateways(host: Socket, bridge: Link, conf: BridgeConf, result: Result) -> None:
    """Puts the gateway address of every address of `result` on the bridge and switches forwarding on.

    Raises CniError(7) for an address in the way, KernelError.
    """
    for ip in result.ips:
        if ip.gateway is not None:
            prefix = ip.address.network.prefixlen
            own: Interface = type(ip.address)((ip.gateway, prefix))
            _ensure_address(host, bridge, own, force=conf.force_address)
            _enable_forwarding(own)


def _delete_unused(host: Socket, bridge: Link) -> None:
    """Deletes the bridge we made unless another attachment has joined it meanwhile."""
    if not any(True for _ in link.ports(host, bridge.index)):
        host.change(link.deletion(bridge))


def _ensure_address(host: Socket, bridge: Link, own: Interface, *, force: bool) -> None:
    present = [assigned.address for assigned in address.on_link(host, bridge)]
    if own in present:
        return
    for other in present:
        if not _conflict(own, other):
            continue
        if not force:
            ports = sum(1 for _ in link.ports(host, bridge.index))
            raise CniError(
                Code.INVALID_NETWORK_CONFIG,
                f'failed to set bridge addr: "{bridge.name}" already has an IP address different from {own}',
                f"it has {other} and {ports} port(s); use another bridge, or forceAddress, or remove that address",
            )
        host.change(address.removal(bridge, other))
    try:
        # The bridge keeps its MAC from now on, as with the reference: otherwise it follows its ports.
        host.change(address.addition(bridge, own, exists_ok=True), link.settings(bridge, mac=parse_mac(bridge.mac)))
    except KernelError as error:
        raise CniError(Code.INTERNAL, f"failed to set bridge addr: could not {error}") from error


def _conflict(own: Interface, other: Interface) -> bool:
    """Tells whether `other` may not stay beside `own`: any IPv4 address, an IPv6 address of an overlapping subnet."""
    if isinstance(own, IPv4Interface):
        return isinstance(other, IPv4Interface)
    return isinstance(other, IPv6Interface) and own.network.overlaps(other.network)


def _enable_forwarding(own: Interface) -> None:
    name = "ipv4/ip_forward" if isinstance(own, IPv4Interface) else "ipv6/conf/all/forwarding"
    try:
        sysctl.ensure(name, "1")
    except OSError as error:
        raise CniError(
            Code.INTERNAL, f"failed to enable forwarding: {error.filename}: {error.strerror}", "set it on the node"
        ) from error
