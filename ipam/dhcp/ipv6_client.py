"""The IPv6 configuration of one interface: router advertisements and DHCPv6 together, frames in and out, without I/O.

One rule: the caller does I/O only. It passes the time (seconds of CLOCK_BOOTTIME) and received frames, sends the frames
of `take_outgoing`, calls `expire` at `deadline`, and keeps its sockets open until `listening_until`.

Decisions:
- "dhcp": the search for a router and DHCPv6 run in parallel. A lease without a router is a lease without a gateway; it
  waits for the end of the search.
- "slaac": a router must advertise a prefix for autoconfiguration. The flag O is ignored: name servers are those of the
  advertisement.
- "auto": the router's flag M chooses between the two, once; without a router it is DHCPv6.
"""

from __future__ import annotations

from ipaddress import IPv6Address

from ipam.dhcp import client6, frame, packet6, router_client
from ipam.dhcp.address6 import NO_ADDRESS, is_link_local
from ipam.dhcp.client4 import Event, Timing
from ipam.dhcp.client6 import State
from ipam.dhcp.lease import Lease
from ipam.dhcp.lease6 import Lease6, dhcp_lease, slaac_lease
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.router_advertisement import parse, solicitation_frame
from ipam.dhcp.router_client import AUTO, DHCP, SLAAC, RouterClient, choose_way

CLIENT_PORT, SERVER_PORT = 546, 547
ALL_SERVERS = IPv6Address("ff02::1:2")  # All_DHCP_Relay_Agents_and_Servers
_ALL_SERVERS_MAC = bytes.fromhex("333300010002")  # RFC 2464, section 7
_NEXT_HEADER_AT, _ICMP6 = 20, 58  # in a frame

_STATES = {
    router_client.State.STOPPED: State.STOPPED,
    router_client.State.SEARCHING: State.SOLICITING,
    router_client.State.WAITING: State.SOLICITING,
    router_client.State.BOUND: State.BOUND,
    router_client.State.REFRESHING: State.RENEWING,
}


