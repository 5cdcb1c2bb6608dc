"""The IPv6 configuration of an interface (ipam.dhcp.ipv6_client), its lease (lease6) and addresses (address6)."""

import json
from ipaddress import IPv6Address, IPv6Interface, IPv6Network

import pytest

from cni.result import Route
from ipam.dhcp import conf, frame, lease6, packet6
from ipam.dhcp.client4 import Event, Timing
from ipam.dhcp.client6 import Identity, State
from ipam.dhcp.ipv6_client import Ipv6Client
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet import Malformed
from ipam.dhcp.packet6 import Association, LeasedAddress, Message
from process.values import replace

MAC, ROUTER_MAC, ROUTER = bytes.fromhex("020000000001"), bytes.fromhex("020000000002"), IPv6Address("fe80::1")
LINK_LOCAL = IPv6Address("fe80::ff:fe00:1")
DUID, IAID, SERVER = b"\0\4" + bytes(16), b"\1\2\3\4", b"\0\3server"
ADDRESS, NETWORK = IPv6Address("2001:db8:1::7"), IPv6Network("2001:db8:1::/64")
SLAAC_ADDRESS, DEFAULT = IPv6Interface("2001:db8:1::ff:fe00:1/64"), IPv6Interface("::/0")


def advertisement_frame(*, managed=False, lifetime_s=1800, valid_s=7200, preferred_s=3600, source=ROUTER):
    """Returns a router's frame that advertises NETWORK for autoconfiguration."""
    flags, times = 0x80 * managed, valid_s.to_bytes(4, "big") + preferred_s.to_bytes(4, "big")
    prefix = bytes((3, 4, 64, 0xC0)) + times + bytes(4) + NETWORK.network_address.packed
    body = bytes((64, flags)) + lifetime_s.to_bytes(2, "big") + bytes(8) + prefix
    return frame.build_icmp6(ROUTER_MAC, MAC, source, LINK_LOCAL, 134, 0, body)


class Interface:
    """A client, the time, and the frames it sent, parsed."""

    def __init__(self, mode, stored=None, *, now=100.0, same_boot=True):
        self.client = Ipv6Client(Identity(DUID, IAID), mode, Timing())
        self.client.use(MAC, LINK_LOCAL)
        self.now, self.messages, self.solicitations = now, [], 0
        if stored:
            self.client.resume(stored, now, same_boot=same_boot)
        else:
            self.client.start(now)
        self._collect(None)

    def wait(self):
        self.now = max(self.now, self.client.deadline)
        return self._collect(self.client.expire(self.now))

    def wait_for(self, event, limit=300):
        while self.wait() is not event:
            limit -= 1
            assert limit

    def advertise(self, **changes):
        return self._collect(self.client.receive(advertisement_frame(**changes), self.now))

    def grant(self, kind=packet6.REPLY, port=546, source_port=547, source=ROUTER, destination=LINK_LOCAL, **changes):
        leased = Association(IAID, (LeasedAddress(ADDRESS, 100.0, 200.0),), 50.0, 80.0)
        reply = Message(kind, self.messages[-1].xid, DUID, SERVER, (leased,), rapid_commit=True)
        payload = packet6.encode(replace(reply, **changes))
        content = frame.build_udp6(ROUTER_MAC, MAC, source, destination, source_port, port, payload)
        return self._collect(self.client.receive(content, self.now))

    def _collect(self, event):
        for content in self.client.take_outgoing():
            if content[20] == 58:
                self.solicitations += 1
                continue
            datagram = frame.parse_udp6(content)
            assert content[:6] == bytes.fromhex("333300010002")
            assert (datagram.source_mac, datagram.source_ip) == (MAC, LINK_LOCAL)
            assert datagram.destination_ip == IPv6Address("ff02::1:2")
            assert (datagram.source_port, datagram.destination_port) == (546, 547)
            self.messages.append(packet6.decode(datagram.payload))
        return event

    @property
    def lease(self):
        assert self.client.lease is not None
        return self.client.lease


@pytest.fixture
def slaac():
    interface = Interface("slaac")
    assert interface.advertise() is Event.GRANTED
    return interface


@pytest.fixture
def dhcp():
    interface = Interface("dhcp")
    interface.advertise(managed=True)
    assert interface.grant() is Event.GRANTED
    return interface


@pytest.mark.parametrize("server_first", [False, True])
def test_dhcp(server_first):
    """In mode "dhcp" the lease needs the server's answer and the router's, in any order."""
    interface = Interface("dhcp")
    assert (interface.solicitations, len(interface.messages)) == (1, 1)
    answers = [interface.grant, interface.advertise]
    first, second = answers if server_first else answers[::-1]
    assert (first(), interface.client.lease) == (None, None)
    assert interface.client.listening_until > interface.now
    assert second() is Event.GRANTED
    lease = interface.lease
    assert (lease.address, lease.gateway) == (IPv6Interface(f"{ADDRESS}/128"), ROUTER)
    assert lease.routes == (Route(IPv6Interface("2001:db8:1::/64")), Route(DEFAULT, ROUTER))
    assert interface.client.listening_until < interface.now
    assert interface.client.state is State.BOUND


