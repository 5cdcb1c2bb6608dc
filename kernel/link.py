"""Network interfaces (links): reading, creating, changing and deleting them.

*_request functions return a Request and do no I/O; functions that take a Socket send requests through it.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Sequence
from socket import AF_BRIDGE
from typing import NamedTuple

from cni.address import format_mac, parse_mac
from kernel import system
from kernel.codec import LinkMessage, NamespaceMessage
from kernel.errors import KernelError
from kernel.netns import Netns
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import AnswerError, Attributes, DecodedMessage, attribute_specs, get_nested_attributes
from process.values import dataclass

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWNSID, RTM_GETNSID = 88, 90
RTNLGRP_LINK = 1
IFF_UP, IFF_LOOPBACK, IFF_POINTOPOINT = 0x1, 0x8, 0x10  # linux/if.h
IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI, IFF_MULTICAST, IFF_LOWER_UP = 0x80, 0x100, 0x200, 0x1000, 0x10000
OPERSTATE_UP = 6
OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")  # RFC 2863
# Flag, word if it is cleared, word if it is set; the words are for the description of a request.
_UP, _PROMISC = (IFF_UP, "down", "up"), (IFF_PROMISC, "not promiscuous", "promiscuous")
_ALLMULTI = (IFF_ALLMULTI, "not all-multicast", "all-multicast")
_NOARP = (IFF_NOARP, "to use ARP", "not to use ARP")
_ARP_NOTIFY = (
    "IFLA_AF_SPEC",
    {"attrs": [("AF_INET", {"attrs": [("IFLA_INET_CONF", {"attrs": [("IPV4_DEVCONF_ARP_NOTIFY", 1)]})]})]},
)
_IFNAME_BYTES = 15  # IFNAMSIZ - 1 (linux/if.h)
_SKIP_STATISTICS = 8  # RTEXT_FILTER_SKIP_STATS (Linux 4.4); older kernels ignore it


class Link(NamedTuple):
    """A network interface as the kernel describes it; `mtu` in bytes.

    `iflink` (IFLA_LINK) is the ifindex of a veth's peer or of a VLAN device's parent, 0 for none.

    `iflink_nsid` is this namespace's ID for the peer's namespace, None when the peer is in this one. `tx_queue` is in
    packets; `max_mtu` is 0 without a limit, and before Linux 4.20.
    """

    index: int  # type: ignore[assignment]  # a field, not tuple.index
    name: str
    mac: str
    mtu: int
    flags: int
    kind: str
    master: int
    iflink: int
    iflink_nsid: int | None
    operstate: int
    alias: str = ""
    tx_queue: int = 0
    min_mtu: int = 0
    max_mtu: int = 0

    @property
    def mac_bytes(self) -> bytes:
        """The bytes of `mac`; raises AnswerError for a link without an Ethernet address."""
        try:
            return parse_mac(self.mac)
        except ValueError as error:
            raise AnswerError(f'the address of "{self.name}": {error}') from error

    @property
    def is_up(self) -> bool:
        """Whether the interface is administratively up."""
        return bool(self.flags & IFF_UP)


_LINK_SPECS = attribute_specs(
    LinkMessage,
    IFLA_LINKINFO=b"",
    IFLA_ADDRESS=b"",
    IFLA_IFNAME="",
    IFLA_MTU=0,
    IFLA_MASTER=0,
    IFLA_LINK=0,
    IFLA_LINK_NETNSID=None,
    IFLA_OPERSTATE=0,
    IFLA_IFALIAS="",
    IFLA_TXQLEN=0,
    IFLA_MIN_MTU=0,
    IFLA_MAX_MTU=0,
)
_KIND_SPECS = attribute_specs(LinkMessage.linkinfo, IFLA_INFO_KIND="")


def from_message(message: DecodedMessage) -> Link:
    """Returns the link in an RTM_NEWLINK message."""
    info, mac, name, mtu, *others = message.get_attributes(_LINK_SPECS)
    (kind,) = get_nested_attributes(info, _KIND_SPECS)
    return Link(message["index"], name, format_mac(mac), mtu, message["flags"], kind, *others)


def by_name_request(name: str) -> Request:
    """Returns a request for the link with a name or altname; the answer is None if there is no such link.

    The kernel looks for altnames, too, under IFLA_IFNAME. But only IFLA_ALT_IFNAME may be longer than a name; before
    altnames (Linux 5.5) the kernel ignored it, and refused the request for lack of a name.
    """
    kind = "IFLA_IFNAME" if len(name.encode()) <= _IFNAME_BYTES else "IFLA_ALT_IFNAME"
    attributes: Attributes = [(kind, name), ("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    missing = (errno.ENODEV,) if kind == "IFLA_IFNAME" else (errno.ENODEV, errno.EINVAL)
    return Request(f'look up "{name}"', LinkMessage, RTM_GETLINK, 0, {}, attributes, missing)


def by_index_request(index: int) -> Request:
    """Returns a request for the link with an ifindex; the answer is None if there is no such link."""
    attributes: Attributes = [("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    values = {"index": index}
    return Request(f"look up interface {index}", LinkMessage, RTM_GETLINK, 0, values, attributes, (errno.ENODEV,))


def get(socket: Socket, *requests: Request) -> list[Link | None]:
    """Sends by_name_request() and by_index_request() requests at once; returns the links, None for missing ones.

    Raises KernelError.
    """
    return [message and from_message(message) for message in socket.get(*requests)]


def get_local_peer(socket: Socket, veth: Link, namespace: Netns) -> Link | None:
    """Returns the peer of `veth` if it is in the socket's namespace, else None; `veth` is in `namespace`.

    Each namespace numbers its links, so equal ifindexes are no proof. The namespace ID that the peer reports must be
    that of `namespace`, or both ends must be in the socket's namespace. Raises KernelError.
    """
    requests = local_peer_requests(veth, namespace)
    return local_peer_from_answers(veth, namespace, socket.get(*requests)) if requests else None


def local_peer_requests(veth: Link, namespace: Netns) -> list[Request]:
    """Returns the requests of get_local_peer(), for a batch with others; [] for a link without a peer."""
    if veth.kind != "veth" or not veth.iflink:
        return []
    descriptor: Attributes = [("NETNSA_FD", namespace.fileno())]
    nsid_request = Request("identify the sandbox's namespace", NamespaceMessage, RTM_GETNSID, 0, {}, descriptor)
    return [by_index_request(veth.iflink), nsid_request]


def local_peer_from_answers(veth: Link, namespace: Netns, answers: Sequence[DecodedMessage | None]) -> Link | None:
    """Returns the peer from the answers to local_peer_requests(), None if it is not in the socket's namespace."""
    message, nsid_message = answers
    peer = message and from_message(message)
    if not peer or peer.kind != "veth" or peer.iflink != veth.index:
        return None
    if peer.iflink_nsid is None:
        return peer if veth.iflink_nsid is None and namespace.is_current() else None
    return peer if nsid_message and peer.iflink_nsid == nsid_message.get_attr("NETNSA_NSID") else None


