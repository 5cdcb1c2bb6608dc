"""The bridge device: created or reused, with its gateway addresses.

One rule: other attachments share the bridge, so its state is only completed, never removed, except by the ADD that
created it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from ipaddress import IPv4Interface, IPv6Interface
from itertools import starmap
from socket import AF_INET, AF_INET6, AF_UNSPEC

from attachment import forwarding
from cni.address import Address, Interface, format_mac, with_prefix
from cni.errors import CniError, Code, invalid_conf
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

    def __init__(self, existing: Link) -> None:
        super().__init__(
            Code.INVALID_NETWORK_CONFIG,
            f'"{existing.name}" already exists but is not a bridge',
            f'it is {existing.kind or "another kind of interface"}; set "bridge" to another name',
        )


def get(host: Socket, name: str) -> Link | None:
    """Returns the bridge called `name`, None when there is no such link; raises NotABridgeError, KernelError."""
    (existing,) = link.get(host, link.by_name_request(name))
    if existing is not None and existing.kind != "bridge":
        raise NotABridgeError(existing)
    return existing


def ensure(host: Socket, conf: BridgeConf, undo: Undo) -> Link:
    """Creates the bridge if it does not exist, sets it up, in promiscuous mode if configured, and returns it.

    Raises CniError(7) when the name belongs to another kind of link, KernelError.
    """
    try:
        bridge = get(host, conf.bridge) or _create(host, conf, undo)
    except NotABridgeError as error:
        raise error.prefixed(f'failed to create bridge "{conf.bridge}": ') from error
    promisc = bool(bridge.flags & link.IFF_PROMISC)
    if not bridge.is_up or conf.promisc > promisc:
        host.change(link.set_request(bridge, up=True, promisc=True if conf.promisc else None))
    sysctl.try_write(f"ipv6/conf/{conf.bridge}/accept_ra", "0")
    return bridge


def _create(host: Socket, conf: BridgeConf, undo: Undo) -> Link:
    """Creates the bridge unless another ADD has just done so; only the ADD that created it rolls it back."""
    mac = link.random_mac()
    undo.push(f'delete bridge "{conf.bridge}"', lambda: _delete_unused(host, conf.bridge, mac))
    try:
        host.change(link.create_bridge_request(conf.bridge, mac, conf.mtu, vlan_filtering=conf.vlans.filtering))
    except KernelError as error:
        if error.errno == errno.EOPNOTSUPP and conf.vlans.filtering:
            raise NoFilteringError(conf.bridge) from error
        if error.errno != errno.EEXIST:
            raise
    created = get(host, conf.bridge)
    if created is None:
        raise CniError(
            Code.TRY_AGAIN_LATER,
            f'failed to create bridge "{conf.bridge}": it vanished again',
            "something else deleted it",
        )
    return created


def ensure_mac(host: Socket, before: Link, after: Link) -> Link:
    """Makes the bridge keep its MAC; `before` and `after` describe it before and after a port was added. Returns it.

    A bridge whose MAC was never set takes the lowest MAC of its ports, so its neighbours would lose it with every
    attachment. Writing the MAC back fixes it. A bridge without ports may have had no MAC to write back: it keeps that
    of `after`. Raises KernelError.
    """
    if after.mac == before.mac:
        return after
    keep = before if before.mac.strip("0:") else after
    host.change(link.set_request(after, mac=keep.mac_bytes))
    return after._replace(mac=keep.mac)


def add_gateways(host: Socket, bridge: Link, conf: BridgeConf, result: Result) -> None:
    """Adds the gateway of every address of `result` to the bridge, and enables forwarding.

    Unless "enabledad" is set, IPv6 gateways skip duplicate address detection: during its two seconds a gateway answers
    no neighbour solicitation, and the first pod of a node would wait that long for its first packet.
    If one gateway conflicts, nothing is changed. Raises CniError(7) for a conflicting address, KernelError.
    """
    gateways = [gateway for ip in result.ips if (gateway := gateway_on_bridge(ip)) is not None]
    requests = _address_requests(host, bridge, gateways, conf)
    for version in dict.fromkeys(gateway.version for gateway, _ in gateways):
        forwarding.enable(version)
    if requests:
        # Setting the MAC makes the bridge keep it, as with the reference plugin; otherwise it follows its ports.
        requests.append(link.set_request(bridge, mac=bridge.mac_bytes))
        try:
            host.change(*requests)
        except KernelError as error:
            failure = error.prefixed("failed to set bridge addr: ")
            if error.errno == errno.EACCES:
                off = f"ipv6/conf/{bridge.name}/disable_ipv6"
                failure = CniError(failure.code, failure.msg, f"IPv6 is switched off there: {sysctl.command(off, '0')}")
            raise failure from error


def refuse_conflict(host: Socket, gateway: Link, sets: Iterable[Iterable[Interface]]) -> None:
    """Raises CniError(7) when every gateway of a range set conflicts with the addresses of `gateway`, KernelError.

    Invalid ranges are ignored here: IPAM's own STATUS reports them.
    """
    existing = [item.address for item in address.list_on_link(host, gateway)]
    try:
        conflict = next(filter(None, (_first_conflict(candidates, existing) for candidates in sets)), None)
    except CniError:
        return
    if conflict:
        raise _conflict_error(host, gateway, *conflict, attachment_ports=0)


def gateway_on_bridge(ip: IPConfig) -> tuple[Address, int] | None:
    """Returns the gateway address for `ip` and its prefix length; None if `ip` has no gateway.

    Raises CniError(7) for a gateway of the other address family.
    """
    if ip.gateway is None:
        return None
    if ip.gateway.version != ip.address.version:
        raise invalid_conf(
            f"gateway {ip.gateway} of address {ip.address} is of the other address family",
            "correct the gateway in the IPAM configuration",
        )
    return ip.gateway, ip.address.network.prefixlen


def _delete_unused(host: Socket, name: str, mac: bytes) -> None:
    """Deletes the bridge that this ADD created, identified by its MAC, unless it has ports by now."""
    (bridge,) = link.get(host, link.by_name_request(name))
    if bridge and bridge.mac == format_mac(mac) and not any(True for _ in link.list_ports(host, bridge.index)):
        host.change(link.delete_request(bridge))


def _address_requests(
    host: Socket, bridge: Link, gateways: list[tuple[Address, int]], conf: BridgeConf
) -> list[Request]:
    """Returns the requests, in order, that give the bridge all `gateways`; reads its existing addresses."""
    if not gateways:
        return []
    versions = {gateway.version for gateway, _ in gateways}
    family = AF_UNSPEC if len(versions) > 1 else _FAMILIES[versions.pop()]
    assigned = address.list_on_link(host, bridge, family=family)
    existing_keys = address.keys(assigned)
    if all((gateway.packed, prefix_length) in existing_keys for gateway, prefix_length in gateways):
        return []
    existing = [item.address for item in assigned]
    requests = []
    for gateway in starmap(with_prefix, gateways):
        conflicting = _conflicts(gateway, existing)
        if conflicting and not conf.force_address:
            raise _conflict_error(host, bridge, gateway, conflicting[0], attachment_ports=1)
        for other in conflicting:
            existing.remove(other)
            requests.append(address.remove_request(bridge, other))
        if gateway not in existing:
            existing.append(gateway)
            requests.append(address.add_request(bridge, gateway, exists_ok=True, dad=conf.dad))
    return requests


def _conflict_error(
    host: Socket, bridge: Link, gateway: Interface, other: Interface, *, attachment_ports: int
) -> CniError:
    """Returns the error for the address `other`, which conflicts with `gateway`; counts the bridge's ports.

    `attachment_ports` is how many of them belong to this attachment. The address of a VLAN's gateway interface always
    counts as in use.
    """
    ports = link.count_ports(host, bridge.index) - attachment_ports
    if bridge.kind == "bridge" and ports <= 0:
        details = f'ip address del {other} dev "{bridge.name}" # no port of it is in use'
    else:
        use = "" if bridge.kind != "bridge" else f", and {ports} port{' is' if ports == 1 else 's are'} in use"
        details = (
            f'"{bridge.name}" has {other}{use}; give the network the subnet of that address, or set "bridge" to '
            'another name; "forceAddress" replaces it, and running pods lose their gateway'
        )
    return invalid_conf(
        f'failed to set bridge addr: "{bridge.name}" already has an IP address different from {gateway}',
        details,
    )


def _first_conflict(candidates: Iterable[Interface], existing: list[Interface]) -> tuple[Interface, Interface] | None:
    """Returns the first candidate and an address that conflicts with it; None if any candidate has no conflict."""
    first = None
    for gateway in candidates:
        conflicting = _conflicts(gateway, existing)
        if not conflicting:
            return None
        first = first or (gateway, conflicting[0])
    return first


def _conflicts(gateway: Interface, existing: list[Interface]) -> list[Interface]:
    """Returns the existing addresses that conflict with `gateway`; none if it is one of them."""
    return [] if gateway in existing else [other for other in existing if _is_conflict(gateway, other)]


def _is_conflict(gateway: Interface, other: Interface) -> bool:
    """Returns whether the two cannot be on one bridge: two IPv4 addresses, or IPv6 addresses of overlapping subnets."""
    if isinstance(gateway, IPv4Interface):
        return isinstance(other, IPv4Interface)
    return isinstance(other, IPv6Interface) and gateway.network.overlaps(other.network)
