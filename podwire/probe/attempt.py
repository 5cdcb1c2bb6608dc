"""The attempts of a test, and one beside exchanges and transfers: a search for the machine that has an address.

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

_INTERVAL_S = 0.15
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


class OwnerSearch:
    """Asks on a link (ARP, NDP) which other machine has an address: `other_mac` is its answer. A context manager.

    `same_place_ifname` is another interface of the source that answered: with arp_ignore 0 each answers for all.
    `sender` is the link's address that asks. Without a sender, ask only for the link's own address: a machine that is
    still checking the address would give it up.
    """

    def __init__(self, source: Place, link: Link, address: Address, sender: Address | None, limit_s: float) -> None:
        self.address = address
        self._sender = sender
        self._requests = max(2, int(limit_s / _INTERVAL_S))
        self.other_mac = self.same_place_ifname = ""
        self.error = 0
        self.sent = 0
        self._mac = link.mac_bytes
        self._names_by_mac = {one.mac: one.name for one in source.links if one.index != link.index and not sender}
        self._next_s = 0.0
        packets = arp_filter() if address.version == 4 else neighbour_advertisement_filter()
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(source.call(lambda: PacketSocket(link.index, packets)))

    def __enter__(self) -> OwnerSearch:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def descriptors(self) -> list[int]:
        """The descriptor of the socket."""
        return [self._socket.fileno()]

    @property
    def is_done(self) -> bool:
        """Whether another machine answered, the kernel refused a request, or time is up."""
        return bool(self.other_mac or self.error) or (self.sent >= self._requests and time.monotonic() >= self._next_s)

    @property
    def wait_s(self) -> float:
        """The seconds until the next request."""
        return self._next_s - time.monotonic()

    def feed(self) -> None:
        """Sends a request if it is time, and reads answers."""
        try:
            self._continue()
        except OSError as error:  # the interface is down
            self.error = error.errno or errno.EIO

    def _continue(self) -> None:
        if self.sent < self._requests and time.monotonic() >= self._next_s:
            self.sent += 1
            self._next_s = time.monotonic() + _INTERVAL_S
            self._socket.send(self._frame())
        while (received := self._socket.receive()) is not None:
            packet = received[0][_HEADER_BYTES:]
            if self.address.version == 4:
                conflict = arp.find_conflict(packet, self._mac, {self.address.packed})
                mac = conflict.mac if conflict else None
            else:
                mac = ndp.find_owner(packet, self.address.packed)
            if mac and format_mac(mac) in self._names_by_mac:
                self.same_place_ifname = self._names_by_mac[format_mac(mac)]
            elif mac and mac != self._mac:
                self.other_mac = format_mac(mac)

    def _frame(self) -> bytes:
        target, sender = self.address.packed, self._sender.packed if self._sender else b""
        if self.address.version == 4:
            destination, ethertype = arp.BROADCAST, arp.ETH_P_ARP
            packet = arp.build_request(self._mac, sender, target) if sender else arp.build_probe(self._mac, target)
        else:
            destination, ethertype = ndp.multicast_mac(ndp.solicited_node(target)), ndp.ETH_P_IPV6
            packet = ndp.build_request(self._mac, sender, target) if sender else ndp.build_probe(target)
        return destination + self._mac + ethertype.to_bytes(2, "big") + packet
