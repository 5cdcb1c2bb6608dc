"""The bridge device: created or reused, with its gateway addresses.

Other attachments share the bridge, so ADD adds what the bridge lacks and removes nothing, except, with "forceAddress",
addresses that conflict with the gateways. A failed ADD deletes the bridge if that ADD created it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice, starmap
from socket import AF_INET, AF_INET6, AF_UNSPEC

from attachment import forwarding
from cni.address import Address, Cidr, format_mac, with_prefix
from cni.errors import CniError, Code, internal, invalid_conf
from cni.result import Result, Route
from kernel import address, link, route, sysctl
from kernel.errors import KernelError
from kernel.link import Link
from kernel.route import SCOPE_LINK
from kernel.rtnl import Request, Socket
from kernel.vlan import NoFilteringError
from plugins.bridge.addresses import distant_gateways, gateway_and_prefix, is_assigned, is_conflict
from plugins.bridge.conf import BridgeConf, refuse_long_names
from process.undo import Undo

_FAMILIES = {4: int(AF_INET), 6: int(AF_INET6)}


class NotABridgeError(CniError):
    """A link of another kind has the bridge's name."""

    def __init__(self, existing: Link) -> None:
        super().__init__(
            Code.INVALID_NETWORK_CONFIG,
            f'"{existing.name}" already exists but is not a bridge',
            f'it is {existing.kind or "another kind of interface"}; set "bridge" to another name',
        )


def get(host: Socket, name: str) -> Link | None:
    """Returns the bridge with a name or altname, None when there is no such link.

    Raises KernelError, NotABridgeError.
    """
    (existing,) = link.get(host, link.by_name_request(name))
    if existing is not None and existing.kind != "bridge":
        raise NotABridgeError(existing)
    return existing


def ensure(host: Socket, conf: BridgeConf, undo: Undo) -> Link:
    """Creates the bridge if it does not exist, brings it up, in promiscuous mode if configured, and returns it.

    Raises KernelError, CniError(7) for a name that is too long, and NotABridgeError when a link of another kind has its
    name.
    """
    try:
        existing = get(host, conf.bridge)
        refuse_long_names(existing.name if existing else "", conf)
        bridge = existing or _create(host, conf, undo)
    except NotABridgeError as error:
        raise error.prefixed(f'failed to create bridge "{conf.bridge}": ') from error
    is_promisc = bool(bridge.flags & link.IFF_PROMISC)
    if not bridge.is_up or (conf.promisc and not is_promisc):
        host.change(link.set_request(bridge, up=True, promisc=True if conf.promisc else None))
    sysctl.try_write(f"ipv6/conf/{bridge.name}/accept_ra", "0")
    return bridge


def _create(host: Socket, conf: BridgeConf, undo: Undo) -> Link:
    """Creates the bridge unless another ADD has just created it; a failed ADD deletes only the bridge it created."""
    mac = link.random_mac()
    undo.push(f'delete bridge "{conf.bridge}"', lambda: _delete_unused(host, conf.bridge, mac))
    try:
        host.change(link.create_bridge_request(conf.bridge, mac, conf.mtu, vlan_filtering=conf.vlans.filtering))
        disable_dad(conf.bridge, conf)
    except KernelError as error:
        if error.errno == errno.EOPNOTSUPP and conf.vlans.filtering:
            raise NoFilteringError(conf.bridge) from error
        if error.errno != errno.EEXIST:
            raise
    created = get(host, conf.bridge)
    if created is None:
        raise CniError(
            Code.TRY_AGAIN_LATER,
            f'failed to create bridge "{conf.bridge}": it was deleted during this ADD',
            "another ADD that failed, or another program, deleted it; try again",
        )
    return created


def disable_dad(name: str, conf: BridgeConf) -> None:
    """Disables IPv6 duplicate address detection on a new gateway link, unless "enabledad" is set.

    The kernel gives the link a link-local address when the first pod's port comes up, and solicits the pods from that
    address. It cannot use the address before the detection ends, two seconds later: until then no packet reaches a pod.
    """
    if conf.is_gateway and not conf.dad:
        sysctl.try_write(f"ipv6/conf/{name}/accept_dad", "0")


