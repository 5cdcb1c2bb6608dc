"""`hostAccess`: a pod on macvlan or ipvlan and its own node reach each other, which the kernel otherwise prevents.

The links on a master do not receive the packets that the master sends. So the host gets a link of the same kind on the
master, the host link, and a route through it to each address of a pod. A pod gets a route and a neighbour entry for
each address of the node on the master: the host link never answers for these addresses, or other machines on the
network would learn its MAC address for them.

A macvlan host link has a MAC address of its own, to which pods send. All ipvlan interfaces have the master's. If no
ipvlan interface has a packet's destination address, the kernel passes the packet to the master. So the master would
receive the answers to ARP requests of an ipvlan host link. Therefore that link does not use ARP, and sends to its MAC
address, which the pods have, too.

One rule: all state is in the kernel. The protocol of a route marks it as podwire's, its metric names the attachment,
and the host link is deleted with its last route. A lock on the host's namespace makes verbs change them sequentially.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha512
from typing import NamedTuple

from attachment.master import MasterOptions
from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, attachment_ips
from cni.address import Address, Network, host_cidr
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, internal, invalid_conf
from cni.keys import BOOLEAN, Key
from cni.result import Result
from kernel import address, child_link, flock, link, neighbour, route, route_copy, sysctl
from kernel.link import Link
from kernel.netns import Netns
from kernel.route_copy import TableRoute
from kernel.rtnl import Request, Socket
from kernel.wire import Attributes
from process import record
from process.undo import Undo

KEY = Key("hostAccess", (BOOLEAN,))
PREFIX = "pwha"
_NAME = re.compile(f"{PREFIX}[0-9]+")
_PROTOCOL = 112  # of the routes to pods; the kernel and routing daemons use other numbers (linux/rtnetlink.h)
_HOST = "/proc/self/ns/net"
_REPAIR = "run: podwire repair"


class HostLinkKind(NamedTuple):
    """The kernel's name of the host link's kind, its attributes, and whether it has a MAC address of its own."""

    name: str
    data: Attributes
    has_mac: bool


class AccessLinks(NamedTuple):
    """The two links that reach each other: the master on the host, and the pod's interface in its sandbox.

    `host` is a socket in the master's namespace.
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


def add(kind: HostLinkKind, links: AccessLinks, args: CmdArgs, net_conf: NetConf, result: Result, undo: Undo) -> None:
    """Creates the host link unless it exists, and the routes and neighbour entries of both sides.

    Raises CniError(11), CniError(999), KernelError.
    """
    pod_ips = [ip.address.ip for ip in attachment_ips(result, args.ifname, strict=False)]
    node_ips = _list_reachable(links, pod_ips)
    undo.push("remove the host's access", partial(remove, args, net_conf, pod_ips))
    with record.timed_step("give the host access"), _locked():
        host_link = _ensure_host_link(kind, links)
        # A route to one of the pod's addresses is that of an earlier attachment, which got no DEL.
        destinations = {host_cidr(ip).network for ip in pod_ips}
        stale = [item for item in _list_routes(links.host) if item.dst in destinations]
        links.host.change(
            *(route_copy.delete_request(item, item.table) for item in stale),
            *_host_requests(host_link, pod_ips, node_ips, compute_owner(net_conf.name, _attachment(args))),
        )
    links.sandbox.socket.change(*_pod_requests(links.container_link, host_link, node_ips))


def remove(args: CmdArgs, net_conf: NetConf, pod_ips: Iterable[Address]) -> None:
    """Deletes the host's routes to an attachment, and their host links unless other routes use these.

    `pod_ips` are the attachment's addresses; without any, all routes of the attachment are deleted. If there is no
    route to delete, all host links without routes are deleted: a killed verb may have created a link but no route, and
    `ip link set down` deletes routes. Raises CniError(11), KernelError.
    """
    owner = compute_owner(net_conf.name, _attachment(args))
    destinations = {host_cidr(ip).network for ip in pod_ips}

    def is_of_attachment(item: TableRoute) -> bool:
        return item.metric == owner and (not destinations or item.dst in destinations)

    with Socket() as host, _locked():
        routes = _list_routes(host)
        deletable = [item for item in routes if is_of_attachment(item)]
        if deletable:
            _delete(host, deletable, [item for item in routes if not is_of_attachment(item)])
        else:
            _delete_unused_links(host, routes)


