"""Parts of podwire test and trace: packets and where they were seen, rules as text, sockets, routing, destinations."""

import os
import socket
import struct
from ipaddress import IPv4Network, ip_address, ip_network
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers import inet
from scapy.layers.dns import DNS

from kernel import fib, ndp, packet_tap
from kernel.checksum import compute_checksum
from kernel.fib import FibRoute, FibRule
from kernel.netfilter import nft_rule, nft_text
from kernel.netfilter.nft import NftRule
from kernel.packet_tap import ANSWER, ERROR, ICMP, REFUSAL, REQUEST, TCP, UDP, Probe
from kernel.sockets_table import ListeningSocket, list_listeners
from podwire.command import UsageError
from podwire.facts.resolvers import _name_servers
from podwire.predictions.routing import Fib
from podwire.probe import run
from podwire.trace import destination
from podwire.trace.judge import _stayed_in
from podwire.trace.owners import owner_of
from podwire.trace.place import NODE, Place

TOKEN = 0x12345678
SOURCE, DESTINATION = ip_address("10.22.0.2"), ip_address("192.0.2.9")


def _ip_packet(probe: Probe) -> bytes:
    segment = packet_tap.build_segment(probe)
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, probe.protocol, 0)
    return header + probe.source.packed + probe.destination.packed + segment


@pytest.mark.parametrize("protocol", [TCP, UDP, ICMP])
def test_probe_is_recognized(protocol):
    """A probe that is sent is recognized as a request, with its addresses and ports."""
    probe = Probe(protocol, SOURCE, 4444, DESTINATION, 80, TOKEN)
    seen = packet_tap._parse(_ip_packet(probe), frozenset([TOKEN]))
    assert seen is not None
    assert (seen.kind, seen.source, seen.source_port, seen.destination) == (REQUEST, SOURCE, 4444, DESTINATION)
    assert packet_tap._parse(_ip_packet(probe), frozenset([TOKEN + 7])) is None


def test_answers_to_a_tcp_probe():
    """A reset that acknowledges the probe is a refusal; without that it is the source's own, and says nothing."""
    for flags, kind in ((0x12, ANSWER), (0x14, REFUSAL), (0x04, None)):
        segment = struct.pack(">HHIIBBHHH", 80, 4444, 1, TOKEN + 1, 0x50, flags, 0, 0, 0)
        assert packet_tap._kind(TCP, segment, frozenset([TOKEN])) == kind


@pytest.mark.parametrize("flags", [0x8180, 0x8583])
def test_name_servers_answer_is_recognized(flags):
    """A packet to port 53 is a DNS query, which scapy reads, and any answer with its ID is one."""
    token = packet_tap.new_token(UDP, 53)
    query = _ip_packet(Probe(UDP, SOURCE, 4444, DESTINATION, 53, token))
    parsed = inet.IP(query)[DNS]
    assert (parsed.id, parsed.qr, parsed.rd, parsed.qd[0].qname, parsed.qd[0].qtype) == (token >> 16, 0, 1, b".", 2)
    answer = bytes(inet.IP(src=str(DESTINATION), dst=str(SOURCE)) / inet.UDP(sport=53, dport=4444)) + struct.pack(
        ">HHHHHH", token >> 16, flags, 0, 0, 0, 0
    )
    seen = packet_tap._parse(answer, frozenset([token]))
    assert seen is not None
    assert (seen.kind, seen.source_port) == (ANSWER, 53)
    assert packet_tap._parse(answer, frozenset([token ^ 1 << 16])) is None


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_error_about_a_probe_is_recognized(protocol):
    """An ICMP error that quotes a probe is recognized, with its type, code and MTU."""
    quoted = _ip_packet(Probe(protocol, SOURCE, 4444, DESTINATION, 80, TOKEN))
    segment = struct.pack(">BBHHH", 3, 4, 0, 0, 1280) + quoted
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, ICMP, 0)
    packet = header + ip_address("198.51.100.1").packed + SOURCE.packed + segment
    seen = packet_tap._parse(packet, frozenset([TOKEN]))
    assert seen is not None
    assert (seen.kind, seen.error, seen.mtu, str(seen.source)) == (ERROR, (3, 4), 1280, "198.51.100.1")
    assert packet_tap._parse(packet, frozenset([TOKEN + 7])) is None


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_checksum_is_right(protocol):
    """The sum of the pseudo header and the segment is zero, as a receiver verifies it (RFC 1071)."""
    segment = packet_tap.build_segment(Probe(protocol, SOURCE, 4444, DESTINATION, 80, TOKEN, 99))
    pseudo = SOURCE.packed + DESTINATION.packed + struct.pack(">II", len(segment), protocol)
    assert compute_checksum(pseudo + segment) == 0


@given(st.binary(max_size=200))
def test_any_packet_is_parsed(data):
    """Any bytes are a marked packet or none, and a duplicate's advertisement or none."""
    packet_tap._parse(data, frozenset([TOKEN]))
    ndp.find_owner(data, SOURCE.packed)


@given(st.binary(max_size=200))
def test_any_rule_is_rendered(data):
    """Any bytes of a rule are rendered as a text, or refused as an invalid value."""
    try:
        assert isinstance(nft_text.render(NftRule(1, data, b"")), str)
    except (ValueError, struct.error) as error:
        pytest.fail(f"{data!r}: {error!r}")