def test_router_that_starts_later():
    """Without a router the lease comes when the search for one has ended, without a gateway; a later one changes it."""
    interface = Interface("dhcp")
    leased = Association(IAID, (LeasedAddress(ADDRESS, INFINITE_S, INFINITE_S),), INFINITE_S, INFINITE_S)
    interface.grant(associations=(leased,))
    interface.wait_for(Event.GRANTED)
    assert 109 <= interface.now <= 110
    without = interface.lease
    assert (without.address, without.routes) == (IPv6Interface(f"{ADDRESS}/128"), ())
    assert interface.wait() is None
    assert interface.advertise() is Event.GRANTED
    assert interface.lease.configuration != without.configuration
    assert interface.lease.gateway == ROUTER


@pytest.mark.parametrize("mode", ["dhcp", "auto"])
def test_dhcp_without_server(mode):
    """Without a server the client fails after the total time of 208 s, also if the router comes first."""
    interface = Interface(mode)
    interface.now += 0.9
    interface.advertise(managed=True)
    interface.wait_for(Event.FAILED)
    assert (interface.now, interface.client.deadline, interface.client.lease) == (308, INFINITE_S, None)
    assert interface.client.reason == "no DHCPv6 server answered"


def test_slaac(slaac):
    """In mode "slaac" the address is the kernel's, with the prefix's length; there is no DHCPv6 message."""
    lease = slaac.lease
    assert (lease.address, lease.routes) == (SLAAC_ADDRESS, (Route(DEFAULT, ROUTER),))
    assert (lease.granted_s, lease.expires_at) == (100, 7300)
    assert (slaac.messages, slaac.client.state) == ([], State.BOUND)
    assert slaac.client.listening_until < slaac.now < slaac.client.deadline


@pytest.mark.parametrize(
    ("answers", "reason"), [(False, "no router answered"), (True, "no router advertises a prefix")]
)
def test_slaac_fails(answers, reason):
    """Without a router, or without a prefix, autoconfiguration fails."""
    interface = Interface("slaac")
    if not answers:
        interface.wait_for(Event.FAILED)
    else:
        assert interface.advertise(valid_s=0, preferred_s=0) is Event.FAILED
    assert reason in interface.client.reason
    assert (interface.client.deadline, interface.client.state) == (INFINITE_S, State.STOPPED)


def test_auto():
    """In mode "auto" a router with flag M starts DHCPv6, one without it autoconfiguration, silence DHCPv6."""
    managed, autonomous, silent = (Interface("auto") for _ in range(3))
    assert managed.messages == []
    assert managed.advertise(managed=True) is None
    assert managed.grant() is Event.GRANTED
    assert managed.lease.address == IPv6Interface(f"{ADDRESS}/128")
    assert autonomous.advertise() is Event.GRANTED
    assert (autonomous.lease.address, autonomous.messages) == (SLAAC_ADDRESS, [])
    while not silent.messages:
        assert silent.wait() is None
    assert silent.grant() is Event.GRANTED


def test_renewal_of_both(dhcp):
    """Renewals by server and router extend the lease, without a change of the configuration."""
    before = dhcp.lease
    dhcp.wait()
    assert dhcp.messages[-1].kind == packet6.RENEW
    assert dhcp.grant() is Event.GRANTED
    assert dhcp.lease.granted_s == dhcp.now
    while dhcp.solicitations == 1:
        dhcp.wait()
        if dhcp.messages[-1].kind == packet6.RENEW:
            dhcp.grant()
    assert dhcp.advertise(managed=True) is Event.GRANTED
    assert dhcp.lease.advertisement.received_s == dhcp.now
    assert dhcp.lease.configuration == before.configuration


def test_lost_lease_and_new_one(dhcp):
    """When a lease expires the router's settings stay, and a new lease gets them."""
    dhcp.wait_for(Event.LOST)
    assert (dhcp.now, dhcp.client.lease) == (300, None)
    assert dhcp.grant() is Event.GRANTED
    assert dhcp.lease.gateway == ROUTER


def test_expired_prefix(slaac):
    """An autoconfigured address is lost when its prefix expires; a later advertisement restores it."""
    slaac.wait_for(Event.LOST)
    assert 7300 <= slaac.now <= 7310
    assert slaac.client.state is State.SOLICITING
    while slaac.now >= slaac.client.listening_until:
        slaac.wait()
    assert slaac.advertise() is Event.GRANTED
    assert slaac.lease.address == SLAAC_ADDRESS


