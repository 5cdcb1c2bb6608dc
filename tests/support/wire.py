"""A station on an Ethernet: `python -m tests.support.wire INTERFACE`, which tests.support.frames runs in a pod.

One rule: it reports frames as they were on the wire. The kernel removes VLAN tags before programs receive frames; scapy
restores them.
"""

from __future__ import annotations

import json
import select
import sys
from typing import Any

from scapy.arch import get_if_hwaddr
from scapy.config import conf
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

_EXPERIMENTAL = 0x88B5  # an EtherType for local experiments (IEEE 802); other frames are ignored
_QUIET_S = 0.3


def main(interface: str) -> None:
    """Answers each line of JSON on stdin: sends a list of [tag, text], or reports received frames for null."""
    wire = conf.L2socket(iface=interface)
    print("listening", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        for tag, text in request or ():
            wire.send(_frame(get_if_hwaddr(interface), tag, text))
        print(json.dumps(_receive(wire) if request is None else []), flush=True)


def _frame(source: str, tag: int, text: str) -> Packet:
    ends: dict[str, Any] = {"src": source, "dst": "ff:ff:ff:ff:ff:ff"}
    if not tag:
        return Ether(**ends, type=_EXPERIMENTAL) / Raw(text.encode())
    return Ether(**ends) / Dot1Q(vlan=tag, type=_EXPERIMENTAL) / Raw(text.encode())


def _receive(wire: Any) -> list[tuple[int, str]]:
    frames = []
    while select.select([wire], [], [], _QUIET_S)[0]:
        frame = wire.recv()
        layer = frame and (frame.getlayer(Dot1Q) or frame.getlayer(Ether))
        if layer and layer.type == _EXPERIMENTAL:
            frames.append((layer.vlan if isinstance(layer, Dot1Q) else 0, bytes(layer.payload).rstrip(b"\0").decode()))
    return frames


if __name__ == "__main__":
    main(sys.argv[1])