def get_remote_peer(socket: Socket, veth: Link) -> Link | None:
    """Returns the peer of `veth`, read from the peer's namespace; None when that namespace cannot be read.

    Linux 4.15 and later answer for the namespace of IFLA_TARGET_NETNSID (the caller needs CAP_NET_ADMIN there) and
    repeat its ID; earlier kernels ignore it and answer for the socket's namespace. Raises KernelError.
    """
    # Before Linux 5.10, `iflink` is missing when it equals the index of the veth itself.
    request = by_index_request(veth.iflink or veth.index)
    nsid = veth.iflink_nsid
    if nsid is not None:
        attributes: Attributes = [*request.attributes, ("IFLA_TARGET_NETNSID", nsid)]
        ignore = (errno.ENODEV, errno.EINVAL, errno.EACCES, errno.EPERM)
        request = request._replace(attributes=attributes, ignore=ignore)
    (message,) = socket.get(request)
    return from_message(message) if message and message.get_attr("IFLA_TARGET_NETNSID") == nsid else None


def get_namespace_ids(socket: Socket, namespaces: Sequence[Netns]) -> list[int | None]:
    """Returns the IDs by which the socket's namespace knows other namespaces (`Link.iflink_nsid`); raises KernelError.

    None for a namespace without an ID.
    """
    requests = [
        Request("identify a namespace", NamespaceMessage, RTM_GETNSID, 0, {}, [("NETNSA_FD", item.fileno())])
        for item in namespaces
    ]
    numbers = (message and message.get_attr("NETNSA_NSID") for message in socket.get(*requests))
    return [number if number is not None and number >= 0 else None for number in numbers]


