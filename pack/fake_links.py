"""The links of the warm-up's fake kernel: lo, a bridge, a veth pair, and those that plugins create or move.

One rule: there is one link of each sort, and all namespaces have the same links; both ends of the veth pair are one.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import kernel.link
import kernel.tap
import kernel.vrf
from kernel.codec import LinkMessage
from kernel.codec_links import TunMessage
from kernel.codec_vrf import VrfMessage
from kernel.rtnl import NLM_F_CREATE
from kernel.wire import Attributes, encode
from pack.fake_request import HEADER_BYTES, NetlinkRequest

LO, BRIDGE, VETH, CHILD, DEVICE, IFB, VRF = 1, 2, 3, 4, 9, 1_000_000_003, 1_000_000_004  # their ifindexes
CHILD_NAME = "net1"  # of the single link that macvlan, tap and similar plugins create
VRF_NAME = "blue"
ON_HOST, IN_SANDBOX = "hd0", "net9"  # the names of the device that host-device moves
MAC = b"\x02\0\0\0\0\x01"

_NAMES = {LO: "lo", BRIDGE: "cni0", VETH: "eth0"}
_KINDS = {LO: "", BRIDGE: "bridge", VETH: "veth"}
_IFB_PREFIX = b"bwp"
_INTERFACE = struct.Struct("=BxHiII")  # struct ifinfomsg
_MASTER = struct.Struct("=HHI")  # IFLA_MASTER
_IFLA_MASTER = 10  # linux/if_link.h
_NETNS_FD = b"\x08\0\x1c\0"  # IFLA_NET_NS_FD, as the first attribute
_TAP: Attributes = [("IFLA_TUN_TYPE", 2), ("IFLA_TUN_PERSIST", 1), ("IFLA_TUN_MULTI_QUEUE", 0)]


class Links:
    """The links; those that verbs create exist until they are deleted."""

    def __init__(self) -> None:
        self._created: dict[int, bytes] = {}  # by ifindex: the attributes of the message that created the link
        self._device_name = ON_HOST
        self._vrf_port = False  # whether the veth is a port of the VRF device

    def answers(self, request: NetlinkRequest) -> Iterator[bytes]:
        """Executes a request for a link, and yields its answers but the acknowledgement."""
        index, attributes = _parse(request)
        if request.kind == kernel.link.RTM_NEWLINK:
            self._set(request, index, attributes)
        elif request.kind == kernel.link.RTM_DELLINK:
            self._delete(index)
        elif request.kind == kernel.link.RTM_GETLINK:
            yield self._get(request, index, attributes)

    def create_tap(self, name: str) -> None:
        """Creates a tap device, as the ioctls do."""
        info = {"attrs": [("IFLA_INFO_KIND", kernel.tap.KIND), ("IFLA_INFO_DATA", {"attrs": _TAP})]}
        message = encode(TunMessage, (0, 0, 0), {}, [("IFLA_IFNAME", name), ("IFLA_LINKINFO", info)])
        self._created[CHILD] = message[HEADER_BYTES + _INTERFACE.size :]

    def _set(self, request: NetlinkRequest, index: int, attributes: bytes) -> None:
        if index == DEVICE:
            if attributes.startswith(_NETNS_FD):
                self._device_name = IN_SANDBOX if self._device_name == ON_HOST else ON_HOST
        elif index in (CHILD, IFB, VRF) and request.flags & NLM_F_CREATE:
            self._created[index] = attributes
        elif _MASTER.pack(_MASTER.size, _IFLA_MASTER, VRF) in attributes:
            self._vrf_port = True

    def _delete(self, index: int) -> None:
        self._created.pop(index, None)
        if index == VRF:
            self._vrf_port = False

    def _get(self, request: NetlinkRequest, index: int, attributes: bytes) -> bytes:
        if index == DEVICE:
            other = IN_SANDBOX if self._device_name == ON_HOST else ON_HOST
            return request.refusal(errno.ENODEV) if _is_named(other, attributes) else self._device(request)
        if index not in _NAMES and index not in self._created:
            return request.refusal(errno.ENODEV)
        if index == CHILD:
            return self._child(request)
        if index == VRF:
            return _vrf(request)
        if index == IFB:
            interface = _INTERFACE.pack(0, 0, IFB, kernel.link.IFF_UP, 0)
            return request.answer(kernel.link.RTM_NEWLINK, interface + self._created[IFB])
        master = BRIDGE
        if _is_named(_NAMES[VETH], attributes):  # the end in the sandbox
            master = VRF if self._vrf_port else 0
        return _basic(request, index, master)

    def _child(self, request: NetlinkRequest) -> bytes:
        attributes: Attributes = [
            ("IFLA_ADDRESS", MAC[:-1] + b"\x02"),
            ("IFLA_MTU", 1500),
            ("IFLA_LINK_NETNSID", 0),
            ("IFLA_OPERSTATE", kernel.link.OPERSTATE_UP),
        ]
        answer = _link(request, CHILD, attributes)
        return request.answer(kernel.link.RTM_NEWLINK, answer[HEADER_BYTES:] + self._created[CHILD])

    def _device(self, request: NetlinkRequest) -> bytes:
        attributes: Attributes = [
            ("IFLA_ADDRESS", MAC),
            ("IFLA_IFNAME", self._device_name),
            ("IFLA_MTU", 1500),
            ("IFLA_OPERSTATE", kernel.link.OPERSTATE_UP),
            ("IFLA_IFALIAS", "" if self._device_name == ON_HOST else ON_HOST),
        ]
        return _link(request, DEVICE, attributes)


def _parse(request: NetlinkRequest) -> tuple[int, bytes]:
    """Returns the ifindex of the link that a request is for, by ifindex or name, and the request's attributes."""
    _, _, index, _, _ = _INTERFACE.unpack_from(request.content)
    attributes = request.content[_INTERFACE.size :]
    if index:
        return index, attributes
    if not attributes or _is_named(ON_HOST, attributes) or _is_named(IN_SANDBOX, attributes):
        return DEVICE, attributes  # it is also the answer to a list of all links
    if _IFB_PREFIX in attributes:
        return IFB, attributes
    names = {CHILD: CHILD_NAME, VRF: VRF_NAME, **_NAMES}
    return next((number for number, name in names.items() if _is_named(name, attributes)), VETH), attributes