def test_rules_are_rendered():
    """Rules appear as nft prints them, apart from what it derives from the table's family."""
    to_port = nft_rule.transport("tcp") + nft_rule.destination_port(8080)
    for expressions, text in (
        (to_port + nft_rule.dnat(ip_address("10.22.0.2"), 80), "tcp dport 8080 dnat to 10.22.0.2:80"),
        (nft_rule.source(ip_network("10.22.0.0/16")) + nft_rule.DROP, "ip saddr 10.22.0.0/16 drop"),
        (nft_rule.source(ip_network("10.22.0.0/20")) + nft_rule.DROP, "ip saddr 10.22.0.0/20 drop"),
        (
            nft_rule.state(nft_rule.ESTABLISHED | nft_rule.RELATED) + nft_rule.ACCEPT,
            "ct state established,related accept",
        ),
        (nft_rule.from_interface("cni0") + nft_rule.jump("pods"), 'iifname "cni0" jump pods'),
    ):
        assert nft_text.render(NftRule(1, expressions, nft_rule.comment_userdata("x"))) == f'{text} comment "x"'


def test_only_listening_sockets_are_listed():
    """A listening socket is listed with its address, and not its connections, although they have its port."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        inodes = [os.fstat(each.fileno()).st_ino for each in (server, client, accepted)]
        listed = [one for one in list_listeners({6}) if one.inode in inodes]
        assert listed == [ListeningSocket(6, ip_address("127.0.0.1"), server.getsockname()[1], inodes[0])]


def test_routing_decision():
    """Rules are evaluated by priority, a table by the longest prefix; a table without a route is passed."""
    main = FibRoute(fib.UNICAST, IPv4Network("0.0.0.0/0"), hops=((2, None),))
    hole = FibRoute(fib.BLACKHOLE, IPv4Network("192.0.2.0/24"), 77)
    rules = [FibRule(4, 32766, fib.TO_TABLE, 254), FibRule(4, 60, fib.TO_TABLE, 77, iif="cni0")]
    tables = Fib(rules, [main, hole])
    assert tables.look_up(fib.packet_to(DESTINATION, SOURCE)).route == main
    choice = tables.look_up(fib.packet_to(DESTINATION, SOURCE, "cni0"))
    assert (choice.route, choice.rule) == (hole, rules[1])
    assert not choice.is_delivered
    assert tables.look_up(fib.packet_to(SOURCE, SOURCE, "cni0")).route == main
    assert rules[1].words == "priority 60 from all iif cni0 lookup 77"


def test_destinations():
    """DEST is an address, a name, a port of the node, with a protocol; others are refused."""
    for text, parsed in (
        ("10.0.0.1", ("10.0.0.1", 0, 0)),
        ("fd00::3", ("fd00::3", 0, 0)),
        ("[fd00::3]:53/udp", ("fd00::3", 53, UDP)),
        ("default/web-0:80", ("default/web-0", 80, TCP)),
        (":8080", ("", 8080, TCP)),
        ("gateway", ("gateway", 0, 0)),
    ):
        assert destination.parse(text) == parsed
    for text in ("", ":", "10.0.0.1:70000", "10.0.0.1:0", "10.0.0.1:80/sctp", "/udp", "web/udp", "[web]:80", "a b"):
        with pytest.raises(UsageError):
            destination.parse(text)


@pytest.mark.parametrize(
    ("table", "chain", "owner"),
    [
        ("filter", "KUBE-FORWARD", "kube-proxy"), ("kube-proxy", "filter-forward", "kube-proxy"),
        ("filter", "DOCKER-USER", "Docker"), ("filter", "ufw-user-forward", "ufw"),
        ("firewalld", "filter_FORWARD", "firewalld"), ("filter", "LIBVIRT_FWI", "libvirt"),
        ("nat", "CNI-HOSTPORT-DNAT", "podwire"), ("cni_hostport", "hostports", "podwire"),
        ("netavark", "NETAVARK-1", "netavark"), ("filter", "cali-FORWARD", "Calico"), ("mine", "forward", "unknown"),
    ],
)  # fmt: skip
def test_owners(table, chain, owner):
    """The names of table and chain show the program that a rule belongs to."""
    assert owner_of(table, chain) == owner


def test_name_servers():
    """The name servers of a resolv.conf are its valid addresses, three at most, without zones."""
    servers = ("10.0.0.10", "fe80::1%eth0", "x", "9.9.9.9", "8.8.8.8")
    text = "# nameserver 1.1.1.1\n" + "".join(f"nameserver {one}\n" for one in servers)
    assert [str(one) for one in _name_servers(text)] == ["10.0.0.10", "fe80::1", "9.9.9.9"]


def test_other_machine_can_be_looked_up():
    """The suspect of an address that is used twice has a command with the other machine's MAC address."""
    path: Any = SimpleNamespace(source=Place(NODE, "node"))
    search: Any = SimpleNamespace(error=0, other_mac="02:00:00:00:00:66", address=SOURCE)
    suspect = run._duplicate(path, search).suspect
    assert suspect is not None
    assert search.other_mac in suspect.look


def sighting(place: str, kind: str, *, is_outgoing: bool) -> tuple[Any, Any]:
    where = SimpleNamespace(name=place, link=lambda _name: SimpleNamespace(kind=kind))
    return where, SimpleNamespace(interface="dev0", is_outgoing=is_outgoing)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([], True),
        ([sighting("pod", "veth", is_outgoing=True), sighting("node", "veth", is_outgoing=False)], True),
        ([sighting("node", "ifb", is_outgoing=True)], True),  # the queue of a limit
        ([sighting("node", "veth", is_outgoing=True)], False),
        ([sighting("node", "veth", is_outgoing=False), sighting("pod", "veth", is_outgoing=False)], False),
    ],
)
def test_packet_that_stayed_in_the_node(seen: list[tuple[Any, Any]], expected: bool) -> None:
    """A packet has stayed in the node if it was not seen to leave it, nor in another place after that."""
    assert _stayed_in(cast(Any, SimpleNamespace(sightings=seen)), "node") is expected
