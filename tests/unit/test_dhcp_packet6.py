"""DHCPv6 messages as bytes (ipam.dhcp.packet6), also as scapy reads and writes them."""

from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers import dhcp6

from ipam.dhcp import packet6
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet import Malformed
from ipam.dhcp.packet6 import Association, LeasedAddress, Message, StatusCode, decode, encode
from process.values import replace

DUID, SERVER, IAID = b"\0\4" + bytes(range(16)), b"\0\3\0\1\2\0\0\0\0\1", b"\1\2\3\4"
ADDRESS = IPv6Address("2001:db8::7")
HEADER = b"\7\1\2\3"
SECONDS = st.one_of(st.integers(0, 2**32 - 2).map(float), st.just(INFINITE_S))
ADDRESSES = st.integers(0, 2**128 - 1).map(IPv6Address)
DUIDS = st.one_of(st.just(b""), st.binary(min_size=1, max_size=130))
NAMES = st.sampled_from(("example.org", "a", "_x.b-c.example", "x" * 63 + ".net"))
STATUSES = st.builds(StatusCode, st.integers(0, 65535), st.text("abc é", max_size=20).map(str.strip))
ASSOCIATIONS = st.builds(
    Association,
    iaid=st.binary(min_size=4, max_size=4),
    addresses=st.lists(st.builds(LeasedAddress, ADDRESSES, SECONDS, SECONDS, STATUSES), max_size=3).map(tuple),
    renewal_s=SECONDS,
    rebinding_s=SECONDS,
    status=STATUSES,
)
MESSAGES = st.builds(
    Message,
    kind=st.integers(1, 11),
    xid=st.integers(0, 2**24 - 1),
    client_id=DUIDS,
    server_id=DUIDS,
    associations=st.lists(ASSOCIATIONS, max_size=3).map(tuple),
    elapsed_s=st.one_of(st.none(), st.integers(0, 655).map(float)),
    requested=st.lists(st.integers(0, 65535), max_size=5).map(tuple),
    status=STATUSES,
    preference=st.integers(0, 255),
    rapid_commit=st.booleans(),
    sol_max_rt_s=st.integers(0, 2**32 - 1),
    dns_servers=st.lists(ADDRESSES, max_size=3).map(tuple),
    search=st.lists(NAMES, max_size=3).map(tuple),
)


def option(number, content):
    return number.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


@given(MESSAGES)
def test_round_trip(original):
    """A message that is encoded and decoded is the same."""
    assert decode(encode(original)) == original


def test_scapy_reads_a_solicit():
    """Scapy reads the same options in a SOLICIT."""
    message = Message(packet6.SOLICIT, 0x010203, DUID, associations=(Association(IAID),))
    message = replace(message, elapsed_s=1.5, requested=(23, 24, 82), rapid_commit=True)
    read = dhcp6.DHCP6_Solicit(encode(message))
    assert (read.msgtype, read.trid) == (1, 0x010203)
    assert bytes(read[dhcp6.DHCP6OptClientId].duid) == DUID
    ia = read[dhcp6.DHCP6OptIA_NA]
    assert (ia.iaid, ia.T1, ia.T2, ia.ianaopts) == (0x01020304, 0, 0, [])
    assert read[dhcp6.DHCP6OptElapsedTime].elapsedtime == 150
    assert read[dhcp6.DHCP6OptOptReq].reqopts == [23, 24, 82]
    assert dhcp6.DHCP6OptRapidCommit in read


def test_scapy_writes_a_reply():
    """A REPLY that scapy wrote is read."""
    leased = dhcp6.DHCP6OptIAAddress(addr="2001:db8::7", preflft=100, validlft=0xFFFFFFFF)
    written = (
        dhcp6.DHCP6_Reply(trid=9)
        / dhcp6.DHCP6OptClientId(duid=dhcp6.DUID_LL(lladdr="02:00:00:00:00:01"))
        / dhcp6.DHCP6OptServerId(duid=dhcp6.DUID_LL(lladdr="02:00:00:00:00:02"))
        / dhcp6.DHCP6OptIA_NA(iaid=5, T1=10, T2=20, ianaopts=[leased])
        / dhcp6.DHCP6OptDNSServers(dnsservers=["2001:db8::53"])
        / dhcp6.DHCP6OptDNSDomains(dnsdomains=["example.org."])
        / dhcp6.DHCP6OptPref(prefval=7)
    )
    message = decode(bytes(written))
    client_id, server_id = (bytes.fromhex(f"0003000102000000000{number}") for number in (1, 2))
    association = Association(b"\0\0\0\5", (LeasedAddress(ADDRESS, 100.0, INFINITE_S),), 10.0, 20.0)
    expected = Message(packet6.REPLY, 9, client_id, server_id, (association,), preference=7, search=("example.org",))
    assert message == replace(expected, dns_servers=(IPv6Address("2001:db8::53"),))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "too short"),
        (b"\7\1\2", "too short"),
        (b"\0\1\2\3", "type is 0"),
        (b"\x0c" + bytes(33), "type is 12"),
        (HEADER + b"\0\1", "lacks its length"),
        (HEADER + b"\0\1\0\4ab", "option 1 is truncated"),
        (HEADER + option(1, b""), "DUID in option 1 has 0 bytes"),
        (HEADER + option(2, bytes(131)), "DUID in option 2 has 131 bytes"),
        (HEADER + option(3, bytes(11)), "association is truncated"),
        (HEADER + option(3, bytes(12) + option(5, bytes(23))), "address of an identity association is truncated"),
        (HEADER + option(3, bytes(12) + b"\0\5\0\x30"), "option 5 is truncated"),
        (HEADER + option(13, b"\0"), "status code is truncated"),
    ],
)
def test_malformed(content, reason):
    """A message with a wrong length is malformed."""
    with pytest.raises(Malformed, match=reason):
        decode(content)


def test_mistakes_in_other_options():
    """A mistake in an option that a lease does not need is treated like a missing option."""
    options = option(23, bytes(15)), option(24, b"\5ab"), option(7, b""), option(82, b"\1"), option(14, b"x")
    assert decode(HEADER + b"".join(options)) == Message(packet6.REPLY, 0x010203)


def test_first_of_a_repeated_option():
    """Of a repeated option the first counts."""
    data = HEADER + option(2, SERVER) + option(2, DUID) + option(13, b"\0\2no") + option(13, b"\0\0")
    message = decode(data)
    assert (message.server_id, message.status) == (SERVER, StatusCode(packet6.NO_ADDRESSES, "no"))


def test_limits_of_values():
    """The text of a status is shortened, and has no character that is not printable; the elapsed time has a maximum."""
    text = decode(HEADER + option(13, b"\0\1" + b"\x1b[2J\xff" + b"a" * 2000 + b"\0")).status.text
    assert text.startswith("?[2J\ufffda")
    assert len(text) == 255
    assert decode(encode(Message(packet6.RENEW, 1, elapsed_s=1e9))).elapsed_s == 655.35


def test_failure():
    """The status of the message precedes that of the association; other associations do not matter."""
    refused = Association(IAID, status=StatusCode(packet6.NO_BINDING))
    assert Message(packet6.REPLY, 1, associations=(refused,)).failure(IAID) == refused.status
    assert Message(packet6.REPLY, 1, associations=(refused,)).failure(b"abcd") is None
    message = Message(packet6.REPLY, 1, associations=(refused,), status=StatusCode(packet6.NOT_ON_LINK, "moved"))
    assert message.failure(IAID) == StatusCode(packet6.NOT_ON_LINK, "moved")
    assert message.status.describe() == "NotOnLink: moved"