def remove_if_enabled(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the routes to the addresses in prevResult, or without a usable one to all of the attachment's.

    The rest of the configuration may be invalid. Raises CniError(11), KernelError.
    """
    if net_conf.fields.raw(KEY.name) is not True:
        return
    try:
        prev_result = net_conf.prev_result()
    except CniError:
        prev_result = None
    ips = attachment_ips(prev_result, args.ifname, strict=False) if prev_result else []
    remove(args, net_conf, [ip.address.ip for ip in ips])


def repair(
    kind: HostLinkKind, links: AccessLinks, args: CmdArgs, net_conf: NetConf, prev_result: Result, undo: Undo
) -> None:
    """Creates what check() reports as missing. Raises CniError(11), CniError(999), KernelError."""
    repair_if_missing(
        "the host's access",
        partial(check, links, args, prev_result),
        partial(add, kind, links, args, net_conf, prev_result, undo),
    )


def collect(network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the routes to attachments of `network` that are not in `valid`, and all host links without routes.

    Raises CniError(11), KernelError.
    """
    valid_owners = {compute_owner(network, item) for item in valid}
    with Socket() as host, _locked():
        routes = _list_routes(host)
        stale = [item for item in routes if is_of_network(item.metric, network) and item.metric not in valid_owners]
        remaining = [item for item in routes if item not in stale]
        _delete(host, stale, remaining)
        _delete_unused_links(host, remaining)


def check(links: AccessLinks, args: CmdArgs, prev_result: Result) -> None:
    """Checks the host link, its routes to the pod, and the pod's entries for the node; raises CniError(999)."""
    pod_ips = [ip.address.ip for ip in attachment_ips(prev_result, args.ifname, strict=False)]
    host_link = _find_host_link(links.host, links.master)
    if host_link is None or not host_link.is_up:
        msg = f'The host has no access to the pods on "{links.master.name}": {_name(links.master)} is missing or down'
        raise internal(msg, _REPAIR)
    if not _reaches_pods(host_link):
        raise internal(f"The host's interface {host_link.name} uses ARP, whose answers it does not get", _REPAIR)
    destinations = {item.dst for item in _list_routes(links.host) if item.is_through(host_link)}
    for ip in pod_ips:
        if host_cidr(ip).network not in destinations:
            raise internal(f"The host's route to {ip} through {host_link.name} is missing", _REPAIR)
    entries = neighbour.list_permanent(links.sandbox.socket, links.container_link)
    for ip in _list_reachable(links, pod_ips):
        routes = links.sandbox.list_routes(ip.version).get(host_cidr(ip).network)
        if not routes or entries.get(ip) != host_link.mac_bytes:
            msg = f"The container's route or neighbour entry for the node's address {ip} is missing"
            raise internal(msg, _REPAIR)


def is_host_link(item: Link) -> bool:
    """Returns whether a link of the host is one that this module created."""
    return item.kind in ("macvlan", "ipvlan") and _NAME.fullmatch(item.name) is not None


def list_node_addresses(host: Socket, master: Link) -> list[Address]:
    """Returns the node's addresses on the master, without link-local IPv6 addresses; raises KernelError."""
    assigned = (item.address.ip for item in address.list_on_link(host, master))
    return [item for item in assigned if item.version == 4 or not item.is_link_local]


def list_owners(host: Socket) -> dict[int, set[int]]:
    """Returns the owners (compute_owner) of the routes through each host link, by its ifindex; raises KernelError."""
    owners: dict[int, set[int]] = {}
    for item in _list_routes(host):
        for index in item.indexes:
            owners.setdefault(index, set()).add(item.metric)
    return owners


def compute_owner(network: str, attachment: Attachment) -> int:
    """Returns the metric of an attachment's routes: 16 bits for its network, and 16 for the attachment."""
    return _hash(network) << 16 | _hash("/".join(attachment))


def is_of_network(owner: int, network: str) -> bool:
    """Returns whether an owner may be an attachment of a network: it has only 16 bits of the hash of the name."""
    return owner >> 16 == _hash(network)


def _list_reachable(links: AccessLinks, pod_ips: Iterable[Address]) -> list[Address]:
    """Returns the node's addresses of the IP versions that the pod has; raises KernelError."""
    versions = {ip.version for ip in pod_ips}
    return [ip for ip in list_node_addresses(links.host, links.master) if ip.version in versions]


def _ensure_host_link(kind: HostLinkKind, links: AccessLinks) -> Link:
    """Returns the host link of the master, which it creates if it is missing, and brings up."""
    name = _name(links.master)
    host_link = _find_host_link(links.host, links.master)
    if host_link is None:
        mac = _mac(links.master) if kind.has_mac else b""
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
    """Sets the parameters of a new host link, before it comes up, so that it answers for no address but its own."""
    sysctl.try_write(f"ipv4/conf/{name}/arp_ignore", "8")
    sysctl.try_write(f"ipv6/conf/{name}/accept_ra", "0")
    # Its only IPv6 address is link-local and follows from its MAC address; without the wait it is usable at once.
    sysctl.try_write(f"ipv6/conf/{name}/accept_dad", "0")
    sysctl.try_write(f"ipv6/conf/{name}/disable_ipv6", "0")


def _host_requests(
    host_link: Link, pod_ips: Iterable[Address], node_ips: list[Address], owner: int
) -> Iterator[Request]:
    """Yields requests that route the pod's addresses through the host link, with the node's address as source."""
    for ip in pod_ips:
        source = next((node_ip for node_ip in node_ips if node_ip.version == ip.version), None)
        item = _build_route(host_link, host_cidr(ip).network, source, owner)
        yield route_copy.add_request(item, route.TABLE_MAIN, description=f"add route {ip} dev {host_link.name}")


def _pod_requests(container_link: Link, host_link: Link, node_ips: Iterable[Address]) -> Iterator[Request]:
    """Yields requests by which the pod sends to the node's addresses through the host link."""
    for ip in node_ips:
        item = _build_route(container_link, host_cidr(ip).network, None, 0)
        description = f"add route {ip} dev {container_link.name}"
        yield route_copy.add_request(item, route.TABLE_MAIN, description=description)
        yield neighbour.set_request(container_link, ip, host_link.mac_bytes)


def _build_route(through: Link, dst: Network, source: Address | None, metric: int) -> TableRoute:
    item = route_copy.build_route(through, dst, source=source, metric=metric)
    return item._replace(values={**item.values, "proto": _PROTOCOL})


def _list_routes(host: Socket) -> list[TableRoute]:
    """Returns the host's routes to pods, of all networks."""
    listed = map(route_copy.from_message, host.dump(route_copy.list_request()))
    return [item for item in listed if item.values["proto"] == _PROTOCOL]


def _delete(host: Socket, routes: list[TableRoute], remaining: list[TableRoute]) -> None:
    """Deletes routes, and their host links unless a route in `remaining` uses these."""
    if not routes:
        return
    host.change(*(route_copy.delete_request(item, item.table) for item in routes))
    unused = _list_indexes(routes) - _list_indexes(remaining)
    if unused:
        _delete_host_links(host, filter(None, link.get(host, *map(link.by_index_request, sorted(unused)))))


def _delete_unused_links(host: Socket, remaining: list[TableRoute]) -> None:
    """Deletes the host links that no route in `remaining` uses."""
    used = _list_indexes(remaining)
    _delete_host_links(host, (item for item in link.list_all(host) if item.index not in used))


def _list_indexes(routes: Iterable[TableRoute]) -> set[int]:
    return {index for item in routes for index in item.indexes}


def _delete_host_links(host: Socket, links: Iterable[Link]) -> None:
    """Deletes the links that are host links.

    Not in the background: a child process would inherit the lock, and keep it if the verb is killed.
    """
    for item in links:
        if is_host_link(item):
            host.change(link.delete_request(item))


def _find_host_link(host: Socket, master: Link) -> Link | None:
    return link.get(host, link.by_name_request(_name(master)))[0]


def _name(master: Link) -> str:
    """Returns the name of the master's host link; the kernel deletes it with the master, which frees the ifindex."""
    return f"{PREFIX}{master.index}"


def _mac(master: Link) -> bytes:
    """Returns the host link's MAC address: the same one when the link is created again, since pods have it."""
    mac = bytearray(sha512(b"podwire host access " + master.mac_bytes).digest()[:6])
    mac[0] = mac[0] & 0xFE | 0x02
    return bytes(mac)


def _attachment(args: CmdArgs) -> Attachment:
    return Attachment(args.container_id, args.ifname)


def _hash(text: str) -> int:
    return int.from_bytes(sha512(text.encode()).digest()[:2], "big") or 1


@contextmanager
def _locked() -> Iterator[None]:
    """Holds the lock on the host links of this namespace; raises CniError(11)."""
    with Netns(_HOST) as namespace:
        flock.acquire(namespace.fileno(), _HOST, "the host's access to pods")
        yield
