"""The situation of this node: the addresses, links and networks on which its routes depend, read from the kernel.

One rule: what the Node object or the kernel lacks stays as it was last known. A Node object loses its InternalIPs by a
mistake of kubelet or of the cloud's controller, and an interface its address for a moment: neither is a reason to
delete routes. Functions that take a Socket only read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from agent import route_plan, tunnel_device
from agent.node import INTERNAL_IP, Node
from agent.route_plan import AUTO, VXLAN, ConnectedNetwork, InternalNetwork, ObjectValue, Peer, RouteOptions, Situation
from kernel import address, link, protocol_route, route, vxlan
from kernel.address import AssignedAddress
from kernel.link import Link
from kernel.protocol_route import NextHop, Prefix, ProtocolRoute
from kernel.reverse_path import is_strict
from kernel.rtnl import Socket

_POD_KINDS = ("bridge", "veth")
_DEFAULT_MTU = 1500
_SIZES = (4, 16)  # of addresses: IPv4 and IPv6
_LINK_LOCAL = {4: b"\xa9\xfe", 16: b"\xfe\x80"}


class NodeLinks(NamedTuple):
    """The links of this node on which its routes depend, by ifindex, and what is wrong with its addresses.

    The links in `down` have connected networks, and are missing or not up: the kernel refuses routes through them.
    `missing_sizes` are the sizes (4, 16) of the addresses of this node that were on a link and are on none that is up;
    the kernel then refuses direct routes of that IP version. With `are_all_missing` no version remains. A `problem`
    keeps this node from being ready, a `note` does not.
    """

    by_index: Mapping[int, Link]
    underlay_mtu: int = 0
    down: frozenset[int] = frozenset()
    missing_sizes: frozenset[int] = frozenset()
    are_all_missing: bool = False
    problem: str = ""
    note: str = ""

    def refuses(self, value: ObjectValue | None, tunnel_ifindex: int) -> bool:
        """Returns whether a value is a next hop with which the kernel refuses routes at present."""
        if not isinstance(value, NextHop):
            return False
        is_missing = value.ifindex != tunnel_ifindex and len(value.gateway) in self.missing_sizes
        return is_missing or value.ifindex in self.down


class _KernelState(NamedTuple):
    """The addresses by ifindex, the connected networks, the links by ifindex, and the link that --underlay names."""

    assigned: Mapping[int, list[AssignedAddress]]
    connected: list[ProtocolRoute]
    links: Mapping[int, Link]
    option_link: Link | None

    def link_with(self, packed: bytes) -> tuple[Link | None, int]:
        """Returns the link that has an address, one that is up if possible, and the length of the address's prefix."""
        holders = [
            (self.links.get(index), each.prefix)
            for index, items in self.assigned.items()
            for each in items
            if each.packed == packed
        ]
        return max(holders, key=lambda holder: _is_up(holder[0]), default=(None, 0))

    def is_held(self, packed: bytes) -> bool:
        """Returns whether an interface that is up has an address."""
        return _is_up(self.link_with(packed)[0])


