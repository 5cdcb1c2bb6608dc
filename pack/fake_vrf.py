"""The VRF device of the warm-up's fake kernel, which exists between its creation and its deletion.

One rule: there is one VRF device at most, and while it exists the pod's interface is its port.
"""

from __future__ import annotations

import errno
import struct

import kernel.link
import kernel.vrf
from kernel.codec_vrf import VrfMessage
from kernel.rtnl import NLM_F_CREATE
from kernel.wire import Attributes, encode

_NAME = "blue"
CONF = {"vrfname": _NAME}
_INDEX, _TABLE, _NLMSG_ERROR = 1_000_000_004, 1, 2
_HEADER, _INT, _MASTER = struct.Struct("=IHHII"), struct.Struct("=i"), struct.Struct("=HHI")
_IFLA_MASTER = 10  # linux/if_link.h

_existing: set[str] = set()  # the device, and its port


def update(kind: int, flags: int, request: bytes) -> None:
    """Creates or deletes the device, or makes the pod's interface its port; ignores other requests."""
    if kind == kernel.link.RTM_NEWLINK and flags & NLM_F_CREATE and b"vrf\0" in request:
        _existing.add(_NAME)
    elif kind == kernel.link.RTM_NEWLINK and _MASTER.pack(_MASTER.size, _IFLA_MASTER, _INDEX) in request:
        _existing.add("port")
    elif kind == kernel.link.RTM_DELLINK and _is_named(request):
        _existing.clear()


def answer(request: bytes, sequence: int) -> bytes:
    """Returns the device or ENODEV; b"" for a request for another link."""
    if not _is_named(request):
        return b""
    if not _existing:
        return _HEADER.pack(_HEADER.size + 4, _NLMSG_ERROR, 0, sequence, 0) + _INT.pack(-errno.ENODEV)
    data = {"attrs": [("IFLA_VRF_TABLE", _TABLE)]}
    info = {"attrs": [("IFLA_INFO_KIND", kernel.vrf.KIND), ("IFLA_INFO_DATA", data)]}
    attributes: Attributes = [("IFLA_IFNAME", _NAME), ("IFLA_IFALIAS", "podwire"), ("IFLA_LINKINFO", info)]
    header = kernel.link.RTM_NEWLINK, 0, sequence
    return encode(VrfMessage, header, {"index": _INDEX, "flags": kernel.link.IFF_UP}, attributes)


def get_master() -> int:
    """Returns the ifindex of the master of the pod's interface, 0 for none."""
    return _INDEX if "port" in _existing else 0


def _is_named(request: bytes) -> bool:
    return _NAME.encode() + b"\0" in request