def restore_mac(host: Socket, before: Link, after: Link) -> Link:
    """Sets the MAC address that the bridge had before a port was added, if the port changed it; returns the bridge.

    `before` and `after` are the bridge before and after the port was added. Until its MAC address is set explicitly, a
    bridge uses the lowest one of its ports. So a new port may change it, and neighbours would still send to the former
    address. A bridge that never had a port may have no MAC address before: then the one that it has after is set, and
    no later port changes it. Raises KernelError.
    """
    if after.mac == before.mac:
        return after
    had_mac = bool(before.mac.strip("0:"))
    source = before if had_mac else after
    host.change(link.set_request(after, mac=source.mac_bytes))
    return after._replace(mac=source.mac)


def add_gateways(host: Socket, gateway_link: Link, conf: BridgeConf, result: Result) -> None:
    """Adds the gateway of every address in `result` to `gateway_link`, and enables forwarding.

    `gateway_link` is the bridge, or the gateway interface of a VLAN. Unless "enabledad" is set, IPv6 gateways skip
    duplicate address detection. It takes two seconds, in which the gateway answers no neighbour solicitation, and the
    first pod of a node would wait that long for its first packet. A subnet that does not contain its gateway, such as
    the second block of a pool, gets a route. The source address of that route is the gateway, unless it is a link-local
    IPv6 address: few programs can answer a packet from such an address. If one gateway conflicts with an existing
    address, nothing is changed. Raises KernelError, and CniError(7) for a conflict.
    """
    gateways = [pair for ip in result.ips if (pair := gateway_and_prefix(ip)) is not None]
    requests = _address_requests(host, gateway_link, gateways, conf)
    for version in dict.fromkeys(gateway.version for gateway, _ in gateways):
        forwarding.enable(version)
    if requests:
        # As the reference plugin does, set the MAC address that the link has now: otherwise a bridge follows its ports.
        requests.append(link.set_request(gateway_link, mac=gateway_link.mac_bytes))
    for subnet, gateway in distant_gateways(result.ips).items():
        to_subnet = Route(with_prefix(subnet.network_address, subnet.prefixlen), scope=SCOPE_LINK)
        source = None if gateway.version == 6 and gateway.is_link_local else gateway
        requests.append(route.add_request(gateway_link, to_subnet, None, source=source, exists_ok=True))
    if requests:
        try:
            host.change(*requests)
        except KernelError as error:
            failure = error.prefixed("failed to set bridge addr: ")
            if error.errno == errno.EACCES:
                name = gateway_link.name
                details = f'IPv6 is disabled on "{name}"; enable it: {_enable_ipv6_command(name)}'
                failure = CniError(failure.code, failure.msg, details)
            raise failure from error


def refuse_disabled_ipv6(gateway_link: Link | None, gateways_by_range_set: Iterable[Iterable[Cidr]]) -> None:
    """Raises CniError(999) if a range set is IPv6, and `gateway_link` cannot have IPv6 addresses.

    `gateway_link` is None if ADD would create it. Invalid ranges are ignored, as by refuse_conflict().
    """
    name = gateway_link.name if gateway_link else ""
    if not _is_ipv6_disabled(name or "default"):
        return
    try:
        if not any(first.version == 6 for gateways in gateways_by_range_set for first in islice(gateways, 1)):
            return
    except CniError:
        return
    where = f'"{name}"' if name else "new interfaces"
    raise internal(f"the network has IPv6 ranges, but IPv6 is disabled on {where}", _enable_ipv6_command(name))


def refuse_conflict(host: Socket, gateway_link: Link, gateways_by_range_set: Iterable[Iterable[Cidr]]) -> None:
    """Raises CniError(7) if there is a range set whose gateways all conflict with addresses of `gateway_link`.

    Invalid ranges are ignored: the IPAM plugin's STATUS reports them. Raises KernelError.
    """
    existing = [item.address for item in address.list_on_link(host, gateway_link)]
    try:
        conflict = next(
            filter(None, (_conflict_of_range_set(gateways, existing) for gateways in gateways_by_range_set)), None
        )
    except CniError:
        return
    if conflict:
        raise _conflict_error(host, gateway_link, *conflict, ignored_ports=0)


def _enable_ipv6_command(name: str) -> str:
    """Returns the command that enables IPv6 on the link `name`; for a `name` of "", on links that ADD creates.

    If the setting of new links (`default`) is the cause, a failed ADD may have created the link, and has deleted it
    then: -e makes sysctl ignore a link that does not exist.
    """
    setting = f"ipv6/conf/{name}/disable_ipv6"
    if _is_ipv6_disabled("all"):
        return sysctl.command("ipv6/conf/all/disable_ipv6", "0")
    if not _is_ipv6_disabled("default"):
        return sysctl.command(setting, "0")
    command = sysctl.command("ipv6/conf/default/disable_ipv6", "0")
    return f"{command.replace('-w', '-e -w')} net/{setting}=0" if name else command


