"""A client at work on an interface: joins ipv4_client.py or ipv6_client.py to packet sockets and to the loop.

One rule: the sockets are open only while an answer can arrive, since a socket keeps a deleted pod's namespace alive.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address
from typing import NamedTuple, Protocol

from cni.address import format_ip, parse_mac
from cni.errors import CniError
from ipam.dhcp.address6 import link_local_address
from ipam.dhcp.client4 import Event
from ipam.dhcp.daemon import interface
from ipam.dhcp.daemon.conflict import ConflictDetection
from ipam.dhcp.daemon.interface import GoneError, LeasedInterface, PacketSockets
from ipam.dhcp.ipv4_client import Ipv4Client
from ipam.dhcp.ipv6_client import Ipv6Client
from ipam.dhcp.lease import Lease
from ipam.dhcp.leases import AnyLease
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet import Malformed
from kernel import packet_socket
from kernel.packet_socket import PacketFilter
from process.loop import Loop, Timer, now

_CLOSE_AFTER_S = 1.0
_UNSEEN_RETRY_S = 60.0  # for a namespace that cannot be looked at now
_MAX_FRAMES = 64  # read at once, so that a flood on one interface does not stop the others
_FAILURES = (CniError, OSError)  # KernelError is a CniError


class LeaseListener(Protocol):
    """The binding of a session; `version` is 4 or 6."""

    def granted(self, version: int, lease: AnyLease) -> None:
        """Accepts a new or renewed lease."""

    def lost(self, version: int, reason: str) -> None:
        """Removes the lost lease from the interface; the session tries to get another."""

    def failed(self, reason: str) -> None:
        """Ends the binding, since there was no lease in the time allowed."""

    def gone(self) -> None:
        """Ends the binding, since the interface was deleted."""

    def log(self, text: str) -> None:
        """Logs a line."""

    def count(self, event: str) -> None:
        """Counts an event for the metrics."""


class Family(NamedTuple):
    """An IP version: its number, and the frames that its client receives, with a socket for each filter.

    `filters` gets the interface's MAC address. The interfaces of ipvlan pods have the same one: each client receives
    the answers to all of them, and compares transaction and client identifier.
    """

    version: int
    filters: Callable[[bytes], tuple[PacketFilter, ...]]


# Other frames must not fill the socket's buffer: a server's answer would be lost. A router advertisement is for all.
IPV4 = Family(4, lambda mac: (packet_socket.dhcp4_filter(mac),))
IPV6 = Family(6, lambda _: (packet_socket.dhcp6_filter(), packet_socket.router_advertisement_filter()))


class Session:
    """A client on the interface at `place`.

    With `detects_conflicts` it probes a new IPv4 address before it accepts it.
    """

    def __init__(
        self,
        family: Family,
        client: Ipv4Client | Ipv6Client,
        place: LeasedInterface,
        loop: Loop,
        listener: LeaseListener,
        *,
        detects_conflicts: bool = False,
    ) -> None:
        self._family = family
        self._client = client
        self._place = place
        self._loop = loop
        self._listener = listener
        self._detects_conflicts = detects_conflicts
        self._packets: PacketSockets | None = None
        self._detection: ConflictDetection | None = None
        self._timer: Timer | None = None
        self._accepted: AnyLease | None = None  # the last lease that the listener got

    @property
    def state(self) -> str:
        """The client's state, for metrics."""
        return str(self._client.state.value)

    def start(self) -> None:
        """Begins to acquire a lease."""
        if self._is_usable(self._listener.failed):
            self._client.start(now())
            self._proceed(None)

    def resume(self, lease: AnyLease, *, same_boot: bool) -> None:
        """Continues with a stored lease."""
        self._accepted = lease
        self._client.resume(lease, now(), same_boot=same_boot)
        self._proceed(None)

    def stop(self) -> None:
        """Closes the sockets and cancels the timers."""
        self._close_packets()
        self._stop_detection()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_detection(self) -> None:
        if self._detection is not None:
            self._detection.stop()
            self._detection = None

    def release(self) -> None:
        """Stops and releases the lease: from the interface or, if it is down or was deleted, from the host's."""
        self.stop()
        lease, address = self._client.lease, self._client.claimed
        try:
            packets = self._open_for_release() if address is not None else None
            frames = self._client.release()
            if packets is not None:
                for each in frames:
                    packets.send(each)
                packets.close()
            elif address is not None:
                end = ""
                if lease is not None and lease.lifetime_s != INFINITE_S:
                    end = f" for {max(0.0, lease.expires_at - now()):.0f} s"
                text = f"cannot release {format_ip(address)}, since no interface is up: the server keeps it{end}"
                self._listener.log(text)
        except _FAILURES as error:
            self._listener.log(f"failed to release DHCP lease: {error}")

    def _expire(self) -> None:
        """Acts on the deadline: of the client, or of the time in which answers can arrive."""
        self._timer = None
        if now() < self._client.deadline:
            self._proceed(None)
            return
        if self._is_usable(self._retry_unseen):
            self._proceed(self._client.expire(now()))

    def _is_usable(self, failed: Callable[[str], None]) -> bool:
        """Opens the packet sockets, or looks at the interface if they are open, and returns whether that succeeded.

        Otherwise reports a deleted interface to the listener, and passes another problem to `failed`.
        """
        try:
            if self._packets is None:
                self._open_packets()
            else:
                interface.check(self._place)
        except GoneError:
            self._listener.gone()
        except _FAILURES as error:
            failed(f"cannot use the interface: {error}")
        else:
            return True
        return False

    def _retry_unseen(self, problem: str) -> None:
        """Looks at the interface again later, until the lease expires: without a lease there is nothing to maintain."""
        self._listener.log(problem)
        lease = self._client.lease
        if lease is None or now() >= lease.expires_at:
            self._listener.gone()
        else:
            self._timer = self._loop.call_at(min(now() + _UNSEEN_RETRY_S, lease.expires_at), self._expire)

    def _read(self, number: int) -> None:
        """Reads the frames that have arrived at a socket."""
        for _ in range(_MAX_FRAMES):
            if self._packets is None:
                return
            try:
                received = self._packets.receive(number)
            except OSError as error:  # ENETDOWN: the interface was set down or deleted
                self._listener.log(f"cannot receive: {error.strerror}")
                self._close_packets()
                return
            if received is None:
                return
            content, checksum_is_ready = received
            try:
                event = self._client.receive(content, now(), checksum_is_ready=checksum_is_ready)
            except Malformed:
                self._listener.count("malformed")
                continue
            self._proceed(event)

    def _proceed(self, event: Event | None) -> None:
        """Sends what the client wants to send, waits for what comes next, and reports an event."""
        self._send(self._client.take_outgoing())
        if now() >= self._client.listening_until:
            self._close_packets()
        due = self._client.deadline
        if self._packets is not None:
            due = min(due, self._client.listening_until)
        self._wait_until(due)
        if event is not None:
            self._listener.count(event.value)
            self._report(event)

    def _wait_until(self, due: float) -> None:
        if self._timer is not None:
            if self._timer.when == due:  # a flood of ignored frames must not fill the loop with timers
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._expire) if due < INFINITE_S else None

    def _report(self, event: Event) -> None:
        lease, before = self._client.lease, self._accepted
        if event is Event.FAILED:
            self._listener.failed(self._client.reason)
        elif lease is None:
            self._accepted = None
            self._stop_detection()
            self._listener.lost(self._family.version, self._client.reason)
        elif (
            self._detects_conflicts
            and isinstance(lease, Lease)
            and not (before and before.address.ip == lease.address.ip)
        ):
            self._detect_conflict(lease)
        else:
            self._accept(lease)

    def _accept(self, lease: AnyLease) -> None:
        self._accepted = lease
        self._listener.granted(self._family.version, lease)

    def _detect_conflict(self, lease: Lease) -> None:
        """Begins to probe the address; a short lease is renewed meanwhile, perhaps with another address."""
        if self._detection is not None and self._detection.address == lease.address.ip:
            return
        self._stop_detection()
        try:
            packets = interface.open_arp(self._place)
        except GoneError:
            self._listener.gone()
            return
        except _FAILURES as error:
            self._listener.log(f"cannot detect conflicts: {error}")
            self._accept(lease)
            return
        self._detection = ConflictDetection(packets, lease.address.ip, self._loop, self._detected)

    def _detected(self, user: str) -> None:
        """Accepts a lease whose address no other host uses; declines another one and tries again."""
        self._detection, lease = None, self._client.lease
        assert lease is not None  # the loss of a lease ends the detection
        if not user:
            self._accept(lease)
            return
        self._listener.log(f"declining {lease.address.ip}: it is in use by {user}")
        self._listener.count("declined")
        self._client.decline(now())
        self._proceed(None)

    def _send(self, frames: list[bytes]) -> None:
        if not frames:
            return
        try:
            packets = self._open_packets()
            for each in frames:
                packets.send(each)
        except GoneError:
            return  # the next deadline finds it out, too
        except _FAILURES as error:
            self._listener.log(f"cannot send: {error}")

    def _open_for_release(self) -> PacketSockets | None:
        """Returns a socket on the interface or, if it was deleted, on a host interface on the same network."""

        def filters(mac: bytes) -> tuple[PacketFilter, ...]:
            return self._family.filters(mac)[:1]

        with suppress(GoneError, CniError):
            packets = interface.open_packets(self._place, filters)
            if packets.is_up:
                self._client.use(packets.mac, packets.link_local)
                return packets
            packets.close()
        mac = parse_mac(self._place.target.mac)
        self._client.use(mac, link_local_address(mac))
        return interface.open_host_packets(self._place.target.host_interface, filters)

    def _open_packets(self) -> PacketSockets:
        """Opens the packet sockets unless they are open; raises GoneError, CniError, OSError."""
        if self._packets is None:
            address = self._client.lease.address.ip if self._client.lease else None
            answers_to = address if isinstance(address, IPv4Address) else None
            self._packets = interface.open_packets(self._place, self._family.filters, answers_to=answers_to)
            self._client.use(self._packets.mac, self._packets.link_local)
            for number, descriptor in enumerate(self._packets.filenos()):
                self._loop.watch(descriptor, partial(self._read, number))
        return self._packets

    def _close_packets(self) -> None:
        if self._packets is not None:
            for descriptor in self._packets.filenos():
                self._loop.unwatch(descriptor)
            # Later: closing a packet socket waits 10 to 30 ms for the kernel (RCU), and other pods wait meanwhile.
            self._loop.call_at(now() + _CLOSE_AFTER_S, self._packets.close)
            self._packets = None