def list_all(socket: Socket) -> list[Link]:
    """Returns all links of the namespace; raises KernelError."""
    attributes: Attributes = [("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    request = Request("list the interfaces", LinkMessage, RTM_GETLINK, NLM_F_DUMP, {}, attributes)
    return [from_message(message) for message in socket.dump(request)]


def list_of_kind(socket: Socket, kind: str) -> list[Link]:
    """Returns the links of a kind such as "ifb"; raises KernelError."""
    info = {"attrs": [("IFLA_INFO_KIND", kind)]}
    attributes: Attributes = [("IFLA_LINKINFO", info), ("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    request = Request(f"list the interfaces of kind {kind}", LinkMessage, RTM_GETLINK, NLM_F_DUMP, {}, attributes)
    links = (from_message(message) for message in socket.dump(request, merge_key=lambda message: message["index"]))
    return [link for link in links if link.kind == kind]  # the kernel lists all for an unknown kind


def list_ports(socket: Socket, bridge: int) -> Iterator[Link]:
    """Yields the ports of the bridge with ifindex `bridge`; raises KernelError."""
    attributes: Attributes = [("IFLA_MASTER", bridge), ("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    request = Request("list the bridge's ports", LinkMessage, RTM_GETLINK, NLM_F_DUMP, {}, attributes)
    for message in socket.dump(request):
        link = from_message(message)
        if link.master == bridge:  # kernels before 4.4 do not filter
            yield link


def count_ports(socket: Socket, bridge: int) -> int:
    """Returns the number of ports of the bridge with ifindex `bridge`; raises KernelError.

    This takes a third of the time of list_ports(): messages of family AF_BRIDGE are small, and a search for the bytes
    of IFLA_MASTER replaces decoding.
    """
    master = struct.pack("=HHi", 8, 10, bridge)  # the attribute IFLA_MASTER
    values = {"family": AF_BRIDGE}
    description = "count the bridge's ports"
    request = Request(
        description, LinkMessage, RTM_GETLINK, NLM_F_DUMP, values, body_filter=lambda body: master in body
    )
    return len(socket.dump(request))


def create_bridge_request(name: str, mac: bytes, mtu: int, *, vlan_filtering: bool = False) -> Request:
    """Returns a request that creates a bridge and brings it up; it fails with EEXIST if the name is used.

    Without an explicit MAC address a bridge would use the lowest one of its ports. `mtu` 0 is the kernel's default. A
    kernel without VLAN filtering refuses `vlan_filtering` with EOPNOTSUPP.
    """
    info: Attributes = [("IFLA_INFO_KIND", "bridge")]
    if vlan_filtering:
        info.append(("IFLA_INFO_DATA", {"attrs": [("IFLA_BR_VLAN_FILTERING", 1)]}))
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_ADDRESS", mac), *_mtu(mtu)]
    attributes.append(("IFLA_LINKINFO", {"attrs": info}))
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    values = {"flags": IFF_UP, "change": IFF_UP}
    return Request(f'create bridge "{name}"', LinkMessage, RTM_NEWLINK, flags, values, attributes)


@dataclass(frozen=True)
class VethEnd:
    """The name and MAC address of one end of a new veth; udev keeps a MAC address that was set at creation."""

    name: str
    mac: bytes


def create_veth_request(
    host: VethEnd, container: VethEnd, namespace: Netns | None, *, master: int = 0, mtu: int
) -> Request:
    """Returns a request that creates a veth: end `host` in the socket's namespace, end `container` in `namespace`.

    If `namespace` is None, both ends are in the socket's. `host` is up, and a port of the link with ifindex `master`
    unless that is 0. Both ends are created in place because moving one to another namespace takes some 17 ms (RCU).
    `mtu` 0 is the kernel's default.
    """
    peer: Attributes = [("IFLA_IFNAME", container.name), ("IFLA_ADDRESS", container.mac), *_mtu(mtu)]
    if namespace is not None:
        peer.append(("IFLA_NET_NS_FD", namespace.fileno()))
    data = {"attrs": [("VETH_INFO_PEER", {"attrs": peer})]}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    attributes: Attributes = [("IFLA_IFNAME", host.name), ("IFLA_ADDRESS", host.mac)]
    attributes += [("IFLA_MASTER", master)] if master else []
    # Transmit queue length 0, as the reference plugins set it; a qdisc with an explicit limit ignores it.
    attributes += [*_mtu(mtu), ("IFLA_TXQLEN", 0), ("IFLA_LINKINFO", info)]
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    description = f'make veth pair "{host.name}" - "{container.name}"'
    return Request(description, LinkMessage, RTM_NEWLINK, flags, {"flags": IFF_UP, "change": IFF_UP}, attributes)


def create_ifb_request(index: int, name: str, mac: bytes, mtu: int) -> Request:
    """Returns a request that creates an ifb and brings it up; it fails with EEXIST if name or index is used.

    Packets redirected to this intermediate functional block device pass its qdisc and then continue on the interface
    from which they were redirected. The caller chooses the index, so that other requests of the batch can refer to it.
    """
    info = {"attrs": [("IFLA_INFO_KIND", "ifb")]}
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_ADDRESS", mac), *_mtu(mtu), ("IFLA_TXQLEN", 0)]
    attributes.append(("IFLA_LINKINFO", info))
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    values = {"index": index, "flags": IFF_UP, "change": IFF_UP}
    return Request(f'create ifb "{name}"', LinkMessage, RTM_NEWLINK, flags, values, attributes)


def set_alias_request(index: int, text: str) -> Request:
    """Returns a request that sets a link's alias, up to 255 bytes (IFALIASZ, linux/if.h), which `ip link` shows."""
    values = {"index": index}
    description = f"set the alias of interface {index}"
    return Request(description, LinkMessage, RTM_NEWLINK, NLM_F_ACK, values, [("IFLA_IFALIAS", text)])


def set_request(
    link: Link,
    *,
    up: bool | None = None,
    promisc: bool | None = None,
    allmulti: bool | None = None,
    noarp: bool | None = None,
    mac: bytes = b"",
    mtu: int = 0,
    tx_queue: int | None = None,
    master: int = 0,
    arp_notify: bool = False,
    name: str = "",
) -> Request:
    """Returns a request that sets the given attributes of a link in one message, as `ip link set` does.

    With `noarp` the kernel resolves no neighbours: all have the link's MAC address. `arp_notify` has it announce
    addresses by gratuitous ARP. A new name takes effect before the link comes up. The request fails with EEXIST if
    another link has that name.
    """
    values = {"index": link.index, "flags": 0, "change": 0}
    words: list[str] = []
    for (flag, *states), on in ((_UP, up), (_PROMISC, promisc), (_ALLMULTI, allmulti), (_NOARP, noarp)):
        if on is not None:
            values["flags"] |= flag * on
            values["change"] |= flag
            words.append(states[on])
    settings = (
        (mac, ("IFLA_ADDRESS", mac), f"to address {format_mac(mac)}"),
        (mtu, ("IFLA_MTU", mtu), f"to MTU {mtu}"),
        (tx_queue is not None, ("IFLA_TXQLEN", tx_queue), f"to a queue of {tx_queue}"),
        (master, ("IFLA_MASTER", master), f"to be a port of interface {master}"),
        (arp_notify, _ARP_NOTIFY, "to announce its addresses"),
        (name, ("IFLA_IFNAME", name), f'to name "{name}"'),
    )
    attributes: Attributes = [attribute for is_set, attribute, _ in settings if is_set]
    words += [text for is_set, _, text in settings if is_set]
    description = f'set "{link.name}" {" and ".join(words)}'
    return Request(description, LinkMessage, RTM_NEWLINK, NLM_F_ACK, values, attributes)


def probe_set(socket: Socket) -> None:
    """Raises KernelError (EPERM) if the process may not change links; probes with the invalid name "/"."""
    try:
        socket.send(Request("change an interface", LinkMessage, RTM_NEWLINK, NLM_F_ACK, {}, [("IFLA_IFNAME", "/")]))
    except KernelError as error:
        if error.errno == errno.EPERM:
            raise


def set_port_request(link: Link, *, hairpin: bool, isolated: bool) -> Request:
    """Returns a request that enables flags of a bridge port; kernels before 4.18 refuse `isolated`."""
    data: Attributes = [("IFLA_BRPORT_MODE", 1)] if hairpin else []
    data += [("IFLA_BRPORT_ISOLATED", 1)] if isolated else []
    info = {"attrs": [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", {"attrs": data})]}
    words = " and ".join(["hairpin"] * hairpin + ["isolated"] * isolated)
    description = f'set {words} on for "{link.name}"'
    return Request(description, LinkMessage, RTM_NEWLINK, NLM_F_ACK, {"index": link.index}, [("IFLA_LINKINFO", info)])


@dataclass(frozen=True)
class PortFlags:
    """The flags of a bridge port that podwire sets."""

    hairpin: bool
    isolated: bool


def get_port_flags(socket: Socket, link: Link) -> PortFlags:
    """Returns the flags of a bridge port; raises KernelError."""
    (message,) = socket.get(by_index_request(link.index))
    info = message and message.get_attr("IFLA_LINKINFO")
    data = info and info.get_attr("IFLA_INFO_SLAVE_DATA")
    if not data:
        return PortFlags(hairpin=False, isolated=False)
    return PortFlags(bool(data.get_attr("IFLA_BRPORT_MODE")), bool(data.get_attr("IFLA_BRPORT_ISOLATED")))


def delete_request(link: Link) -> Request:
    """Returns a request that deletes a link; a missing link is success."""
    description = f'delete "{link.name}"'
    return Request(description, LinkMessage, RTM_DELLINK, NLM_F_ACK, {"index": link.index}, [], (errno.ENODEV,))


def random_mac() -> bytes:
    """Returns a random locally administered unicast address."""
    mac = bytearray(system.current.random_bytes(6))
    mac[0] = mac[0] & 0xFE | 0x02
    return bytes(mac)


def _mtu(mtu: int) -> Attributes:
    return [("IFLA_MTU", mtu)] if mtu else []
