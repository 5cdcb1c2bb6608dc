"""`conflictDetection` of macvlan and ipvlan: an address that another host uses is refused (RFC 5227, RFC 4862)."""

import json
import socket
import struct
import time

import pytest

from tests.support import uplink
from tests.support.attaching import DEBUG_LOG, address, list_steps, reaches
from tests.support.invocation import finish
from tests.support.netstate import shown, state
from tests.support.single_link import each
from tests.support.uplink import WIRE

ETH_P_ARP = 0x806  # linux/if_ether.h


pytestmark = each("macvlan", "ipvlan")


@pytest.fixture
def careful(net):
    """The IPv4 network with conflict detection."""
    ipam = {**net.config["ipam"], "ranges": uplink.ranges(uplink.SUBNETS[0])}
    return net.having(conflictDetection=True, ipam=ipam)


def test_address_of_another_host_is_refused(careful, sandbox, neighbour):
    """ADD names the address and the MAC address of its user, leaves nothing, and the next ADD has another address."""
    neighbour.ip("address", "add", "10.25.0.2/24", "dev", WIRE)
    before = state(careful.host), state(sandbox)
    error = careful.run("ADD", sandbox).error()
    assert error["msg"] == f"address 10.25.0.2 is in use by {shown(neighbour, WIRE)['address']}"
    assert (state(careful.host), state(sandbox), careful.leases()) == (*before, {})
    started = time.monotonic()
    result = careful.add(sandbox)
    assert time.monotonic() - started >= 4  # three probes and two seconds after the last (RFC 5227)
    assert address(result) == "10.25.0.3"
    assert reaches(neighbour, "10.25.0.3")
    careful.check(sandbox, result)


def test_two_hosts_that_probe_for_one_address(careful, sandbox, neighbour):
    """A probe of another host for the same address is a conflict."""
    process = careful.start("ADD", sandbox)
    mac = bytes.fromhex(shown(neighbour, WIRE)["address"].replace(":", ""))
    probe = struct.pack(">HHBBH6s4s6s4s", 1, 0x800, 6, 4, 1, mac, bytes(4), bytes(6), socket.inet_aton("10.25.0.2"))
    with neighbour.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ARP)) as packets:
        packets.bind((WIRE, ETH_P_ARP))
        packets.settimeout(20)
        packets.recv(2048)  # ADD has begun to probe
        packets.sendto(b"short", (WIRE, ETH_P_ARP, 0, 0, b"\xff" * 6))
        packets.sendto(probe, (WIRE, ETH_P_ARP, 0, 0, b"\xff" * 6))
    error = finish(process).error()
    assert error["msg"] == f"address 10.25.0.2 is in use by {shown(neighbour, WIRE)['address']}"


def test_address_is_announced_after_the_detection(careful, sandbox, neighbour):
    """Neighbours of the address's previous owner learn the pod's MAC address without a request."""
    neighbour.set_sysctl("net/ipv4/conf/all/arp_accept", "1")
    result = careful.add(sandbox)
    (entry,) = json.loads(neighbour.ip("-j", "neighbour", "show", address(result), "dev", WIRE))
    assert entry["lladdr"] == result["interfaces"][0]["mac"]


def test_without_the_key_ipv4_is_not_probed(careful, sandbox, neighbour):
    """By default ADD does not probe: it does not notice that another host uses the address."""
    neighbour.ip("address", "add", "10.25.0.2/24", "dev", WIRE)
    assert address(careful.having(conflictDetection=None).add(sandbox)) == "10.25.0.2"


@pytest.mark.parametrize("configured", [True, None])
def test_ipv6_conflicts_are_always_detected(net, sandbox, neighbour, configured):
    """The kernel detects a used IPv6 address, with and without the key; ADD leaves nothing."""
    neighbour.ip("address", "add", "fd00:25::2/64", "dev", WIRE, "nodad")
    ipam = {**net.config["ipam"], "ranges": uplink.ranges(uplink.SUBNETS[1])}
    net = net.having(ipam=ipam, conflictDetection=configured)
    error = net.run("ADD", sandbox).error()
    assert error["msg"] == "link eth0 has address fd00:25::2 in DADFAILED state"
    assert net.leases() == {}


def test_layer_2_has_no_address_to_probe(net, sandbox):
    """Without addresses conflict detection does nothing: ADD has no such step."""
    outcome = net.having(ipam=None, conflictDetection=True).run("ADD", sandbox, env=DEBUG_LOG)
    assert "ips" not in outcome.result()
    assert list_steps(outcome) == ["open the network namespace"]