def read_situation(
    socket: Socket,
    options: RouteOptions,
    node: Node,
    any_address: Callable[[int], bytes],
    last: tuple[Situation, NodeLinks],
) -> tuple[Situation, NodeLinks]:
    """Returns the situation of this node and its links; raises KernelError.

    `any_address` returns another node's address of the given size in bytes, b"" without one. `last` is the result of
    the last call: the tunnel and everything that the kernel lacks now stay as they were.
    """
    last_situation, last_links = last
    last_underlay = last_situation.underlay or _device_address(socket, options, node.name)
    this = _with_former_addresses(node, last_situation, last_underlay, any_address)
    kernel = _read_kernel(socket, options, this, last_situation)
    missing = frozenset(size for size in _SIZES if _is_missing(size, this, kernel, last_situation))
    connected = [
        ConnectedNetwork(each.dst, each.hop.ifindex, holder.name, holder.kind in _POD_KINDS, each.metric)
        for each in kernel.connected
        if (holder := kernel.links.get(each.hop.ifindex)) and holder.is_up and len(each.dst) - 1 not in missing
    ]
    connected += [each for each in last_situation.connected if len(each.network) - 1 in missing]
    internal_networks = [each for each in _list_internal_networks(this, kernel) if len(each.address) not in missing]
    internal_networks += [each for each in last_situation.internal_networks if len(each.address) in missing]
    named = _named_address(options, this, kernel)
    underlay = named or _first_on_link(this, kernel) or last_underlay
    underlay_link, _ = kernel.link_with(underlay)
    mtu = last_links.underlay_mtu
    if not mtu or _is_up(underlay_link):
        mtu = _underlay_mtu(socket, underlay_link, any_address(len(underlay)))
    down = {each.ifindex for each in connected if not _is_up(kernel.links.get(each.ifindex))}
    situation = last_situation._replace(
        mode=options.mode,
        networks=this.networks,
        addresses=this.addresses,
        connected=tuple(connected),
        internal_networks=tuple(internal_networks),
        underlay=underlay,
        former_addresses=this.former_addresses,
        strict_link=underlay_link.name if underlay_link and is_strict(socket, underlay_link) else "",
    )
    problem, note = _describe(options, situation, kernel, named)
    are_all_missing = bool(missing) and all(len(each.address) in missing for each in internal_networks)
    return situation, NodeLinks(kernel.links, mtu, frozenset(down), missing, are_all_missing, problem, note)


def _with_former_addresses(
    node: Node, last: Situation, last_underlay: bytes, any_address: Callable[[int], bytes]
) -> Peer:
    """Returns this node with the addresses that its object no longer has.

    After a start only the underlay address of an existing device is known; it is kept if other nodes have an address of
    the same IP version.
    """
    known = last.addresses or ((last_underlay,) if any_address(len(last_underlay)) else ())
    return route_plan.keep_addresses(route_plan.peer_of(node), Peer(node.name, (), known, node.uid))


def _device_address(socket: Socket, options: RouteOptions, name: str) -> bytes:
    """Returns the underlay address of the agent's existing device, b"" without one."""
    device = tunnel_device.find(socket, options.device, route_plan.mac_of(name))
    existing = vxlan.get(socket, device) if device else None
    return existing.local.packed if existing and existing.local else b""


def _read_kernel(socket: Socket, options: RouteOptions, this: Peer, last: Situation) -> _KernelState:
    """Reads addresses, connected networks and links, without those of the VXLAN device."""
    underlay_name = options.underlay if isinstance(options.underlay, str) else ""
    names = [options.device, underlay_name] if underlay_name else [options.device]
    device, *others = link.get(socket, *map(link.by_name_request, names))
    option_link = others[0] if others else None
    skipped = device.index if device else 0
    assigned = {index: each for index, each in address.list_by_link(socket).items() if index != skipped}
    connected = [each for each in protocol_route.list_connected(socket) if each.hop.ifindex != skipped]
    ours = {*this.addresses, last.underlay, options.underlay}  # a link's name in it is equal to no address
    indexes = {each.hop.ifindex for each in connected} | {each.ifindex for each in last.connected}
    indexes |= {index for index, items in assigned.items() if not ours.isdisjoint(each.packed for each in items)}
    answers = link.get(socket, *(link.by_index_request(index) for index in sorted(indexes)))
    links = {each.index: each for each in (*answers, option_link) if each}
    return _KernelState(assigned, connected, links, option_link)


def _is_missing(size: int, this: Peer, kernel: _KernelState, last: Situation) -> bool:
    """Returns whether this node's address of a size was on a link at the last call, and now is on none that is up."""
    known = next((each.address for each in last.internal_networks if len(each.address) == size), None)
    return known is not None and known in this.addresses and not kernel.is_held(known)


def _list_internal_networks(this: Peer, kernel: _KernelState) -> list[InternalNetwork]:
    """Returns the network of each of this node's addresses that is on a link."""
    internal_networks = []
    for size in _SIZES:
        for position, mine in enumerate(each for each in this.addresses if len(each) == size):
            holder, length = kernel.link_with(mine)
            if holder and holder.is_up and (network := _network_of(mine, length, holder, kernel.connected)):
                internal_networks.append(InternalNetwork(position, mine, network))
    return internal_networks


