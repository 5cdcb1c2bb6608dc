"""A DHCPv6 client (ipam.dhcp.client6) in tests: its time, the messages it sent, hand-made answers of servers."""

from __future__ import annotations

from ipaddress import IPv6Address

from ipam.dhcp import packet6
from ipam.dhcp.client4 import Timing
from ipam.dhcp.client6 import Client, Identity
from ipam.dhcp.lease6 import Grant
from ipam.dhcp.packet6 import Association, LeasedAddress, Message, Status
from process.values import replace

DUID, IAID, SERVER, OTHER = b"\0\4" + bytes(16), b"\1\2\3\4", b"\0\3server", b"\0\3other"
ADDRESS, SECOND = IPv6Address("2001:db8::7"), IPv6Address("2001:db8::8")
NAME_SERVER = IPv6Address("2001:db8::53")
GRANT = Grant(ADDRESS, SERVER, 0.0, 50.0, 80.0, 100.0, 200.0)
NO_ADDRESSES, NO_BINDING = Status(packet6.NO_ADDRESSES, "full"), Status(packet6.NO_BINDING)
NOT_ON_LINK, FAILURE = Status(packet6.NOT_ON_LINK), Status(packet6.UNSPECIFIED_FAILURE)

DEFAULT_TIMING = Timing()


class Exchange:
    """A client, the time, and the messages it sent."""

    def __init__(self, *, rapid_commit=False, timing=DEFAULT_TIMING):
        self.client = Client(Identity(DUID, IAID, rapid_commit), timing)
        self.timing = timing
        self.now = 0.0
        self.sent = []

    def start(self):
        self.client.start(self.now, self.now + self.timing.total_s)
        return self._collect(None)

    def resume(self, grant=GRANT, *, same_boot=True):
        self.client.resume(grant, self.now, same_boot=same_boot)
        return self._collect(None)

    def wait(self):
        """Passes the time until the deadline."""
        self.now = self.client.deadline
        return self._collect(self.client.expire(self.now))

    def wait_for(self, event, limit=100):
        while self.wait() is not event:
            limit -= 1
            assert limit

    def answer(self, kind=packet6.REPLY, **changes):
        """Receives a server's answer to the last message."""
        return self._collect(self.client.receive(self.reply(kind, **changes), self.now))

    def reply(self, kind=packet6.REPLY, *, address=ADDRESS, preferred_s=100.0, valid_s=200.0, ia=None, **changes):
        leased = (LeasedAddress(address, preferred_s, valid_s),)
        ia = ia or Association(IAID, leased, 50.0, 80.0)
        message = Message(kind, self.sent[-1].xid, DUID, SERVER, (ia,), dns_servers=(NAME_SERVER,), search=("a.b",))
        return replace(message, **changes)

    def _collect(self, event):
        self.sent += self.client.take_outgoing()
        return event

    @property
    def kinds(self):
        return [message.kind for message in self.sent]


def refused(status):
    return {"ia": Association(IAID, status=status)}
