"""Links: looking them up, making bridges and veth pairs, changing and deleting them.

One rule: functions named after an object return a Request, a value to be sent; the others talk through the socket
they are given and leave nothing half done.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from socket import AF_BRIDGE
from typing import NamedTuple

from cni.address import format_mac, parse_mac
from kernel.codec import LinkMessage, NamespaceMessage
from kernel.errors import KernelError
from kernel.netns import Netns
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import AnswerError, Attributes, DecodedMessage, attribute_specs, get_nested_attributes
from process.values import dataclass

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWNSID, RTM_GETNSID = 88, 90
RTNLGRP_LINK = 1
IFF_UP, IFF_LOOPBACK, IFF_POINTOPOINT, IFF_PROMISC, IFF_ALLMULTI = 0x1, 0x8, 0x10, 0x100, 0x200  # linux/if.h
OPERSTATE_UP = 6
OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")  # RFC 2863
# What is said of a flag that is taken away, and of one that is set.
_UP, _PROMISC = (IFF_UP, "down", "up"), (IFF_PROMISC, "not promiscuous", "promiscuous")
_ALLMULTI = (IFF_ALLMULTI, "not all-multicast", "all-multicast")
_ARP_NOTIFY = (
    "IFLA_AF_SPEC",
    {"attrs": [("AF_INET", {"attrs": [("IFLA_INET_CONF", {"attrs": [("IPV4_DEVCONF_ARP_NOTIFY", 1)]})]})]},
)
_SKIP_STATISTICS = 8  # RTEXT_FILTER_SKIP_STATS (Linux 4.4); older kernels ignore it


class Link(NamedTuple):
    """One network interface as the kernel describes it; `mtu` in bytes, `lower` the ifindex of a veth's other end.

    `lower_nsid` is this namespace's number for the one in which the other end is, None for this namespace itself.
    `tx_queue` is in packets; `max_mtu` 0 is no limit (and a kernel before 4.20).
    """

    index: int  # type: ignore[assignment]  # for nobody who looks for a value in it as in a list
    name: str
    mac: str
    mtu: int
    flags: int
    kind: str
    master: int
    lower: int
    lower_nsid: int | None
    operstate: int
    alias: str = ""
    tx_queue: int = 0
    min_mtu: int = 0
    max_mtu: int = 0

    @property
    def mac_bytes(self) -> bytes:
        """The bytes of `mac`; raises AnswerError for a link that has none, or none of Ethernet's."""
        try:
            return parse_mac(self.mac)
        except ValueError as error:
            raise AnswerError(f'the address of "{self.name}": {error}') from error

    @property
    def is_up(self) -> bool:
        """Tells whether the interface is administratively up."""
        return bool(self.flags & IFF_UP)