def _network_of(mine: bytes, length: int, holder: Link, connected: list[ProtocolRoute]) -> Prefix:
    """Returns the connected network of an address on its link, b"" without one.

    It has the prefix length of the address. If none has (DHCPv6 sets 128), it is the first that contains the address:
    `connected` begins with the longest prefixes.
    """
    on_link = (each.dst for each in connected if each.hop.ifindex == holder.index)
    networks = [network for network in on_link if route_plan.contains(network, mine)]
    return next((each for each in networks if each[-1] == length), networks[0] if networks else b"")


def _named_address(options: RouteOptions, this: Peer, kernel: _KernelState) -> bytes:
    """Returns the address that --underlay names, b"" if it names none that this node can use."""
    size = route_plan.underlay_size(this.addresses)
    if isinstance(options.underlay, bytes):
        is_usable = len(options.underlay) == size and kernel.link_with(options.underlay)[0]
        return options.underlay if is_usable else b""
    assigned = kernel.assigned.get(kernel.option_link.index, ()) if kernel.option_link else ()
    usable = (each.packed for each in assigned if len(each.packed) == size)
    return next((packed for packed in usable if not packed.startswith(_LINK_LOCAL[size])), b"")


def _first_on_link(this: Peer, kernel: _KernelState) -> bytes:
    """Returns the first of this node's addresses that an interface has, of the version that the tunnel uses."""
    usable = (each for each in this.addresses if len(each) == route_plan.underlay_size(this.addresses))
    return next((packed for packed in usable if kernel.link_with(packed)[0]), b"")


def _underlay_mtu(socket: Socket, underlay: Link | None, remote: bytes) -> int:
    """Returns the MTU of the link through which VXLAN packets leave; an address may be on `lo`, as with BGP."""
    if underlay is not None and not underlay.flags & link.IFF_LOOPBACK:
        return underlay.mtu
    outgoing = route.get_interface_to(socket, route.address_of(remote)) if remote else None
    return outgoing.mtu if outgoing and not outgoing.flags & link.IFF_LOOPBACK else _DEFAULT_MTU


def _describe(options: RouteOptions, situation: Situation, kernel: _KernelState, named: bytes) -> tuple[str, str]:
    """Returns what is wrong with this node's addresses, as a problem and as a note."""
    problems: list[str] = []
    notes: list[str] = []
    underlay = route_plan.format_packed(situation.underlay) if situation.underlay else ""
    tunnel = f"the tunnel keeps {underlay}" if underlay else "there is no tunnel"
    if former := situation.former_addresses:
        versions = " and ".join(f"IPv{4 if len(each) == 4 else 6}" for each in dict.fromkeys(former))
        kept = ", ".join(map(route_plan.format_packed, former))
        is_all = len(former) == len(situation.addresses)
        text = (
            f"this node's Node object has no {'' if is_all else versions + ' '}{INTERNAL_IP} any more: the agent keeps "
            f"{kept}, and its routes and tunnel as they are; correct --node-ip of kubelet, or the cloud's controller"
        )
        (problems if is_all else notes).append(text)
    if options.underlay and not named and options.mode in (AUTO, VXLAN):
        text = options.underlay if isinstance(options.underlay, str) else route_plan.format_packed(options.underlay)
        version = 6 if route_plan.underlay_size(situation.addresses) == 16 else 4
        problems.append(f"--underlay {text} names no IPv{version} address that this node has: {tunnel}")
    for size in _SIZES:
        mine = [each for each in situation.addresses if len(each) == size]
        if not mine or any(map(kernel.is_held, mine)):
            continue
        text = f"this node's {INTERNAL_IP} {route_plan.format_packed(mine[0])} is on no interface that is up: "
        if any(len(each.address) == size for each in situation.internal_networks):
            problems.append(text + "the agent keeps its routes and tunnel as they are until it is")
        elif options.mode not in (AUTO, VXLAN):
            problems.append(text + "correct --node-ip of kubelet, or the interface")
        elif not named:
            problems.append(f"{text}{tunnel}; where it is translated (NAT), set --underlay")
    return "; ".join(problems), "; ".join(notes)


def _is_up(answer: Link | None) -> bool:
    return answer is not None and answer.is_up
