"""`hostAccess`: a pod on macvlan or ipvlan and its own node reach each other, which the kernel otherwise prevents.

The links on a master do not receive the packets that the master sends. So the host gets a link of the same kind on the
master, the host link, and a route through it to each address of a pod. A pod gets a route and a neighbour entry for
each address of the node on the master: the host link never answers for these addresses, or other machines on the
network would learn its MAC address for them.

A macvlan host link has a MAC address of its own, to which pods send. All ipvlan interfaces have the master's. If no
ipvlan interface has a packet's destination address, the kernel passes the packet to the master. So the master would
receive the answers to ARP requests of an ipvlan host link. Therefore that link does not use ARP: it sends all packets
to its own MAC address, which is also that of the pods.

One rule: all state is in the kernel. The routes name their attachments (attachment/host_routes.py), and the host link
is deleted with its last route. A lock on the host's namespace makes verbs change them sequentially.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha512
from typing import NamedTuple

from attachment import host_routes
from attachment.host_routes import RouteOwner
from attachment.master import MasterOptions
from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, attachment_ips
from cni.address import Address, format_mac, host_cidr
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import internal, invalid_conf
from cni.keys import BOOLEAN, Key
from cni.result import Result
from kernel import address, child_link, flock, link, neighbour, sysctl
from kernel.link import Link
from kernel.netns import Netns
from kernel.route_copy import TableRoute
from kernel.rtnl import Request, Socket
from kernel.wire import Attributes
from process import record
from process.undo import Undo

KEY = Key("hostAccess", (BOOLEAN,))
_PREFIX = "pwha"
_HOST_LINK_NAME = re.compile(f"{_PREFIX}[0-9]+")
_HOST_NETNS = "/proc/self/ns/net"
_REPAIR = "run: podwire repair"


class HostLinkKind(NamedTuple):
    """The kind of a host link ("macvlan"), its attributes (IFLA_*), and whether it has a MAC address of its own."""

    name: str
    data: Attributes
    has_mac: bool


class AccessLinks(NamedTuple):
    """The links of an attachment with `hostAccess`: the master on the host, and the pod's interface on it.

    `host` is a socket in the master's namespace, which is the host's.
    """

    host: Socket
    master: Link
    sandbox: Sandbox
    container_link: Link


def refuse_impossible(options: MasterOptions, ipam_type: str, reason: str = "") -> None:
    """Raises CniError(7) for a configuration with which the host cannot reach the pod; `reason` is the plugin's."""
    if not reason and options.in_container:
        reason = 'with "linkInContainer" the master is not on the host'
    elif not reason and not ipam_type:
        reason = 'the host needs routes to the pod\'s addresses, and without "ipam" it has none'
    if reason:
        raise invalid_conf(f'"hostAccess" is not possible: {reason}', 'remove "hostAccess", or the other setting')


def refuse_node_addresses(links: AccessLinks, args: CmdArgs, result: Result) -> None:
    """Raises CniError(7) if IPAM has allocated an address that the node has on the master; KernelError.

    Run before the pod gets the address, which it announces to the network.
    """
    pod_ips = _pod_ips(result, args)
    node_ips = _list_node_ips(links.host, links.master) if pod_ips else []
    for pod_ip in pod_ips:
        if pod_ip in node_ips:
            raise invalid_conf(
                f"the pod's address {pod_ip} is the node's on \"{links.master.name}\"",
                "exclude the node's address from IPAM's range: with host-local by rangeStart and rangeEnd",
            )


def add(kind: HostLinkKind, links: AccessLinks, args: CmdArgs, net_conf: NetConf, result: Result, undo: Undo) -> None:
    """Creates the host link unless it exists, and the routes and neighbour entries of both sides.

    A route through the same host link is replaced: an earlier attachment had the address and got no DEL, or IPAM would
    not have allocated it again. Raises CniError(11), CniError(999), KernelError.
    """
    pod_ips = _pod_ips(result, args)
    versions = {pod_ip.version for pod_ip in pod_ips}
    node_ips = [item for item in _list_node_ips(links.host, links.master) if item.version in versions]
    owner = _owner(net_conf, args)
    with record.timed_step("give the host access"), _locked():
        destinations = host_routes.destinations_of(pod_ips)
        replaced = [item for item in host_routes.list_marked(links.host) if item.dst in destinations]
        _refuse_other_links(links, [item for item in replaced if host_routes.owner_of(item) != owner])
        undo.push("remove the host's access", partial(_roll_back, owner, pod_ips, replaced))
        host_link = _ensure_host_link(kind, links)
        links.host.change(
            *host_routes.delete_requests(replaced),
            *_host_requests(host_link, pod_ips, node_ips, owner),
        )
    links.sandbox.socket.change(*_pod_requests(links.container_link, host_link, node_ips))