_OF_A_LINK = attribute_specs(
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
_KIND = attribute_specs(LinkMessage.linkinfo, IFLA_INFO_KIND="")


def from_message(message: DecodedMessage) -> Link:
    """Returns the link in an RTM_NEWLINK message."""
    info, mac, name, mtu, *others = message.get_attributes(_OF_A_LINK)
    (kind,) = get_nested_attributes(info, _KIND)
    return Link(message["index"], name, format_mac(mac), mtu, message["flags"], kind, *others)


def by_name_request(name: str) -> Request:
    """Asks for the link called `name`; no such link is no error."""
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    return Request(f'look up "{name}"', LinkMessage, RTM_GETLINK, 0, {}, attributes, (errno.ENODEV,))


def by_index_request(index: int) -> Request:
    """Asks for the link with an ifindex; no such link is no error."""
    attributes: Attributes = [("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    values = {"index": index}
    return Request(f"look up interface {index}", LinkMessage, RTM_GETLINK, 0, values, attributes, (errno.ENODEV,))


def get(socket: Socket, *requests: Request) -> list[Link | None]:
    """Sends `by_name` and `by_index` requests at once; returns the links, None for those that are not there.

    Raises KernelError.
    """
    return [message and from_message(message) for message in socket.get(*requests)]


def get_local_peer(socket: Socket, own: Link, namespace: Netns) -> Link | None:
    """Returns the end on `socket`'s side of the veth `own`, which is in `namespace`; None when it is not there.

    The indexes alone prove nothing, as each namespace counts its own: the end found must lead into `namespace`, or
    both be in this one, which `socket` is then of. Raises KernelError.
    """
    asked = local_peer_requests(own, namespace)
    return local_peer_from_answers(own, namespace, socket.get(*asked)) if asked else None


def local_peer_requests(own: Link, namespace: Netns) -> list[Request]:
    """Asks for the other end as `other_end` does, [] for what has none; `led_across` reads the answers."""
    if own.kind != "veth" or not own.lower:
        return []
    descriptor: Attributes = [("NETNSA_FD", namespace.fileno())]
    number = Request("identify the sandbox's namespace", NamespaceMessage, RTM_GETNSID, 0, {}, descriptor)
    return [by_index_request(own.lower), number]


def local_peer_from_answers(own: Link, namespace: Netns, answers: Sequence[DecodedMessage | None]) -> Link | None:
    """Returns the other end by the answers to `across`, None when it is not there."""
    message, number = answers
    found = message and from_message(message)
    if not found or found.kind != "veth" or found.lower != own.index:
        return None
    if found.lower_nsid is None:
        return found if own.lower_nsid is None and namespace.is_current() else None
    return found if number and found.lower_nsid == number.get_attr("NETNSA_NSID") else None


def get_remote_peer(socket: Socket, own: Link) -> Link | None:
    """Returns the peer of a veth, read from the namespace that the peer is in; None where it cannot be read.

    Linux 4.15 and later answer for another namespace without entering it, if the caller is root there, and repeat its
    number; earlier kernels answer for this one. Raises KernelError.
    """
    request = by_index_request(own.lower or own.index)  # kernels before 5.10 leave out an index that is the port's, too
    number = own.lower_nsid
    if number is not None:
        attributes: Attributes = [*request.attributes, ("IFLA_TARGET_NETNSID", number)]
        ignore = (errno.ENODEV, errno.EINVAL, errno.EACCES, errno.EPERM)
        request = request._replace(attributes=attributes, ignore=ignore)
    (message,) = socket.get(request)
    return from_message(message) if message and message.get_attr("IFLA_TARGET_NETNSID") == number else None


def get_namespace_ids(socket: Socket, namespaces: Sequence[Netns]) -> list[int | None]:
    """Returns by which number (`Link.lower_nsid`) the socket's namespace knows others, None for those it does not.

    Raises KernelError.
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
    """Returns the links of a kind ("ifb"); raises KernelError."""
    info = {"attrs": [("IFLA_INFO_KIND", kind)]}
    attributes: Attributes = [("IFLA_LINKINFO", info), ("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    request = Request(f"list the interfaces of kind {kind}", LinkMessage, RTM_GETLINK, NLM_F_DUMP, {}, attributes)
    found = (from_message(message) for message in socket.dump(request, merge_key=lambda message: message["index"]))
    return [link for link in found if link.kind == kind]  # a kernel that does not know the kind lists all


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

    Takes a third of the time of `ports`: family AF_BRIDGE has small messages, of which no attribute is decoded.
    """
    master = struct.pack("=HHI", 8, 10, bridge)  # the attribute IFLA_MASTER
    values = {"family": AF_BRIDGE}
    doing = "count the bridge's ports"
    request = Request(doing, LinkMessage, RTM_GETLINK, NLM_F_DUMP, values, body_filter=lambda body: master in body)
    return len(socket.dump(request))


def create_bridge_request(name: str, mac: bytes, mtu: int, *, vlan_filtering: bool = False) -> Request:
    """Makes a bridge, up; refused with EEXIST when there is a link of the name. `mtu` 0 is the kernel's default.

    The address is given so that the bridge keeps it: otherwise it takes the lowest of its ports' addresses. A kernel
    without VLAN filtering refuses it with EOPNOTSUPP.
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
    """One end of a pair to be: its name and address; the address is set by us so that udev does not change it later."""

    name: str
    mac: bytes


def create_veth_request(
    host: VethEnd, sandbox: VethEnd, namespace: Netns | None, *, master: int = 0, mtu: int
) -> Request:
    """Makes a veth pair, each end where it belongs: `host` here, up, a port of `master`; `sandbox` in `namespace`.

    Without a namespace both ends are here. A `master` of 0 is none.
    Moving an end between namespaces afterwards would cost some 17 ms of RCU waiting. `mtu` 0 is the kernel's default.
    """
    peer: Attributes = [("IFLA_IFNAME", sandbox.name), ("IFLA_ADDRESS", sandbox.mac), *_mtu(mtu)]
    if namespace is not None:
        peer.append(("IFLA_NET_NS_FD", namespace.fileno()))
    data = {"attrs": [("VETH_INFO_PEER", {"attrs": peer})]}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    attributes: Attributes = [("IFLA_IFNAME", host.name), ("IFLA_ADDRESS", host.mac)]
    attributes += [("IFLA_MASTER", master)] if master else []
    # The queue length is the reference's: no queue on the host's end unless somebody attaches a qdisc with its own.
    attributes += [*_mtu(mtu), ("IFLA_TXQLEN", 0), ("IFLA_LINKINFO", info)]
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    doing = f'make veth pair "{host.name}" - "{sandbox.name}"'
    return Request(doing, LinkMessage, RTM_NEWLINK, flags, {"flags": IFF_UP, "change": IFF_UP}, attributes)


def create_ifb_request(index: int, name: str, mac: bytes, mtu: int) -> Request:
    """Makes an intermediate functional block device, up; refused with EEXIST when there is a link of name or index.

    What is redirected to it passes its qdisc and goes on where it came from. The index is given so that other requests
    of the same send can name it.
    """
    info = {"attrs": [("IFLA_INFO_KIND", "ifb")]}
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_ADDRESS", mac), *_mtu(mtu), ("IFLA_TXQLEN", 0)]
    attributes.append(("IFLA_LINKINFO", info))
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    values = {"index": index, "flags": IFF_UP, "change": IFF_UP}
    return Request(f'create ifb "{name}"', LinkMessage, RTM_NEWLINK, flags, values, attributes)


def set_alias_request(index: int, text: str) -> Request:
    """Gives a link a text of up to 255 bytes (IFALIASZ, linux/if.h), which `ip link` shows."""
    values = {"index": index}
    doing = f"set the alias of interface {index}"
    return Request(doing, LinkMessage, RTM_NEWLINK, NLM_F_ACK, values, [("IFLA_IFALIAS", text)])


def set_request(
    link: Link,
    *,
    up: bool | None = None,
    promisc: bool | None = None,
    allmulti: bool | None = None,
    mac: bytes = b"",
    mtu: int = 0,
    tx_queue: int | None = None,
    master: int = 0,
    arp_notify: bool = False,
    name: str = "",
) -> Request:
    """Changes what is given of a link, in one message: flags, address, MTU, queue, bridge, gratuitous ARP, name.

    A new name is given before the link comes up; refused with EEXIST when another has it.
    """
    flags = change = 0
    words: list[str] = []
    attributes: Attributes = []
    for (flag, *told), wanted in ((_UP, up), (_PROMISC, promisc), (_ALLMULTI, allmulti)):
        if wanted is not None:
            flags |= flag * wanted
            change |= flag
            words.append(told[wanted])
    if mac:
        attributes.append(("IFLA_ADDRESS", mac))
        words.append(f"to address {format_mac(mac)}")
    if mtu:
        attributes.append(("IFLA_MTU", mtu))
        words.append(f"to MTU {mtu}")
    if tx_queue is not None:
        attributes.append(("IFLA_TXQLEN", tx_queue))
        words.append(f"to a queue of {tx_queue}")
    if master:
        attributes.append(("IFLA_MASTER", master))
        words.append(f"to be a port of interface {master}")
    if name:
        attributes.append(("IFLA_IFNAME", name))
    if arp_notify:
        attributes.append(_ARP_NOTIFY)
        words.append("to announce its addresses")
    if name:
        words.append(f'to name "{name}"')
    doing = f'set "{link.name}" {" and ".join(words)}'
    values = {"index": link.index, "flags": flags, "change": change}
    return Request(doing, LinkMessage, RTM_NEWLINK, NLM_F_ACK, values, attributes)


def probe_set(socket: Socket) -> None:
    """Raises KernelError where no link may be changed; told by a request for one that cannot be, as "/" is no name."""
    try:
        socket.send(Request("change an interface", LinkMessage, RTM_NEWLINK, NLM_F_ACK, {}, [("IFLA_IFNAME", "/")]))
    except KernelError as error:
        if error.errno == errno.EPERM:
            raise


def set_port_request(link: Link, *, hairpin: bool, isolated: bool) -> Request:
    """Switches on what is asked for of a bridge port; kernels before 4.18 refuse `isolated`: it is not sent unasked."""
    data: Attributes = [("IFLA_BRPORT_MODE", 1)] if hairpin else []
    data += [("IFLA_BRPORT_ISOLATED", 1)] if isolated else []
    info = {"attrs": [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", {"attrs": data})]}
    words = " and ".join(["hairpin"] * hairpin + ["isolated"] * isolated)
    doing = f'set {words} on for "{link.name}"'
    return Request(doing, LinkMessage, RTM_NEWLINK, NLM_F_ACK, {"index": link.index}, [("IFLA_LINKINFO", info)])


@dataclass(frozen=True)
class PortFlags:
    """The flags of a bridge port that we set."""

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
    """Deletes a link; absent is success."""
    doing = f'delete "{link.name}"'
    return Request(doing, LinkMessage, RTM_DELLINK, NLM_F_ACK, {"index": link.index}, [], (errno.ENODEV,))


def random_mac() -> bytes:
    """Returns a random locally administered unicast address."""
    mac = bytearray(os.urandom(6))
    mac[0] = mac[0] & 0xFE | 0x02
    return bytes(mac)


def _mtu(mtu: int) -> Attributes:
    return [("IFLA_MTU", mtu)] if mtu else []
