"""`hostAccess`: a pod on macvlan or ipvlan and its own node reach each other, which the kernel otherwise prevents.

The links on a master do not receive the packets that the master sends. So the host gets a link of the same kind on the
master, the host link, and a route through it to each address of a pod. A pod gets a route and a neighbour entry for
each address of the node on the master: the host link never answers for these addresses, or other machines on the
network would learn its MAC address for them.

A macvlan host link has a MAC address of its own, to which pods send. All ipvlan interfaces have the master's: the
kernel passes pods' packets for it to the master if no ipvlan interface has the destination address. For the same
reason an ipvlan host link would get no answer to an ARP request, so it sends none: pods have its MAC address, too.

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
    """The kind of the host link, the attributes of that kind, and whether it has a MAC address of its own."""

    kind: str
    data: Attributes
    has_mac: bool


class Ends(NamedTuple):
    """The links that a pod's access needs: the master, and the pod's interface in its sandbox."""

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


def add(how: HostLinkKind, ends: Ends, args: CmdArgs, net_conf: NetConf, result: Result, undo: Undo) -> None:
    """Creates the host link unless it exists, and the routes and neighbour entries of both sides.

    Raises CniError(11), CniError(999), KernelError.
    """
    pods = [ip.address.ip for ip in attachment_ips(result, args.ifname, strict=False)]
    versions = {pod.version for pod in pods}
    nodes = [item for item in list_node_addresses(ends.host, ends.master) if item.version in versions]
    undo.push("remove the host's access", partial(remove, args, net_conf, pods))
    with record.timed_step("give the host access"), _locked():
        host_link = _ensure_host_link(how, ends)
        # An equal destination is that of an earlier attachment, which had the address and got no DEL.
        stale = [item for item in _list_routes(ends.host) if item.dst in {host_cidr(pod).network for pod in pods}]
        ends.host.change(
            *(route_copy.delete_request(item, item.table) for item in stale),
            *_host_requests(host_link, pods, nodes, _owner(net_conf.name, _attachment(args))),
        )
    ends.sandbox.socket.change(*_pod_requests(ends.container_link, host_link, nodes))


def remove(args: CmdArgs, net_conf: NetConf, pods: Iterable[Address]) -> None:
    """Deletes the host's routes to an attachment, and each host link without further routes.

    Without a route to delete, all host links without routes: a killed verb may have created a link and no route, and
    `ip link set down` deletes routes.

    `pods` are the attachment's addresses; without any, all routes of the attachment are deleted. Raises CniError(11),
    KernelError.
    """
    owner = _owner(net_conf.name, _attachment(args))
    destinations = {host_cidr(pod).network for pod in pods}

    def is_doomed(item: TableRoute) -> bool:
        return item.metric == owner and (not destinations or item.dst in destinations)

    with Socket() as host, _locked():
        routes = _list_routes(host)
        doomed = [item for item in routes if is_doomed(item)]
        if doomed:
            _delete(host, doomed, [item for item in routes if not is_doomed(item)])
        else:
            _delete_unused(host, routes)


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


def repair(how: HostLinkKind, ends: Ends, args: CmdArgs, net_conf: NetConf, prev_result: Result, undo: Undo) -> None:
    """Creates what check() reports as missing. Raises CniError(11), CniError(999), KernelError."""
    repair_if_missing(
        "the host's access",
        partial(check, ends, args, prev_result),
        partial(add, how, ends, args, net_conf, prev_result, undo),
    )


def collect(network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the routes to attachments of `network` that are not in `valid`, and all host links without routes.

    Raises CniError(11), KernelError.
    """
    valid_owners = {_owner(network, item) for item in valid}
    with Socket() as host, _locked():
        routes = _list_routes(host)
        doomed = [item for item in routes if item.metric >> 16 == _hash(network) and item.metric not in valid_owners]
        kept = [item for item in routes if item not in doomed]
        _delete(host, doomed, kept)
        _delete_unused(host, kept)


def check(ends: Ends, args: CmdArgs, prev_result: Result) -> None:
    """Checks the host link, its routes to the pod, and the pod's entries for the node; raises CniError(999)."""
    pods = [ip.address.ip for ip in attachment_ips(prev_result, args.ifname, strict=False)]
    host_link = _find_host_link(ends.host, ends.master)
    if host_link is None or not host_link.is_up:
        msg = f'The host has no access to the pods on "{ends.master.name}": {_name(ends.master)} is missing or down'
        raise internal(msg, _REPAIR)
    if not _reaches_pods(host_link):
        raise internal(f"The host's interface {host_link.name} uses ARP, whose answers it does not get", _REPAIR)
    present = {item.dst for item in _list_routes(ends.host) if item.is_through(host_link)}
    for pod in pods:
        if host_cidr(pod).network not in present:
            raise internal(f"The host's route to {pod} through {host_link.name} is missing", _REPAIR)
    entries = neighbour.list_permanent(ends.sandbox.socket, ends.container_link)
    versions = {pod.version for pod in pods}
    for node in list_node_addresses(ends.host, ends.master):
        if node.version not in versions:
            continue
        routes = ends.sandbox.list_routes(node.version).get(host_cidr(node).network)
        if not routes or entries.get(node) != host_link.mac_bytes:
            msg = f"The container's route or neighbour entry for the node's address {node} is missing"
            raise internal(msg, _REPAIR)


