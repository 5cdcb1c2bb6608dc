"""The IPv4 configuration of one interface: the DHCPv4 client with its frames, without I/O.

It has the methods of ipv6_client.py, so that the daemon works with both in the same way: the caller passes the time
(seconds of CLOCK_BOOTTIME) and received frames, sends the frames of `take_outgoing`, calls `expire` at `deadline`, and
keeps its socket open until `listening_until`.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from cni.address import format_mac, parse_mac
from ipam.dhcp import frame, packet
from ipam.dhcp.client4 import Client, Event, Identity, Outgoing, State, Timing
from ipam.dhcp.lease import Lease
from ipam.dhcp.lease6 import Lease6
from ipam.dhcp.options import INFINITE_S
from process.values import replace

CLIENT_PORT, SERVER_PORT = 68, 67
_BROADCAST_MAC, _BROADCAST = b"\xff" * 6, IPv4Address(0xFFFFFFFF)


class Ipv4Client:
    """The client of one interface, which `use` names."""

    def __init__(self, identity: Identity, timing: Timing) -> None:
        self._client = Client(identity, timing)

    @property
    def lease(self) -> Lease | None:
        """The lease, None without one."""
        return self._client.lease

    @property
    def claimed(self) -> IPv4Address | None:
        """The address that a server has granted, or may have."""
        return self._client.claimed

    @property
    def reason(self) -> str:
        """The reason of the last LOST or FAILED."""
        return self._client.reason

    @property
    def state(self) -> State:
        """The client's state."""
        return self._client.state

    @property
    def deadline(self) -> float:
        """The time at which to call `expire`."""
        return self._client.deadline

    @property
    def listening_until(self) -> float:
        """The time until which frames can arrive."""
        return self._client.listening_until

    def use(self, mac: bytes, link_local: IPv6Address | None) -> None:
        """Sets the interface's present MAC address, which tuning may have changed after ADD; ignores `link_local`."""
        if mac != self._client.identity.mac:
            self._client.identity = replace(self._client.identity, mac=mac)

    def take_outgoing(self) -> list[bytes]:
        """Returns the frames to send now, and forgets them."""
        return [self._frame(each, self.lease) for each in self._client.take_outgoing()]

    def start(self, now: float) -> None:
        """Begins to acquire a lease; GRANTED or FAILED follows in the total time."""
        self._client.start(now)

    def resume(self, lease: Lease | Lease6, now: float, *, same_boot: bool) -> None:
        """Continues with a stored lease; the times of another boot mean nothing, so a server must confirm it."""
        assert isinstance(lease, Lease)
        self._client.resume(lease if same_boot else replace(lease, granted_s=-INFINITE_S), now, same_boot=same_boot)

    def expire(self, now: float) -> Event | None:
        """Acts on a passed deadline; does nothing before it."""
        return self._client.expire(now)

    def receive(self, content: bytes, now: float, *, checksum_is_ready: bool = True) -> Event | None:
        """Acts on a frame, which may be forged; raises Malformed."""
        datagram = frame.parse_udp4(content, checksum_is_ready=checksum_is_ready)
        event = self._client.receive(packet.decode(datagram.payload), now)
        if event is Event.GRANTED and self._client.lease is not None:
            self._client.lease = replace(self._client.lease, server_mac=format_mac(datagram.source_mac))
        return event

    def release(self) -> list[bytes]:
        """Stops, and returns the frame that releases the claimed address, if there is one."""
        lease = self.lease
        return [self._frame(each, lease) for each in self._client.release()]

    def decline(self, now: float) -> Event | None:
        """Refuses the lease, since another host uses its address, and tries again after a pause."""
        self._client.decline(now)
        return None

    def _frame(self, outgoing: Outgoing, lease: Lease | None) -> bytes:
        """Returns a message as a frame; a server is reached by the MAC address of its last answer, or its relay's."""
        mac, address = _BROADCAST_MAC, _BROADCAST
        if outgoing.server is not None:
            address = outgoing.server
            if lease is not None and lease.server_mac:
                mac = parse_mac(lease.server_mac)
        source_mac = self._client.identity.mac
        message = packet.encode(replace(outgoing.message, chaddr=source_mac))
        return frame.build_udp4(source_mac, mac, outgoing.source, address, CLIENT_PORT, SERVER_PORT, message)