def remove_if_enabled(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the host's routes to an attachment, and their host links unless other routes use these.

    Deletes the routes to the addresses in prevResult, or without a valid prevResult all routes of the attachment. If it
    has none, all host links without routes are deleted: a killed verb may have created a link but no route, and
    `ip link set down` deletes routes. The rest of the configuration may be invalid. Raises CniError(11), KernelError.
    """
    if not _is_enabled(net_conf):
        return
    prev_result = net_conf.lenient_prev_result()
    pod_ips = _pod_ips(prev_result, args) if prev_result else []
    with Socket() as host, _locked():
        routes = host_routes.list_marked(host)
        deletable = _routes_of(_owner(net_conf, args), routes, pod_ips)
        if deletable:
            _delete_routes(host, deletable, [item for item in routes if item not in deletable])
        else:
            _delete_unused_links(host, routes)


def delete_neighbours_if_enabled(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the host's neighbour entries with the MAC address of the interface that DEL has deleted.

    A pod's interface also answers for the addresses of its other interfaces on the master, which would be unreachable.
    Without a MAC address in prevResult all entries are deleted: the kernel learns them again. Raises KernelError.
    """
    if not _is_enabled(net_conf):
        return
    prev_result = net_conf.lenient_prev_result()
    listed = prev_result.interfaces if prev_result else ()
    macs = {item.mac.lower() for item in listed if item.name == args.ifname and item.mac}
    with Socket() as host:
        entries = [item for item in neighbour.list_learned(host) if not macs or format_mac(item.mac) in macs]
        indexes = sorted({item.ifindex for item in entries})
        links_or_none = link.get(host, *map(link.by_index_request, indexes)) if indexes else ()
        host_links = {item.index: item for item in links_or_none if item is not None and is_host_link(item)}
        stale = [item for item in entries if item.ifindex in host_links]
        host.change(*(neighbour.delete_request(host_links[item.ifindex], item.address) for item in stale))


def repair(
    kind: HostLinkKind, links: AccessLinks, args: CmdArgs, net_conf: NetConf, prev_result: Result, undo: Undo
) -> None:
    """Restores the host's access if check() fails: creates missing objects, and deletes the pod's stale routes.

    Raises CniError(11), CniError(999), KernelError.
    """

    def restore() -> None:
        add(kind, links, args, net_conf, prev_result, undo)
        stale = _list_stale_routes(links)
        links.sandbox.socket.change(
            *host_routes.delete_requests(stale),
            *(neighbour.delete_request(links.container_link, item.dst.network_address) for item in stale),
        )

    repair_if_missing("the host's access", partial(check, links, args, prev_result), restore)


def gc(network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the routes to attachments of `network` that are not in `valid`, and all host links without routes.

    Raises CniError(11), KernelError.
    """
    valid_owners = {host_routes.compute_owner(network, item) for item in valid}
    with Socket() as host, _locked():
        routes = host_routes.list_marked(host)
        owners = [(item, host_routes.owner_of(item)) for item in routes]
        stale = [
            item for item, owner in owners if host_routes.is_of_network(owner, network) and owner not in valid_owners
        ]
        remaining = [item for item in routes if item not in stale]
        _delete_routes(host, stale, remaining)
        _delete_unused_links(host, remaining)


def check(links: AccessLinks, args: CmdArgs, prev_result: Result) -> None:
    """Checks the host link, its routes to the pod, and the pod's entries for the node; raises CniError(999)."""
    pod_ips = _pod_ips(prev_result, args)
    host_link = _find_host_link(links.host, links.master)
    if host_link is None or not host_link.is_up:
        master, name = links.master.name, _host_link_name(links.master)
        raise internal(f'The host has no access to the pods on "{master}": {name} is missing or down', _REPAIR)
    if not _reaches_pods(host_link):
        raise internal(f"The host's interface {host_link.name} uses ARP, whose answers it does not get", _REPAIR)
    present = {item.dst for item in host_routes.list_marked(links.host) if item.is_through(host_link)}
    for pod_ip in pod_ips:
        if host_cidr(pod_ip).network not in present:
            raise internal(f"The host's route to {pod_ip} through {host_link.name} is missing", _REPAIR)
    entries = neighbour.list_permanent(links.sandbox.socket, links.container_link)
    versions = {pod_ip.version for pod_ip in pod_ips}
    for node_ip in _list_node_ips(links.host, links.master):
        if node_ip.version not in versions:
            continue
        routes = links.sandbox.list_routes(node_ip.version).get(host_cidr(node_ip).network)
        if not routes or entries.get(node_ip) != host_link.mac_bytes:
            msg = f"The container's route or neighbour entry for the node's address {node_ip} is missing"
            raise internal(msg, _REPAIR)
    for item in _list_stale_routes(links):
        msg = f"The container's route to {item.dst.network_address} is stale: the node no longer has this address"
        raise internal(msg, _REPAIR)


def is_host_link(item: Link) -> bool:
    """Returns whether a link of the host is one that this module created."""
    return item.kind in ("macvlan", "ipvlan") and _HOST_LINK_NAME.fullmatch(item.name) is not None


def _list_node_ips(host: Socket, master: Link) -> list[Address]:
    """Returns the node's addresses on the master, without link-local IPv6 addresses; raises KernelError."""
    assigned = (item.address.ip for item in address.list_on_link(host, master))
    return [item for item in assigned if item.version == 4 or not item.is_link_local]


def _refuse_other_links(links: AccessLinks, routes: Iterable[TableRoute]) -> None:
    """Raises CniError(999) if one of `routes` is through another link than the master's host link; KernelError."""
    host_link = _find_host_link(links.host, links.master)
    for item in routes:
        others = set(item.indexes) - {host_link.index if host_link else 0}
        for other in link.get(links.host, *map(link.by_index_request, sorted(others))) if others else ():
            if other is not None:
                pod_ip = item.dst.network_address
                raise internal(
                    f"the host's route to {pod_ip} is through {other.name}, for a pod on another master",
                    "give one of the pods another address; if the other pod does not run any more: "
                    f"ip {'-6 ' if pod_ip.version == 6 else ''}route del {pod_ip} dev {other.name} proto 112",
                )


def _roll_back(owner: RouteOwner, pod_ips: list[Address], replaced: list[TableRoute]) -> None:
    """Deletes an attachment's routes, restores those that they replaced, and deletes host links without routes."""
    with Socket() as host, _locked():
        created = _routes_of(owner, host_routes.list_marked(host), pod_ips)
        host.change(*host_routes.delete_requests(created), *host_routes.restore_requests(replaced))
        _delete_unused_links(host, host_routes.list_marked(host))


def _ensure_host_link(kind: HostLinkKind, links: AccessLinks) -> Link:
    """Creates the host link of the master unless it exists, brings it up, and returns it.

    Raises CniError(999) for a link of this name and of another kind, KernelError.
    """
    name = _host_link_name(links.master)
    host_link = _find_host_link(links.host, links.master)
    if host_link is None:
        mac = _compute_mac(links.master) if kind.has_mac else b""
        links.host.change(child_link.create_request(kind.name, name, links.master, None, kind.data, mac=mac))
        _write_parameters(name)
        host_link = _find_host_link(links.host, links.master)
        if record.is_dry_run():
            host_link = links.master._replace(name=name, kind=kind.name, flags=0)
    if host_link is None or host_link.kind != kind.name:
        state = f"is {host_link.kind}" if host_link else "was deleted"
        raise internal(f'the host\'s interface "{name}" {state}, not {kind.name}', f"delete it: ip link del {name}")
    if not host_link.is_up:
        links.host.change(link.set_request(host_link, up=True))
    # In mode l2 the kernel clears the flag when the link comes up.
    if not kind.has_mac and not (host_link.is_up and _reaches_pods(host_link)):
        links.host.change(link.set_request(host_link, noarp=True))
    return host_link


def _reaches_pods(host_link: Link) -> bool:
    """Returns whether the host can send through the link: an ipvlan link that uses ARP gets no answers."""
    return host_link.kind != "ipvlan" or bool(host_link.flags & link.IFF_NOARP)


def _write_parameters(name: str) -> None:
    """Sets sysctl parameters of a new host link, before it comes up, so that it answers for no address but its own."""
    sysctl.try_write(f"ipv4/conf/{name}/arp_ignore", "8")
    sysctl.try_write(f"ipv6/conf/{name}/accept_ra", "0")
    # Its only IPv6 address is link-local and follows from its MAC address; without the wait it is usable at once.
    sysctl.try_write(f"ipv6/conf/{name}/accept_dad", "0")
    sysctl.try_write(f"ipv6/conf/{name}/disable_ipv6", "0")


def _host_requests(
    host_link: Link, pod_ips: Iterable[Address], node_ips: list[Address], owner: RouteOwner
) -> Iterator[Request]:
    """Yields requests that route the pod's addresses through the host link, with the node's address as source."""
    for pod_ip in pod_ips:
        source = next((node_ip for node_ip in node_ips if node_ip.version == pod_ip.version), None)
        yield host_routes.add_request(host_link, pod_ip, source, owner)


def _pod_requests(container_link: Link, host_link: Link, node_ips: Iterable[Address]) -> Iterator[Request]:
    """Yields requests that make the pod send packets for the node's addresses to the host link's MAC address."""
    for node_ip in node_ips:
        yield host_routes.add_request(container_link, node_ip)
        yield neighbour.set_request(container_link, node_ip, host_link.mac_bytes)


def _list_stale_routes(links: AccessLinks) -> list[TableRoute]:
    """Returns the pod's routes to addresses that the node no longer has on the master; raises KernelError."""
    node_ips = host_routes.destinations_of(_list_node_ips(links.host, links.master))
    listed = host_routes.list_marked(links.sandbox.socket)
    return [item for item in listed if item.is_through(links.container_link) and item.dst not in node_ips]


def _routes_of(owner: RouteOwner, routes: Iterable[TableRoute], pod_ips: Iterable[Address]) -> list[TableRoute]:
    """Returns those of `routes` that an attachment owns: to `pod_ips`, or if there are none to any address."""
    destinations = host_routes.destinations_of(pod_ips)
    owned = [item for item in routes if host_routes.owner_of(item) == owner]
    return [item for item in owned if not destinations or item.dst in destinations]


def _delete_routes(host: Socket, routes: list[TableRoute], remaining: list[TableRoute]) -> None:
    """Deletes `routes`, and their host links unless a route in `remaining` uses these."""
    if not routes:
        return
    host.change(*host_routes.delete_requests(routes))
    unused = _indexes_of(routes) - _indexes_of(remaining)
    if unused:
        _delete_host_links(host, filter(None, link.get(host, *map(link.by_index_request, sorted(unused)))))


def _delete_unused_links(host: Socket, remaining: list[TableRoute]) -> None:
    """Deletes the host links that no route in `remaining` uses."""
    used = _indexes_of(remaining)
    _delete_host_links(host, (item for item in link.list_all(host) if item.index not in used))


def _indexes_of(routes: Iterable[TableRoute]) -> set[int]:
    return {index for item in routes for index in item.indexes}


def _delete_host_links(host: Socket, candidates: Iterable[Link]) -> None:
    """Deletes those of `candidates` that are host links.

    Not in the background: a child process would inherit the lock, and keep it if the verb is killed.
    """
    for item in candidates:
        if is_host_link(item):
            host.change(link.delete_request(item))


def _find_host_link(host: Socket, master: Link) -> Link | None:
    return link.get(host, link.by_name_request(_host_link_name(master)))[0]


def _host_link_name(master: Link) -> str:
    """Returns the name of the master's host link; the kernel deletes it with the master, which frees the ifindex."""
    return f"{_PREFIX}{master.index}"


def _compute_mac(master: Link) -> bytes:
    """Returns the host link's MAC address: the same when the link is recreated, since the pods' entries have it."""
    mac = bytearray(sha512(b"podwire host access " + master.mac_bytes).digest()[:6])
    mac[0] = mac[0] & 0xFE | 0x02
    return bytes(mac)


def _owner(net_conf: NetConf, args: CmdArgs) -> RouteOwner:
    return host_routes.compute_owner(net_conf.name, Attachment(args.container_id, args.ifname))


def _pod_ips(result: Result, args: CmdArgs) -> list[Address]:
    """Returns the addresses of the attachment's interface in a result."""
    return [ip.address.ip for ip in attachment_ips(result, args.ifname, strict=False)]


def _is_enabled(net_conf: NetConf) -> bool:
    """Returns whether `hostAccess` is true, also in an otherwise invalid configuration."""
    return net_conf.fields.raw(KEY.name) is True


@contextmanager
def _locked() -> Iterator[None]:
    """Holds the lock on the host links of this namespace; raises CniError(11)."""
    with Netns(_HOST_NETNS) as namespace:
        flock.acquire(namespace.fileno(), _HOST_NETNS, "the host's access to pods")
        yield
