"""The bridge itself: made or adopted, with its gateway addresses.

One rule: what other attachments share is only ever made right, never taken away, except by the one that made it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from ipaddress import IPv4Interface, IPv6Interface
from itertools import starmap
from socket import AF_INET, AF_INET6, AF_UNSPEC

from attachment import forwarding
from cni.address import Address, Interface, format_mac, with_prefix
from cni.errors import CniError, Code
from cni.result import IPConfig, Result
from kernel import address, link, sysctl
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Request, Socket
from kernel.vlan import NoFilteringError
from plugins.bridge.conf import BridgeConf
from process.undo import Undo

_FAMILIES = {4: int(AF_INET), 6: int(AF_INET6)}


class NotABridgeError(CniError):
    """The bridge's name belongs to another kind of link."""

    def __init__(self, found: Link) -> None:
        super().__init__(
            Code.INVALID_NETWORK_CONFIG,
            f'"{found.name}" already exists but is not a bridge',
            f'it is {found.kind or "another kind of interface"}; set "bridge" to another name',
        )


def find(host: Socket, name: str) -> Link | None:
    """Returns the bridge called `name`, None when there is no such link; raises NotABridgeError, KernelError."""
    (found,) = link.get(host, link.by_name_request(name))
    if found is not None and found.kind != "bridge":
        raise NotABridgeError(found)
    return found


def ensure(host: Socket, conf: BridgeConf, undo: Undo) -> Link:
    """Returns the bridge, made if it is not there, up and as promiscuous as asked for.

    Raises CniError(7) when the name belongs to another kind of link, KernelError.
    """
    try:
        found = find(host, conf.bridge) or _create(host, conf, undo)
    except NotABridgeError as error:
        raise error.prefixed(f'failed to create bridge "{conf.bridge}": ') from error
    promisc = bool(found.flags & link.IFF_PROMISC)
    if not found.is_up or conf.promisc > promisc:
        host.change(link.set_request(found, up=True, promisc=True if conf.promisc else None))
    sysctl.try_write(f"ipv6/conf/{conf.bridge}/accept_ra", "0")
    return found


def _create(host: Socket, conf: BridgeConf, undo: Undo) -> Link:
    """Makes the bridge, unless another ADD has just done so: only the one that made it takes it away again."""
    mac = link.random_mac()
    undo.push(f'delete bridge "{conf.bridge}"', lambda: _delete_unused(host, conf.bridge, mac))
    try:
        host.change(link.create_bridge_request(conf.bridge, mac, conf.mtu, vlan_filtering=conf.vlans.filtering))
    except KernelError as error:
        if error.errno == errno.EOPNOTSUPP and conf.vlans.filtering:
            raise NoFilteringError(conf.bridge) from error
        if error.errno != errno.EEXIST:
            raise
    found = find(host, conf.bridge)
    if found is None:
        raise CniError(
            Code.TRY_AGAIN_LATER,
            f'failed to create bridge "{conf.bridge}": it vanished again',
            "something else deleted it",
        )
    return found


def settled(host: Socket, before: Link, after: Link) -> Link:
    """Returns the bridge as it is `after` a port joined, with the address it had `before`.

    A bridge that was made without an address of its own takes the lowest of its ports', and its neighbours lose it
    with every attachment; writing the address back makes it stay. An empty one may have none to write back.
    Raises KernelError.
    """
    if after.mac == before.mac:
        return after
    own = before if before.mac.strip("0:") else after
    host.change(link.set_request(after, mac=own.mac_bytes))
    return after._replace(mac=own.mac)


def add_gateways(host: Socket, bridge: Link, conf: BridgeConf, result: Result) -> None:
    """Puts the gateway address of every address of `result` on the bridge and switches forwarding on.

    An IPv6 one is used at once, unless "enabledad" is set: with duplicate address detection it answers no neighbour
    solicitation for two seconds, and the first pod of a node waits that long for its first packet.
    Nothing is changed when one of them cannot be had. Raises CniError(7) for an address in the way, KernelError.
    """
    gateways = [own for ip in result.ips if (own := gateway_on_bridge(ip)) is not None]
    requests = _plan(host, bridge, gateways, conf)
    for version in dict.fromkeys(own.version for own, _ in gateways):
        forwarding.enable(version)
    if requests:
        # The bridge keeps its MAC from now on, as with the reference: otherwise it follows its ports.
        requests.append(link.set_request(bridge, mac=bridge.mac_bytes))
        try:
            host.change(*requests)
        except KernelError as error:
            told = error.prefixed("failed to set bridge addr: ")
            if error.errno == errno.EACCES:
                off = f"ipv6/conf/{bridge.name}/disable_ipv6"
                told = CniError(told.code, told.msg, f"IPv6 is switched off there: {sysctl.command(off, '0')}")
            raise told from error


