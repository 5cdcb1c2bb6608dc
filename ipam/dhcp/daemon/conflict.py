"""`conflictDetection` of a leased address: asks whether another host uses it (RFC 2131, section 3.1, step 5).

It takes four to six seconds if no host answers (kernel/arp.py).
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address

from cni.address import format_mac
from ipam.dhcp.daemon.interface import PacketSockets
from kernel import arp
from process.loop import Loop, Timer, now

_ETHERNET_HEADER_BYTES = 14


class ConflictDetection:
    """Probes `address` on `packets`, then calls `done` with the MAC address of its user, "" if no host answered."""

    def __init__(self, packets: PacketSockets, address: IPv4Address, loop: Loop, done: Callable[[str], None]) -> None:
        self._packets: PacketSockets | None = packets
        self.address = address
        self._loop = loop
        self._done = done
        self._sent = 0
        self._timer: Timer | None = None
        loop.watch(packets.filenos()[0], self._read)
        self._probe()

    def stop(self) -> None:
        """Ends without calling `done`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._packets is not None:
            self._loop.unwatch(self._packets.filenos()[0])
            self._packets.close()
            self._packets = None

    def _probe(self) -> None:
        if self._packets is None:
            return
        if self._sent == arp.PROBES:
            self._end("")
            return
        header = arp.BROADCAST + self._packets.mac + arp.ETH_P_ARP.to_bytes(2, "big")
        try:
            self._packets.send(header + arp.build_probe(self._packets.mac, self.address.packed))
        except OSError:  # the interface is down: no host can answer, or be disturbed
            self._end("")
            return
        self._sent += 1
        self._timer = self._loop.call_at(now() + arp.compute_wait_s(self._sent), self._probe)

    def _read(self) -> None:
        while self._packets is not None:
            try:
                received = self._packets.receive(0)
            except OSError:
                self._end("")
                return
            if received is None:
                return
            packet = received[0][_ETHERNET_HEADER_BYTES:]
            conflict = arp.find_conflict(packet, self._packets.mac, (self.address.packed,))
            if conflict is not None:
                self._end(format_mac(conflict.mac))

    def _end(self, user: str) -> None:
        self.stop()
        self._done(user)
