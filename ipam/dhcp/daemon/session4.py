"""A DHCPv4 client at work on an interface: joins the state machine (client4.py) to a packet socket and to the loop.

One rule: the socket is open only while an answer can arrive, since a socket keeps a deleted pod's namespace alive.
"""

from __future__ import annotations

from functools import partial
from ipaddress import IPv4Address
from typing import Protocol

from cni.address import parse_mac
from cni.errors import CniError
from ipam.dhcp import frame, packet
from ipam.dhcp.client4 import Client, Event, Outgoing, State
from ipam.dhcp.daemon import interface
from ipam.dhcp.daemon.conflict import ConflictDetection
from ipam.dhcp.daemon.interface import CLIENT_PORT, SERVER_PORT, GoneError, Packets, Place
from ipam.dhcp.daemon.loop import Loop, Timer, now
from ipam.dhcp.lease import INFINITE, Lease
from kernel import packet_socket
from process.values import replace

_BROADCAST_MAC, _BROADCAST = b"\xff" * 6, IPv4Address(0xFFFFFFFF)
_UNSEEN_RETRY_S = 60.0  # for a namespace that cannot be looked at now
_MAX_FRAMES = 64  # read at once, so that a flood on one interface does not stop the others
_FAILURES = (CniError, OSError)  # KernelError is a CniError


class Listener(Protocol):
    """The binding of a session; each method ends the session or lets it continue."""

    def granted(self, lease: Lease) -> None:
        """Accepts a new or renewed lease."""

    def lost(self, reason: str) -> None:
        """Takes the lost lease from the interface; the session tries to get another."""

    def failed(self, reason: str) -> None:
        """Ends the binding, since there was no lease in the time allowed."""

    def gone(self) -> None:
        """Ends: the interface was deleted."""

    def log(self, text: str) -> None:
        """Logs a line."""

    def count(self, event: str) -> None:
        """Counts an event for the metrics."""


