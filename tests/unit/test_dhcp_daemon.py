"""dhcp's daemon: its event loop, the calls that it refuses, and lease files that it must not believe."""

import json
from functools import partial

import pytest

from cni import conf as cni_conf
from cni.errors import CniError
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp import gob, options, record, rpc
from ipam.dhcp.client4 import Client, Event, Identity, Timing
from ipam.dhcp.gob import INT, STRING, UINT, Malformed, Struct, StructType
from ipam.dhcp.lease import UnusableLeaseError, lease_from_ack
from ipam.dhcp.packet import BOOTREPLY, MESSAGE_TYPE, Message
from ipam.dhcp.rpc import Call, CallArgs, Connection
from process.loop import Loop, now
from tests.support import dhcp_forger
from tests.support.dhcp_forger import GRANT, SERVER

CONNECT = b"CONNECT /_goRPC_ HTTP/1.0\n\n"


def test_cancelled_timers_are_removed():
    """Timers of deleted pods, which would end in days, do not stay in memory."""
    loop = Loop()
    for _ in range(10_000):
        loop.call_at(now() + 86400, lambda: None).cancel()
    assert len(loop._timers) < 200


def test_live_timers_stay_and_run_in_order():
    """Removing cancelled timers loses no other one, and keeps their order."""
    loop = Loop()
    ran: list[int] = []
    for number in reversed(range(300)):
        loop.call_at(float(number), partial(ran.append, number))
        loop.call_at(now() + 86400, lambda: None).cancel()
    loop._run_timers()
    assert ran == list(range(300))


@pytest.mark.parametrize(("kind", "seq", "method"), [(INT, -5, rpc.ALLOCATE), (UINT, 0, "m" * 600_000)])
def test_call_that_cannot_be_answered_is_malformed(kind, seq, method):
    """A negative number, or a name that no answer can contain, ends the connection, not the daemon."""
    encoder, connection = gob.Encoder(), Connection()
    request = StructType("Request", (("ServiceMethod", STRING), ("Seq", kind)))
    call = encoder.encode(request, Struct({"ServiceMethod": method, "Seq": seq}))
    arguments = encoder.encode(rpc._CMD_ARGS, rpc._args_struct(CallArgs()))
    with pytest.raises(Malformed, match="negative"):
        connection.receive(CONNECT + call + arguments)


def test_long_error_is_shortened():
    """An error that repeats a text of a megabyte fits into an answer."""
    answer = Connection().refuse(Call(1, rpc.ALLOCATE, CallArgs()), "x" * (2 << 20))
    assert len(answer) < 1 << 17


LEASE4 = {"server": "10.25.0.1", "serverMAC": "", "result": {"ips": [{"address": "10.25.0.5/24"}]}}
STORED = {
    "network": "net",
    "containerID": "c1",
    "ifname": "eth0",
    "netns": "/run/netns/a",
    "interface": {"index": 2, "mac": "02:00:00:00:00:01"},
    "ipv4": LEASE4,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"containerID": "../../evil"},
        {"containerID": "c\0"},
        {"ifname": "x/../y"},
        {"interface": {"index": 2, "mac": "zz"}},
        {"ipv4": {**LEASE4, "serverMAC": "zz"}},
    ],
)
def test_lease_file_with_unusable_values(changed):
    """A file with a name that leaves the directory, or with no MAC address, is refused when it is read."""
    assert record.from_json(json.loads(json.dumps(STORED))).owner.container_id == "c1"
    with pytest.raises(ValueError, match=r"invalid|contains"):
        record.from_json(STORED | changed)


@pytest.mark.parametrize("number", ["50", "52", "53", "54"])
def test_provided_option_of_the_protocol(number):
    """Options that each message of the client depends on cannot be replaced."""
    stdin = {"name": "net", "ipam": {"type": "dhcp", "provide": [{"option": number, "value": "x"}]}}
    with pytest.raises(CniError, match="cannot be provided") as caught:
        dhcp_conf.parse(cni_conf.parse(json.dumps(stdin).encode()), "")
    assert caught.value.code == 7


def test_address_of_the_server_is_not_leased():
    """An offer of the server's address is ignored, and an ACK with it is no lease."""
    client = Client(Identity(b"\2\0\0\0\0\1", b"\0c"), Timing())
    client.start(0.0)
    (discover,) = client.take_outgoing()
    offer = dhcp_forger.reply(discover.message, options.OFFER, address=SERVER)
    assert client.receive(offer, 0.1) is None
    assert client.take_outgoing() == []
    ack = Message(BOOTREPLY, 1, b"\2\0\0\0\0\1", {MESSAGE_TYPE: b"\5", **GRANT}, yiaddr=SERVER)
    with pytest.raises(UnusableLeaseError, match="is the server's"):
        lease_from_ack(ack, 0.0, None)


def test_failure_names_the_refusal():
    """The error of an ADD whose requests a server refuses has the server's text."""
    client, time = Client(Identity(b"\2\0\0\0\0\1", b"\0c"), Timing(total_s=5.0)), 0.0
    client.start(time)
    event = None
    while event is None and time < 60:
        for each in client.take_outgoing():
            kind = options.message_type(each.message.options)
            answer = options.OFFER if kind == options.DISCOVER else options.NAK
            client.receive(dhcp_forger.reply(each.message, answer, {options.MESSAGE: b"not here"}), time)
        time += 0.5
        event = client.expire(time)
    assert event is Event.FAILED
    assert client.reason == "no more tries: the server 10.25.0.1 refused it: not here"


def test_ack_with_unusable_mask_is_released():
    """The server does not keep a lease that the client cannot use."""
    ack = Message(BOOTREPLY, 1, b"\2\0\0\0\0\1", {**GRANT, options.SUBNET_MASK: b"\xff\0\xff\0"}, yiaddr=SERVER + 99)
    with pytest.raises(UnusableLeaseError) as caught:
        lease_from_ack(ack, 0.0, None)
    assert caught.value.lease is not None
    assert caught.value.lease.address.ip == SERVER + 99
