"""The attempts of a test, and one beside exchanges and transfers: a search for duplicate addresses.

All attempts have the same interface: `feed` until `is_done`, waiting for `descriptors` or `wait_s`.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from cni.address import Address, format_mac
from kernel import arp, ndp
from kernel.link import Link
from kernel.packet_socket import PacketSocket, arp_filter, neighbour_advertisement_filter
from kernel.rtnl import wait_readable
from podwire.trace.place import Place

_PROBES, _PROBE_INTERVAL_S = 2, 0.15
_HEADER_BYTES = 14  # of an Ethernet frame


class Attempt(Protocol):
    """A sent packet or connection that waits for its answer."""

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that are readable when there is something to `feed`."""

    @property
    def is_done(self) -> bool:
        """Whether it ended."""

    @property
    def wait_s(self) -> float:
        """The seconds until it has to be fed, even if no descriptor is readable."""

    def feed(self) -> None:
        """Continues without waiting."""


def run_all(attempts: Sequence[Attempt]) -> None:
    """Feeds attempts until each is done."""
    while True:
        for attempt in attempts:
            if not attempt.is_done:
                attempt.feed()
        pending = [attempt for attempt in attempts if not attempt.is_done]
        if not pending:
            return
        descriptors = [number for attempt in pending for number in attempt.descriptors]
        wait_readable(descriptors, max(0.0, min(attempt.wait_s for attempt in pending)) + 0.001)


class DuplicateSearch:
    """Asks on a pod's network who has the pod's own address: another machine must not answer. A context manager."""

    def __init__(self, source: Place, link: Link, address: Address) -> None:
        self.address = address
        self.other_mac = ""
        self.error = 0
        self.sent = 0
        self._mac = link.mac_bytes
        self._next_s = 0.0
        packets = arp_filter() if address.version == 4 else neighbour_advertisement_filter()
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(source.call(lambda: PacketSocket(link.index, packets)))

    def __enter__(self) -> DuplicateSearch:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def descriptors(self) -> list[int]:
        """The descriptor of the socket."""
        return [self._socket.fileno()]

    @property
    def is_done(self) -> bool:
        """Whether another machine answered, the kernel refused a probe, or time is up."""
        return bool(self.other_mac or self.error) or (self.sent >= _PROBES and time.monotonic() >= self._next_s)

    @property
    def wait_s(self) -> float:
        """The seconds until the next probe."""
        return self._next_s - time.monotonic()

    def feed(self) -> None:
        """Sends a probe if it is time, and reads answers."""
        try:
            self._continue()
        except OSError as error:  # the interface is down
            self.error = error.errno or errno.EIO

    def _continue(self) -> None:
        if self.sent < _PROBES and time.monotonic() >= self._next_s:
            self.sent += 1
            self._next_s = time.monotonic() + _PROBE_INTERVAL_S
            self._socket.send(self._frame())
        while (received := self._socket.receive()) is not None:
            packet = received[0][_HEADER_BYTES:]
            if self.address.version == 4:
                conflict = arp.find_conflict(packet, self._mac, {self.address.packed})
                mac = conflict.mac if conflict else None
            else:
                mac = ndp.find_owner(packet, self.address.packed)
            if mac and mac != self._mac:
                self.other_mac = format_mac(mac)

    def _frame(self) -> bytes:
        if self.address.version == 4:
            destination, ethertype = arp.BROADCAST, arp.ETH_P_ARP
            packet = arp.build_probe(self._mac, self.address.packed)
        else:
            destination, ethertype = ndp.multicast_mac(ndp.solicited_node(self.address.packed)), ndp.ETH_P_IPV6
            packet = ndp.build_probe(self.address.packed)
        return destination + self._mac + ethertype.to_bytes(2, "big") + packet