def test_resumed_lease(slaac, dhcp):
    """A stored lease of this boot is maintained without a frame until its time."""
    for interface in (slaac, dhcp):
        resumed = Interface("auto", lease6.from_json(json.loads(json.dumps(lease6.to_json(interface.lease)))))
        assert (resumed.solicitations, resumed.messages, resumed.lease.address) == (0, [], interface.lease.address)
        assert resumed.client.state is State.BOUND
        assert resumed.wait() is None
        assert resumed.now > 100


def test_lease_that_has_expired_while_the_daemon_was_away(slaac, dhcp):
    """An autoconfigured address is lost at once; a lease of DHCPv6 is valid when the server confirms it, not before."""
    resumed = Interface("auto", slaac.lease, now=10000.0)
    assert (resumed.wait(), resumed.now) == (Event.LOST, 10000)
    resumed = Interface("auto", dhcp.lease, now=10000.0)
    assert resumed.wait() is None
    assert resumed.advertise(managed=True) is None
    assert resumed.grant(rapid_commit=False) is Event.GRANTED
    assert resumed.lease.granted_s == 10000


@pytest.mark.parametrize(
    "changed",
    [
        *({"source": IPv6Address(address)} for address in ("2001:db8:1::53", "ff02::1")),
        *({"destination": IPv6Address(address)} for address in ("fe80::1234", "ff02::1")),
        *({"source_port": 5353}, {"port": 547}),
    ],
)
def test_message_of_a_host_that_is_no_server(changed):
    """A message of DHCPv6 comes from a link-local address and the servers' port, to the client's address and port."""
    interface = Interface("dhcp")
    interface.advertise(managed=True)
    assert interface.grant(**changed) is None
    assert interface.client.lease is None
    assert interface.grant() is Event.GRANTED


@pytest.mark.parametrize("server_answers", [False, True])
def test_dhcp_lease_of_another_boot(dhcp, server_answers):
    """A lease of another boot is confirmed by the server, and the router is searched again."""
    resumed = Interface("dhcp", dhcp.lease, same_boot=False)
    assert (resumed.solicitations, resumed.messages[0].kind) == (1, packet6.REBIND)
    if not server_answers:
        resumed.wait_for(Event.LOST)
        assert resumed.now == 110
        return
    assert resumed.grant() is None
    assert resumed.advertise() is Event.GRANTED
    assert resumed.lease.expires_at == 300


def test_slaac_lease_of_another_boot(slaac):
    """An autoconfigured address of another boot is lost if no router answers."""
    Interface("slaac", slaac.lease, same_boot=False).wait_for(Event.LOST)
    again = Interface("slaac", slaac.lease, same_boot=False)
    assert again.advertise(lifetime_s=900) is Event.GRANTED
    assert again.lease.address == SLAAC_ADDRESS


def test_release(slaac, dhcp):
    """A released address of DHCPv6 is reported to the server; an autoconfigured one is only forgotten."""
    assert slaac.client.release() == []
    (content,) = dhcp.client.release()
    message = packet6.decode(frame.parse_udp6(content).payload)
    assert (message.kind, message.server_id) == (packet6.RELEASE, SERVER)
    assert all(each.client.deadline == INFINITE_S and each.client.lease is None for each in (slaac, dhcp))


def test_decline(slaac, dhcp):
    """A duplicate address is declined: the server is asked for another one, autoconfiguration fails."""
    assert dhcp.client.decline(dhcp.now) is None
    dhcp.wait()
    assert [message.kind for message in dhcp.messages[-2:]] == [packet6.DECLINE, packet6.SOLICIT]
    assert dhcp.grant() is Event.GRANTED
    assert slaac.client.decline(slaac.now) is Event.FAILED
    assert slaac.client.reason == "another host uses the address"


def test_foreign_frames(dhcp):
    """Frames to other ports are ignored; malformed and forged ones raise Malformed."""
    dhcp.wait()
    assert dhcp.grant(port=547) is None
    forged = advertisement_frame(source=IPv6Address("2001:db8::1"))
    for content in (b"", forged, forged[:60], frame.build_udp6(MAC, MAC, ROUTER, LINK_LOCAL, 547, 546, b"\7")):
        with pytest.raises(Malformed):
            dhcp.client.receive(content, dhcp.now)


def test_identity_is_that_of_dhcp4():
    """DUID and IAID are those in the DHCPv4 client identifier of RFC 4361."""
    client_id = conf.duid_client_id("machine", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b", "net", "eth0", "id")
    duid = conf.duid("machine", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b", "id")
    assert client_id == b"\xff" + conf.iaid("net", "eth0") + duid
    assert (duid[:2], len(duid), len(conf.iaid("net", "eth0"))) == (b"\0\4", 18, 4)