class Ipv6Client:
    """The client of one interface, which `use` names before any other call sends something."""

    def __init__(self, identity: client6.Identity, mode: str, timing: Timing) -> None:
        self.mac = b""
        self.link_local = NO_ADDRESS
        self.lease: Lease6 | None = None
        self.reason = ""  # of the last LOST or FAILED
        self._timing = timing
        self._mode = mode
        self._way = "" if mode == AUTO else mode
        self._router = RouterClient()
        self._dhcp = client6.Client(identity, timing)
        self._give_up_at = INFINITE_S
        self._is_acquiring = False
        self._has_searched = False  # the first search for a router has ended

    def use(self, mac: bytes, link_local: IPv6Address | None) -> None:
        """Sets the interface's present addresses; None keeps the link-local address."""
        self.mac, self.link_local = mac, link_local or self.link_local

    @property
    def claimed(self) -> IPv6Address | None:
        """The address that a server has granted, or may have."""
        return self._dhcp.claimed

    @property
    def state(self) -> State:
        """The state, for metrics: that of the client which maintains the address."""
        if self._way == DHCP:
            return self._dhcp.state
        state = _STATES[self._router.state]
        return State.SOLICITING if state is State.BOUND and self.lease is None else state

    @property
    def deadline(self) -> float:
        """The time at which to call `expire`."""
        return min(self._router.deadline, self._dhcp.deadline)

    @property
    def listening_until(self) -> float:
        """The time until which frames can arrive."""
        return max(self._router.listening_until, self._dhcp.listening_until)

    def take_outgoing(self) -> list[bytes]:
        """Returns the frames to send now, and forgets them."""
        solicitations = [solicitation_frame(self.mac, self.link_local)] if self._router.take_solicitation() else []
        return solicitations + [self._frame(message) for message in self._dhcp.take_outgoing()]

    def start(self, now: float) -> None:
        """Begins to acquire an address; GRANTED or FAILED follows in the total time."""
        self.lease, self._way, self._has_searched = None, "" if self._mode == AUTO else self._mode, False
        self._is_acquiring, self._give_up_at = True, now + self._timing.total_s
        self._router.start(now, self._give_up_at)
        if self._way == DHCP:
            self._dhcp.start(now, self._give_up_at)

    def resume(self, lease: Lease | Lease6, now: float, *, same_boot: bool) -> None:
        """Continues with a stored lease: maintains one of this boot, has the network confirm another one."""
        assert isinstance(lease, Lease6)
        self.lease, self._way = lease, DHCP if lease.grant else SLAAC
        self._has_searched = same_boot and lease.advertisement is not None
        if self._has_searched and lease.advertisement is not None:
            self._router.resume(lease.advertisement, now)
        else:
            self._router.start(now)
        if lease.grant is not None:
            self._dhcp.resume(lease.grant, now, same_boot=same_boot)

    def expire(self, now: float) -> Event | None:
        """Acts on a passed deadline; does nothing before it."""
        event = self._router_changed(self._router.expire(now), now)
        return self._dhcp_changed(self._dhcp.expire(now)) or event

    def receive(self, content: bytes, now: float, *, checksum_is_ready: bool = True) -> Event | None:
        """Acts on a frame, which may be forged; raises Malformed."""
        if content[_NEXT_HEADER_AT : _NEXT_HEADER_AT + 1] == bytes((_ICMP6,)):
            advertisement = parse(frame.parse_icmp6(content, checksum_is_ready=checksum_is_ready), now)
            return self._router_changed(self._router.receive(advertisement, now), now)
        datagram = frame.parse_udp6(content, checksum_is_ready=checksum_is_ready)
        if datagram.destination_port != CLIENT_PORT or datagram.destination_ip != self.link_local:
            return None
        # Servers and relays on the link answer from its addresses, and from their port.
        if datagram.source_port != SERVER_PORT or not is_link_local(datagram.source_ip):
            return None
        return self._dhcp_changed(self._dhcp.receive(packet6.decode(datagram.payload), now))

    def release(self) -> list[bytes]:
        """Stops, and returns the frame that releases the claimed address, if there is one."""
        self.lease = None
        self._router.stop()
        return [self._frame(message) for message in self._dhcp.release()]

    def decline(self, now: float) -> Event | None:
        """Refuses the address, since another host uses it.

        The server gets a message, and is asked for another address; an autoconfigured address is the only one that this
        interface can have, so the client fails then.
        """
        self.lease = None
        if self._way == DHCP:
            self._dhcp.decline(now)
            return None
        return self._fail("another host uses the address")

    def _frame(self, message: packet6.Message) -> bytes:
        """Returns a DHCPv6 message as a frame to all servers, from the link-local address.

        A RELEASE must not come from the released address (RFC 8415, section 18.2.7).
        """
        macs, addresses = (self.mac, _ALL_SERVERS_MAC), (self.link_local, ALL_SERVERS)
        return frame.build_udp6(*macs, *addresses, CLIENT_PORT, SERVER_PORT, packet6.encode(message))

    def _router_changed(self, event: router_client.Event | None, now: float) -> Event | None:
        if event is None:
            return None
        self._has_searched = True
        if not self._way:
            self._way = choose_way(self._mode, self._router.advertisement)
            if self._way == DHCP:
                self._dhcp.start(now, self._give_up_at)
        return self._combine() if self._way == DHCP else self._autoconfigure()

    def _dhcp_changed(self, event: Event | None) -> Event | None:
        if event is Event.GRANTED:
            return self._combine()
        if event is None:
            return None
        if self.lease is None:  # it was never reported
            return self._fail(self._dhcp.reason)
        self.lease, self.reason = None, self._dhcp.reason
        return event

    def _combine(self) -> Event | None:
        """Reports the server's lease with the router's settings, when the search for a router has ended.

        A stored lease that a server has not confirmed yet is not reported.
        """
        grant = self._dhcp.lease
        if grant is None or not self._has_searched or self._dhcp.state is State.CONFIRMING:
            return None
        return self._report(dhcp_lease(grant, self._router.advertisement))

    def _autoconfigure(self) -> Event | None:
        advertisement = self._router.advertisement
        lease = slaac_lease(advertisement, self.link_local, self.lease) if advertisement else None
        if lease is not None:
            return self._report(lease)
        reason = "no router advertises a prefix for it" if advertisement else "no router answered"
        if self.lease is not None:
            self.lease, self.reason = None, reason
            return Event.LOST
        return self._fail(reason) if self._is_acquiring else None

    def _report(self, lease: Lease6) -> Event | None:
        self._is_acquiring = False
        if lease == self.lease:
            return None
        self.lease = lease
        return Event.GRANTED

    def _fail(self, reason: str) -> Event:
        self.reason, self._is_acquiring = reason, False
        self._router.stop()
        self._dhcp.release()
        return Event.FAILED