def _is_named(name: str, attributes: bytes) -> bool:
    return f"{name}\0".encode() in attributes


def _basic(request: NetlinkRequest, index: int, master: int) -> bytes:
    """Returns lo, the bridge or the veth."""
    attributes: Attributes = [
        ("IFLA_ADDRESS", bytes(6) if index == LO else MAC),
        ("IFLA_IFNAME", _NAMES[index]),
        ("IFLA_MTU", 1500),
        ("IFLA_LINK", VETH),
        ("IFLA_MASTER", master),
        ("IFLA_OPERSTATE", kernel.link.OPERSTATE_UP),
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", _KINDS[index])]}),
        ("IFLA_LINK_NETNSID", 0),
    ]
    return _link(request, index, attributes)


def _vrf(request: NetlinkRequest) -> bytes:
    data = {"attrs": [("IFLA_VRF_TABLE", 1)]}
    info = {"attrs": [("IFLA_INFO_KIND", kernel.vrf.KIND), ("IFLA_INFO_DATA", data)]}
    attributes: Attributes = [("IFLA_IFNAME", VRF_NAME), ("IFLA_IFALIAS", "podwire"), ("IFLA_LINKINFO", info)]
    values = {"index": VRF, "flags": kernel.link.IFF_UP}
    return request.encode(VrfMessage, kernel.link.RTM_NEWLINK, values, attributes)


def _link(request: NetlinkRequest, index: int, attributes: Attributes) -> bytes:
    values = {"index": index, "flags": kernel.link.IFF_UP}
    return request.encode(LinkMessage, kernel.link.RTM_NEWLINK, values, attributes)
