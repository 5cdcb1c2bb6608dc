"""`conflictDetection`: ADD asks the network whether another host uses the pod's IPv4 address (RFC 5227).

The kernel does the same for IPv6 addresses (RFC 4862), and every ADD waits for that.

Three ARP probes are sent, one to two seconds apart. An address is free if no host has answered two seconds after the
last one. An answer ends the wait. The interface has no address yet, so the answers for an ipvlan interface arrive on
its master: the probes are sent from there.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from contextlib import nullcontext
from ipaddress import IPv4Address

from attachment.sandbox import Sandbox, attachment_ips
from cni.address import format_mac
from cni.errors import internal
from cni.keys import BOOLEAN, Key
from cni.result import Result
from kernel import link
from kernel.link import Link
from kernel.netns import Netns, entered
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
    probed = _probed_addresses(sandbox, result)
    if probed:
        sandbox.socket.change(link.set_request(container_link, up=True))
        _refuse_used(sandbox.namespace, container_link, probed)
        # The kernel announces the addresses when the interface comes up.
        sandbox.socket.change(link.set_request(container_link, up=False))


def refuse_conflicts_on_master(sandbox: Sandbox, master: Link, result: Result, *, in_container: bool) -> None:
    """Raises CniError(999) if another host uses an IPv4 address of an ipvlan interface; probes from its master.

    Both have the same MAC address. `master` is up, with `in_container` in the sandbox. Raises KernelError, OSError,
    CniError(8).
    """
    probed = _probed_addresses(sandbox, result)
    if probed:
        _refuse_used(sandbox.namespace if in_container else None, master, probed)


def _probed_addresses(sandbox: Sandbox, result: Result) -> dict[bytes, IPv4Address]:
    ips = (ip.address.ip for ip in attachment_ips(result, sandbox.ifname))
    return {} if record.is_dry_run() else {ip.packed: ip for ip in ips if isinstance(ip, IPv4Address)}


def _refuse_used(namespace: Netns | None, prober: Link, probed: Mapping[bytes, IPv4Address]) -> None:
    """Sends probes from `prober`, a link in `namespace` or the current one; raises CniError(999) for an answer."""
    with entered(namespace) if namespace else nullcontext():
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, socket.htons(_ETH_P_ARP))
    with packets, record.timed_step("detect address conflicts"):
        packets.bind((prober.name, _ETH_P_ARP))
        for number in range(1, _PROBES + 1):
            for packed in probed:
                packets.sendto(_probe(prober, packed), (prober.name, _ETH_P_ARP, 0, 0, _BROADCAST))
            interval_s = _INTERVAL_MIN_S + _INTERVAL_RANGE_S * os.urandom(1)[0] / 255
            _listen(packets, prober, probed, interval_s if number < _PROBES else _ANNOUNCE_WAIT_S)


def _probe(prober: Link, packed: bytes) -> bytes:
    """Returns an ARP request for an address, without an address of the sender, which no host stores."""
    ethernet = _ETHERNET, _ETH_P_IP, 6, 4, _REQUEST
    return _PACKET.pack(*ethernet, prober.mac_bytes, bytes(4), bytes(6), packed)


def _listen(packets: socket.socket, prober: Link, probed: Mapping[bytes, IPv4Address], wait_s: float) -> None:
    """Reads ARP packets for `wait_s` seconds; raises CniError(999) for one of another user of an address."""
    deadline = Deadline(wait_s)
    while (remaining_s := deadline.remaining_s()) and wait_readable([packets.fileno()], remaining_s):
        content = packets.recv(_PACKET_BYTES)
        if len(content) < _PACKET.size:
            continue
        *_, operation, sender_mac, sender, _, target = _PACKET.unpack_from(content)
        # A probe of another host for the same address is a conflict, too (RFC 5227 section 2.1.1).
        packed = target if operation == _REQUEST and sender == bytes(4) else sender
        if packed in probed and sender_mac != prober.mac_bytes:
            details = "remove the address there, or exclude it from the IPAM range; host-local's next ADD tries another"
            raise internal(f"address {probed[packed]} is in use by {format_mac(sender_mac)}", details)
