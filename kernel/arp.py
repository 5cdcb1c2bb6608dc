"""ARP probes, which show whether another host uses an IPv4 address (RFC 5227 section 2.1.1).

Three probes are sent, one to two seconds apart. An address is free if no host has answered two seconds after
the last.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from typing import NamedTuple

ETH_P_ARP = 0x0806  # linux/if_ether.h
BROADCAST = b"\xff" * 6
# RFC 5227 section 1.1. There is no delay before the first probe: it is meant for hosts that boot at the same time.
PROBES = 3
_INTERVAL_MIN_S, _INTERVAL_RANGE_S, _ANNOUNCE_WAIT_S = 1.0, 1.0, 2.0

_ETH_P_IP = 0x0800
_ETHERNET, _REQUEST = 1, 1  # linux/if_arp.h
_PACKET = struct.Struct(">HHBBH6s4s6s4s")  # types, lengths, operation; MAC and IP of the sender and of the target


class AddressConflict(NamedTuple):
    """An address in use by another host, both as bytes."""

    address: bytes
    mac: bytes


def build_probe(mac: bytes, address: bytes) -> bytes:
    """Returns an ARP request for an address, without an address of the sender, which no host stores."""
    return build_request(mac, bytes(4), address)


def build_request(mac: bytes, sender: bytes, address: bytes) -> bytes:
    """Returns an ARP request of the host with an address and a MAC address for another address."""
    return _PACKET.pack(_ETHERNET, _ETH_P_IP, 6, 4, _REQUEST, mac, sender, bytes(6), address)


def find_conflict(packet: bytes, mac: bytes, probed: Collection[bytes]) -> AddressConflict | None:
    """Returns the conflict that an ARP packet shows with an address probed by `mac`, None without one."""
    if len(packet) < _PACKET.size:
        return None
    *_, operation, sender_mac, sender, _, target = _PACKET.unpack_from(packet)
    # A probe of another host for the same address is a conflict, too.
    address = target if operation == _REQUEST and sender == bytes(4) else sender
    return AddressConflict(address, sender_mac) if address in probed and sender_mac != mac else None


def compute_wait_s(number: int) -> float:
    """Returns how long to wait for answers after the probe `number`, from 1 to PROBES; the intervals are random."""
    return _ANNOUNCE_WAIT_S if number >= PROBES else _INTERVAL_MIN_S + _INTERVAL_RANGE_S * os.urandom(1)[0] / 255