def is_host_link(item: Link) -> bool:
    """Returns whether a link of the host is one that this module created."""
    return item.kind in ("macvlan", "ipvlan") and _NAME.fullmatch(item.name) is not None


def list_node_addresses(host: Socket, master: Link) -> list[Address]:
    """Returns the node's addresses on the master, without link-local IPv6 addresses; raises KernelError."""
    assigned = (item.address.ip for item in address.list_on_link(host, master))
    return [item for item in assigned if item.version == 4 or not item.is_link_local]


def list_owners(host: Socket) -> dict[int, set[int]]:
    """Returns the owners of the routes through each host link, by its ifindex; raises KernelError."""
    owners: dict[int, set[int]] = {}
    for item in _list_routes(host):
        for index in item.indexes:
            owners.setdefault(index, set()).add(item.metric)
    return owners


def get_owner(network: str, attachment: Attachment) -> int:
    """Returns the number by which `list_owners` identifies an attachment."""
    return _owner(network, attachment)


def is_of_network(owner: int, network: str) -> bool:
    """Returns whether an owner may be an attachment of a network: it has only 16 bits of the hash of the name."""
    return owner >> 16 == _hash(network)


def _ensure_host_link(how: HostLinkKind, ends: Ends) -> Link:
    """Returns the host link of the master, which it creates if it is missing, and brings up."""
    name = _name(ends.master)
    host_link = _find_host_link(ends.host, ends.master)
    if host_link is None:
        mac = _mac(ends.master) if how.has_mac else b""
        ends.host.change(child_link.create_request(how.kind, name, ends.master, None, how.data, mac=mac))
        _write_parameters(name)
        host_link = _find_host_link(ends.host, ends.master)
        if record.is_dry_run():
            host_link = ends.master._replace(name=name, kind=how.kind, flags=0)
    if host_link is None or host_link.kind != how.kind:
        kind = f"is {host_link.kind}" if host_link else "was deleted"
        raise internal(f'the host\'s interface "{name}" {kind}, not {how.kind}', f"delete it: ip link del {name}")
    if not host_link.is_up:
        ends.host.change(link.set_request(host_link, up=True))
    # In mode l2 the kernel clears the flag when the link comes up.
    if not how.has_mac and not (host_link.is_up and _reaches_pods(host_link)):
        ends.host.change(link.set_request(host_link, noarp=True))
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


def _host_requests(host_link: Link, pods: Iterable[Address], nodes: list[Address], owner: int) -> Iterator[Request]:
    """Yields requests that route the pod's addresses through the host link, with the node's address as source."""
    for pod in pods:
        source = next((node for node in nodes if node.version == pod.version), None)
        item = _build_route(host_link, host_cidr(pod).network, source, owner)
        yield route_copy.add_request(item, route.TABLE_MAIN, description=f"add route {pod} dev {host_link.name}")


def _pod_requests(container_link: Link, host_link: Link, nodes: Iterable[Address]) -> Iterator[Request]:
    """Yields requests by which the pod sends to the node's addresses through the host link."""
    for node in nodes:
        item = _build_route(container_link, host_cidr(node).network, None, 0)
        description = f"add route {node} dev {container_link.name}"
        yield route_copy.add_request(item, route.TABLE_MAIN, description=description)
        yield neighbour.set_request(container_link, node, host_link.mac_bytes)


def _build_route(through: Link, dst: Network, source: Address | None, metric: int) -> TableRoute:
    item = route_copy.build_route(through, dst, source=source, metric=metric)
    return item._replace(values={**item.values, "proto": _PROTOCOL})


def _list_routes(host: Socket) -> list[TableRoute]:
    """Returns the host's routes to pods, of all networks."""
    listed = map(route_copy.from_message, host.dump(route_copy.list_request()))
    return [item for item in listed if item.values["proto"] == _PROTOCOL]


def _delete(host: Socket, doomed: list[TableRoute], kept: list[TableRoute]) -> None:
    """Deletes routes, and their host links if no route in `kept` is through them."""
    if not doomed:
        return
    host.change(*(route_copy.delete_request(item, item.table) for item in doomed))
    used = {index for item in kept for index in item.indexes}
    unused = {index for item in doomed for index in item.indexes} - used
    for host_link in link.get(host, *map(link.by_index_request, sorted(unused))) if unused else ():
        if host_link is not None and is_host_link(host_link):
            host.change(link.delete_request(host_link))


def _delete_unused(host: Socket, kept: list[TableRoute]) -> None:
    """Deletes the host links through which no route in `kept` is.

    Not in the background: a child process would inherit the lock, and keep it if the verb is killed.
    """
    used = {index for item in kept for index in item.indexes}
    for host_link in link.list_all(host):
        if is_host_link(host_link) and host_link.index not in used:
            host.change(link.delete_request(host_link))


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


def _owner(network: str, attachment: Attachment) -> int:
    """Returns the metric of an attachment's routes: 16 bits for its network, and 16 for the attachment."""
    return _hash(network) << 16 | _hash("/".join(attachment))


def _hash(text: str) -> int:
    return int.from_bytes(sha512(text.encode()).digest()[:2], "big") or 1


@contextmanager
def _locked() -> Iterator[None]:
    """Holds the lock on the host links of this namespace; raises CniError(11)."""
    with Netns(_HOST) as namespace:
        flock.acquire(namespace.fileno(), _HOST, "the host's access to pods")
        yield