def _is_ipv6_disabled(name: str) -> bool:
    with suppress(FileNotFoundError):  # a kernel without IPv6
        return sysctl.get(f"ipv6/conf/{name}/disable_ipv6") == "1"
    return False


def _delete_unused(host: Socket, name: str, mac: bytes) -> None:
    """Deletes the bridge that this ADD created, recognized by its MAC address, unless it has ports by now."""
    (bridge,) = link.get(host, link.by_name_request(name))
    if bridge and bridge.mac == format_mac(mac) and not any(True for _ in link.list_ports(host, bridge.index)):
        host.change(link.delete_request(bridge))


def _address_requests(
    host: Socket, gateway_link: Link, gateways: list[tuple[Address, int]], conf: BridgeConf
) -> list[Request]:
    """Reads the addresses of `gateway_link`; returns the requests, in order, that add the missing `gateways`."""
    if not gateways:
        return []
    versions = {gateway.version for gateway, _ in gateways}
    family = AF_UNSPEC if len(versions) > 1 else _FAMILIES[versions.pop()]
    assigned = address.list_on_link(host, gateway_link, family=family)
    existing_keys = address.keys(assigned)
    gateways = [pair for pair in gateways if not is_assigned(*pair, existing_keys)]
    if not gateways:
        return []
    existing = [item.address for item in assigned]
    requests = []
    for gateway_cidr in starmap(with_prefix, gateways):
        conflicts = _conflicts_with(gateway_cidr, existing)
        if conflicts and not conf.force_address:
            raise _conflict_error(host, gateway_link, gateway_cidr, conflicts[0], ignored_ports=1)
        for other_cidr in conflicts:
            existing.remove(other_cidr)
            requests.append(address.remove_request(gateway_link, other_cidr))
        single_cidr = with_prefix(gateway_cidr.ip, gateway_cidr.max_prefixlen)
        if gateway_cidr.version == 6 and single_cidr in existing:
            # An ADD of a /128 address has added it. A link can have an IPv4 address with two prefix lengths, but not an
            # IPv6 address; with the shorter one it serves both.
            existing.remove(single_cidr)
            requests.append(address.remove_request(gateway_link, single_cidr))
        if gateway_cidr not in existing:
            existing.append(gateway_cidr)
            requests.append(address.add_request(gateway_link, gateway_cidr, exists_ok=True, dad=conf.dad))
    return requests


def _conflict_error(
    host: Socket, gateway_link: Link, gateway_cidr: Cidr, other_cidr: Cidr, *, ignored_ports: int
) -> CniError:
    """Returns the error for `other_cidr`, an existing address of `gateway_link` that conflicts with `gateway_cidr`.

    The fix depends on whether other attachments use the bridge. `ignored_ports` is the number of ports of this
    attachment: 1 in ADD, which has attached its port already; 0 in STATUS. The gateway interface of a VLAN always
    counts as used.
    """
    name, is_bridge = gateway_link.name, gateway_link.kind == "bridge"
    ports = link.count_ports(host, gateway_link.index) - ignored_ports
    if is_bridge and ports <= 0:
        details = f'ip address del {other_cidr} dev "{name}" # no other attachment uses it; "forceAddress" does that'
    else:
        use = f", and {ports} port{' is' if ports == 1 else 's are'} in use" if is_bridge else ""
        details = (
            f'"{name}" has {other_cidr}{use}; configure IPAM with the subnet of that address, or set "bridge" to '
            'another name; "forceAddress" replaces the address, and running pods lose their gateway'
        )
    msg = f'failed to set bridge addr: "{name}" already has an IP address different from {gateway_cidr}'
    return invalid_conf(msg, details)


def _conflict_of_range_set(gateways: Iterable[Cidr], existing: list[Cidr]) -> tuple[Cidr, Cidr] | None:
    """Returns the first gateway and an address that conflicts with it; None unless all gateways have conflicts."""
    first = None
    for gateway_cidr in gateways:
        conflicts = _conflicts_with(gateway_cidr, existing)
        if not conflicts:
            return None
        first = first or (gateway_cidr, conflicts[0])
    return first


def _conflicts_with(gateway_cidr: Cidr, existing: list[Cidr]) -> list[Cidr]:
    """Returns the existing addresses that conflict with a gateway; none if the gateway is one of them."""
    return [] if gateway_cidr in existing else [cidr for cidr in existing if is_conflict(gateway_cidr, cidr)]