class Session4:
    """A client on the interface at `place`; with `detects_conflicts` it probes a new address before it accepts it."""

    def __init__(
        self, client: Client, place: Place, loop: Loop, listener: Listener, *, detects_conflicts: bool = False
    ) -> None:
        self._client = client
        self._place = place
        self._loop = loop
        self._listener = listener
        self._detects_conflicts = detects_conflicts
        self._packets: Packets | None = None
        self._detection: ConflictDetection | None = None
        self._timer: Timer | None = None
        self._accepted: Lease | None = None  # the last lease that the listener got

    @property
    def state(self) -> State:
        """The client's state."""
        return self._client.state

    def start(self) -> None:
        """Begins to acquire a lease."""
        self._client.start(now())
        self._proceed(None)

    def resume(self, lease: Lease, *, same_boot: bool) -> None:
        """Continues with a stored lease; the times of another boot mean nothing, so a server must confirm it."""
        self._accepted = lease
        self._client.resume(lease if same_boot else replace(lease, granted_s=-INFINITE), now(), same_boot=same_boot)
        self._proceed(None)

    def stop(self) -> None:
        """Closes the sockets and cancels the timers."""
        self._close_packets()
        if self._detection is not None:
            self._detection.stop()
            self._detection = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        """Stops and releases the lease: from the interface or, if it was deleted, from a host interface."""
        self.stop()
        lease, outgoing = self._client.lease or self._accepted, self._client.release()
        if lease is None or not outgoing:
            return
        try:
            packets = self._open_for_release()
            if packets is None:
                end = "" if lease.lifetime_s == INFINITE else f" for {max(0.0, lease.expires_at - now()):.0f} s"
                self._listener.log(
                    f"cannot release {lease.address.ip}, since no interface is left: {lease.server} keeps it{end}"
                )
                return
            for each in outgoing:
                packets.send(self._frame(each))
            packets.close()
        except _FAILURES as error:
            self._listener.log(f"failed to release DHCP lease: {error}")

    def _expire(self) -> None:
        """Acts on the deadline: of the client, or of the time in which answers can arrive."""
        self._timer = None
        if now() < self._client.deadline:
            self._proceed(None)
            return
        try:
            self._open_packets()
        except GoneError:
            self._listener.gone()
            return
        except _FAILURES as error:
            self._listener.log(f"cannot use the interface: {error}")
            self._retry_unseen()
            return
        self._proceed(self._client.expire(now()))

    def _retry_unseen(self) -> None:
        """Looks at the interface again later, until the lease expires: without a lease there is nothing to maintain."""
        lease = self._client.lease
        if lease is None or now() >= lease.expires_at:
            self._listener.gone()
        else:
            self._timer = self._loop.call_at(min(now() + _UNSEEN_RETRY_S, lease.expires_at), self._expire)

    def _read(self) -> None:
        """Reads the frames that have arrived."""
        for _ in range(_MAX_FRAMES):
            if self._packets is None:
                return
            try:
                received = self._packets.receive()
            except OSError as error:  # ENETDOWN: the interface was set down or deleted
                self._listener.log(f"cannot receive: {error.strerror}")
                self._close_packets()
                return
            if received is None:
                return
            self._receive(*received)

    def _receive(self, content: bytes, checksum_is_ready: bool) -> None:
        try:
            datagram = frame.parse_udp4(content, checksum_is_ready=checksum_is_ready)
            message = packet.decode(datagram.payload)
        except packet.Malformed:
            self._listener.count("malformed")
            return
        event = self._client.receive(message, now())
        if event is Event.GRANTED and self._client.lease is not None:
            self._client.lease = replace(self._client.lease, server_mac=datagram.source_mac.hex(":"))
        self._proceed(event)

    def _proceed(self, event: Event | None) -> None:
        """Sends what the client wants to send, waits for what comes next, and reports an event."""
        self._send(self._client.take_outgoing())
        if now() >= self._client.listening_until:
            self._close_packets()
        if self._timer is not None:
            self._timer.cancel()
        due = self._client.deadline
        if self._packets is not None:
            due = min(due, self._client.listening_until)
        self._timer = self._loop.call_at(due, self._expire) if due < INFINITE else None
        if event is not None:
            self._listener.count(event.value)
            self._report(event)

    def _report(self, event: Event) -> None:
        lease, before = self._client.lease, self._accepted
        if event is Event.FAILED:
            self._listener.failed(self._client.reason)
        elif lease is None:
            self._accepted = None
            self._listener.lost(self._client.reason)
        elif self._detects_conflicts and not (before and before.address.ip == lease.address.ip):
            self._detect_conflict(lease)
        else:
            self._accept(lease)

    def _accept(self, lease: Lease) -> None:
        self._accepted = lease
        self._listener.granted(lease)

    def _detect_conflict(self, lease: Lease) -> None:
        try:
            packets = interface.open_arp(self._place)
        except GoneError:
            self._listener.gone()
            return
        except _FAILURES as error:
            self._listener.log(f"cannot detect conflicts: {error}")
            self._accept(lease)
            return
        self._detection = ConflictDetection(packets, lease.address.ip, self._loop, partial(self._detected, lease))

    def _detected(self, lease: Lease, user: str) -> None:
        """Accepts a lease whose address no other host uses; declines another one and tries again."""
        self._detection = None
        if not user:
            self._accept(lease)
            return
        self._listener.log(f"declining {lease.address.ip}: it is in use by {user}")
        self._listener.count("declined")
        self._client.decline(now())
        self._proceed(None)

    def _send(self, outgoing: list[Outgoing]) -> None:
        if not outgoing:
            return
        try:
            packets = self._open_packets()
            for each in outgoing:
                packets.send(self._frame(each))
        except GoneError:
            return  # the next deadline finds it out, too
        except _FAILURES as error:
            self._listener.log(f"cannot send: {error}")

    def _frame(self, outgoing: Outgoing) -> bytes:
        """Returns a message as a frame; a server is reached by the MAC address of its last answer, or its relay's."""
        mac, address = _BROADCAST_MAC, _BROADCAST
        if outgoing.server is not None:
            address = outgoing.server
            if self._accepted is not None and self._accepted.server_mac:
                mac = parse_mac(self._accepted.server_mac)
        source_mac = self._client.identity.mac
        message = packet.encode(replace(outgoing.message, chaddr=source_mac))
        return frame.build_udp4(source_mac, mac, outgoing.source, address, CLIENT_PORT, SERVER_PORT, message)

    def _open_for_release(self) -> Packets | None:
        """Returns a socket on the interface or, if it was deleted, on a host interface on the same network."""
        accepted = packet_socket.dhcp4_filter()
        try:
            packets = interface.open_packets(self._place, accepted)
        except (GoneError, CniError):
            self._identify(parse_mac(self._place.target.mac))
            name = self._place.target.host_interface
            return interface.open_host_packets(name, accepted) if name else None
        self._identify(packets.mac)
        return packets

    def _open_packets(self) -> Packets:
        """Opens the packet socket unless it is open; raises GoneError, CniError, OSError."""
        if self._packets is None:
            lease = self._client.lease
            accepted = packet_socket.dhcp4_filter()
            self._packets = interface.open_packets(
                self._place, accepted, answers_to=lease.address.ip if lease else None
            )
            self._identify(self._packets.mac)
            self._loop.watch(self._packets.fileno(), self._read)
        return self._packets

    def _identify(self, mac: bytes) -> None:
        """Uses the interface's present MAC address: tuning may have changed it after ADD."""
        if mac != self._client.identity.mac:
            self._client.identity = replace(self._client.identity, mac=mac)

    def _close_packets(self) -> None:
        if self._packets is not None:
            self._loop.unwatch(self._packets.fileno())
            self._packets.close()
            self._packets = None