def refuse_conflict(host: Socket, gateway: Link, sets: Iterable[Iterable[Interface]]) -> None:
    """Raises CniError(7) when none of the gateways of a range set can be put on the link `gateway`, KernelError.

    Ranges that cannot be read raise nothing here: IPAM's own STATUS reports them.
    """
    present = [item.address for item in address.list_on_link(host, gateway)]
    try:
        conflict = next(filter(None, (_first_conflict(candidates, present) for candidates in sets)), None)
    except CniError:
        return
    if conflict:
        raise _conflict_error(host, gateway, *conflict, own_ports=0)


def gateway_on_bridge(ip: IPConfig) -> tuple[Address, int] | None:
    """Returns the address that the bridge must have for `ip`, and its prefix; None when it has no gateway.

    Raises CniError(7) for a gateway of the other address family.
    """
    if ip.gateway is None:
        return None
    if ip.gateway.version != ip.address.version:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f"gateway {ip.gateway} of address {ip.address} is of the other address family",
            "correct the gateway in the IPAM configuration",
        )
    return ip.gateway, ip.address.network.prefixlen


def _delete_unused(host: Socket, name: str, mac: bytes) -> None:
    """Deletes the bridge we made, known by the address we gave it, unless others have joined it meanwhile."""
    (bridge,) = link.get(host, link.by_name_request(name))
    if bridge and bridge.mac == format_mac(mac) and not any(True for _ in link.list_ports(host, bridge.index)):
        host.change(link.delete_request(bridge))


def _plan(host: Socket, bridge: Link, gateways: list[tuple[Address, int]], conf: BridgeConf) -> list[Request]:
    """Returns what must be changed for the bridge to have all `gateways`, in order."""
    if not gateways:
        return []
    versions = {own.version for own, _ in gateways}
    assigned = address.list_on_link(host, bridge, family=AF_UNSPEC if len(versions) > 1 else _FAMILIES[versions.pop()])
    found = address.keys(assigned)
    if all((own.packed, bits) in found for own, bits in gateways):
        return []
    present = [item.address for item in assigned]
    requests = []
    for own in starmap(with_prefix, gateways):
        others = _conflicts(own, present)
        if others and not conf.force_address:
            raise _conflict_error(host, bridge, own, others[0], own_ports=1)
        for other in others:
            present.remove(other)
            requests.append(address.remove_request(bridge, other))
        if own not in present:
            present.append(own)
            requests.append(address.add_request(bridge, own, exists_ok=True, dad=conf.dad))
    return requests


def _conflict_error(host: Socket, bridge: Link, own: Interface, other: Interface, *, own_ports: int) -> CniError:
    """Returns the error of an address that conflicts with the gateway `own`; `own_ports` of the bridge are this pod's.

    For the gateway interface of a VLAN the bridge's ports are not counted: its address counts as in use.
    """
    ports = link.count_ports(host, bridge.index) - own_ports
    if bridge.kind == "bridge" and ports <= 0:
        details = f'ip address del {other} dev "{bridge.name}" # no port of it is in use'
    else:
        use = "" if bridge.kind != "bridge" else f", and {ports} port{' is' if ports == 1 else 's are'} in use"
        details = (
            f'"{bridge.name}" has {other}{use}; give the network the subnet of that address, or set "bridge" to '
            'another name; "forceAddress" replaces it, and running pods lose their gateway'
        )
    return CniError(
        Code.INVALID_NETWORK_CONFIG,
        f'failed to set bridge addr: "{bridge.name}" already has an IP address different from {own}',
        details,
    )


def _first_conflict(candidates: Iterable[Interface], present: list[Interface]) -> tuple[Interface, Interface] | None:
    """Returns the first candidate and the address that conflicts with it; None when a candidate has no conflict."""
    first = None
    for own in candidates:
        others = _conflicts(own, present)
        if not others:
            return None
        first = first or (own, others[0])
    return first


def _conflicts(own: Interface, present: list[Interface]) -> list[Interface]:
    """Returns the addresses that may not stay beside the gateway `own`, none when it is there already."""
    return [] if own in present else [other for other in present if _conflict(own, other)]


def _conflict(own: Interface, other: Interface) -> bool:
    """Tells whether `other` may not stay beside `own`: any IPv4 address, an IPv6 address of an overlapping subnet."""
    if isinstance(own, IPv4Interface):
        return isinstance(other, IPv4Interface)
    return isinstance(other, IPv6Interface) and own.network.overlaps(other.network)
