"""`conflictDetection`: ADD asks the network whether another host uses the pod's IPv4 address (RFC 5227).

The kernel does the same for IPv6 addresses (RFC 4862), and every ADD waits for that.

The interface has no address yet. Three ARP probes are sent, one to two seconds apart. An address is free if no host
has answered two seconds after the last one. An answer ends the wait.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from ipaddress import IPv4Address

from attachment.sandbox import Sandbox, attachment_ips
from cni.address import format_mac
from cni.errors import internal
from cni.keys import BOOLEAN, Key
from cni.result import Result
from kernel import link
from kernel.link import Link
from kernel.netns import entered
from kernel.rtnl import Deadline, wait_readable
from process import record

KEY = Key("conflictDetection", (BOOLEAN,))

_ETH_P_ARP, _ETH_P_IP = 0x0806, 0x0800  # linux/if_ether.h
_ETHERNET, _REQUEST = 1, 1  # linux/if_arp.h
_PACKET = struct.Struct(">HHBBH6s4s6s4s")  # types, lengths, operation; MAC and IP of the sender and of the target
_PACKET_BYTES = 1500
_BROADCAST = b"\xff" * 6
# RFC 5227 section 1.1. There is no delay before the first probe: it is meant for hosts that boot at the same time.
_PROBES, _INTERVAL_MIN_S, _INTERVAL_RANGE_S, _ANNOUNCE_WAIT_S = 3, 1.0, 1.0, 2.0


def refuse_conflicts(sandbox: Sandbox, container_link: Link, result: Result) -> None:
    """Raises CniError(999) if another host uses an IPv4 address of `result`; takes four to six seconds otherwise.

    The interface is down before and after. Raises KernelError, OSError, CniError(8).
    """
    ips = (ip.address.ip for ip in attachment_ips(result, sandbox.ifname))
    probed = {ip.packed: ip for ip in ips if isinstance(ip, IPv4Address)}
    if not probed or record.is_dry_run():
        return
    sandbox.socket.change(link.set_request(container_link, up=True))
    with entered(sandbox.namespace):
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, socket.htons(_ETH_P_ARP))
    with packets, record.timed_step("detect address conflicts"):
        packets.bind((container_link.name, _ETH_P_ARP))
        for number in range(1, _PROBES + 1):
            for packed in probed:
                packets.sendto(_probe(container_link, packed), (container_link.name, _ETH_P_ARP, 0, 0, _BROADCAST))
            interval_s = _INTERVAL_MIN_S + _INTERVAL_RANGE_S * os.urandom(1)[0] / 255
            _listen(packets, container_link, probed, interval_s if number < _PROBES else _ANNOUNCE_WAIT_S)
    # The kernel announces the addresses when the interface comes up.
    sandbox.socket.change(link.set_request(container_link, up=False))


def _probe(container_link: Link, packed: bytes) -> bytes:
    """Returns an ARP request for an address, without an address of the sender, which no host stores."""
    ethernet = _ETHERNET, _ETH_P_IP, 6, 4, _REQUEST
    return _PACKET.pack(*ethernet, container_link.mac_bytes, bytes(4), bytes(6), packed)


def _listen(packets: socket.socket, container_link: Link, probed: Mapping[bytes, IPv4Address], wait_s: float) -> None:
    """Reads ARP packets for `wait_s` seconds; raises CniError(999) for one of another user of an address."""
    deadline = Deadline(wait_s)
    while (remaining_s := deadline.remaining_s()) and wait_readable([packets.fileno()], remaining_s):
        content = packets.recv(_PACKET_BYTES)
        if len(content) < _PACKET.size:
            continue
        *_, operation, sender_mac, sender, _, target = _PACKET.unpack_from(content)
        # A probe of another host for the same address is a conflict, too (RFC 5227 section 2.1.1).
        packed = target if operation == _REQUEST and sender == bytes(4) else sender
        if packed in probed and sender_mac != container_link.mac_bytes:
            details = "remove the address there, or exclude it from the IPAM range; host-local's next ADD tries another"
            raise internal(f"address {probed[packed]} is in use by {format_mac(sender_mac)}", details)
