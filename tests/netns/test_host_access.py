"""`hostAccess` of macvlan and ipvlan: pods and their node reach each other; the host link exists while it is needed."""

import contextlib
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.netns.conftest import IPVLAN, IPVLAN_L3, MACVLAN
from tests.support import uplink
from tests.support.attaching import address, reaches
from tests.support.netstate import links, shown, state
from tests.support.uplink import UPLINK, WIRE

ETH_P_ARP = 0x806  # linux/if_ether.h
NODE = [item.partition("/")[0] for item in uplink.HOST]
NEIGHBOUR = [item.partition("/")[0] for item in uplink.NEIGHBOUR]


def routes(host) -> set[str]:
    """Returns the destinations of the host's routes through the host link."""
    items = [json.loads(host.ip("-j", f"-{version}", "route", "show", "proto", "112")) for version in (4, 6)]
    return {item["dst"] for each in items for item in each}


@pytest.mark.parametrize("accessible", [MACVLAN, IPVLAN, *IPVLAN_L3], indirect=True)
def test_node_and_pods_reach_each_other(accessible, new_sandbox, neighbour):
    """Two pods, the node and a machine on the wire reach each other, by IPv4 and IPv6 and in both directions."""
    one, two = new_sandbox(), new_sandbox()
    first, second = accessible.add(one), accessible.add(two)
    for number in (0, 1):
        for pod, result, other in ((one, first, second), (two, second, first)):
            assert reaches(pod, NODE[number], within_s=2)
            assert reaches(accessible.host, address(result, number), within_s=2)
            assert reaches(pod, address(other, number))
            assert reaches(neighbour, address(result, number))
            assert reaches(pod, NEIGHBOUR[number])
        assert reaches(neighbour, NODE[number])
        assert reaches(accessible.host, NEIGHBOUR[number])


@pytest.mark.parametrize("accessible", [MACVLAN, IPVLAN, *IPVLAN_L3], indirect=True)
@pytest.mark.parametrize("first", ["pod", "node"])
def test_either_side_may_send_first(accessible, new_sandbox, first):
    """The first packet after ADD arrives, whichever side sends it."""
    for number in (0, 1):
        pod = new_sandbox()
        result = accessible.add(pod)
        sender, receiver = (pod, NODE[number]) if first == "pod" else (accessible.host, address(result, number))
        assert reaches(sender, receiver, within_s=1)


@pytest.mark.parametrize("accessible", [MACVLAN], indirect=True)
@pytest.mark.parametrize("rp_filter", ["0", "1", "2"])
def test_only_the_master_answers_for_the_node(accessible, sandbox, neighbour, rp_filter):
    """A machine on the wire learns the master's MAC address for the node, with each reverse path filter."""
    accessible.host.set_sysctl("net/ipv4/conf/all/rp_filter", rp_filter)
    accessible.add(sandbox)
    mac = shown(accessible.host, UPLINK)["address"]
    for node in NODE:
        assert reaches(neighbour, node)
        assert reaches(sandbox, node)
        assert mac in neighbour.ip("neighbour", "show", node, "dev", WIRE)
    neighbour.ip("neighbour", "flush", "dev", WIRE)
    assert list_arp_senders(neighbour, NODE[0]) == {mac}


def list_arp_senders(namespace, target) -> set[str]:
    """Returns the MAC addresses from which ARP replies arrive within half a second of a ping."""
    senders = set()
    with namespace.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ARP)) as replies:
        replies.bind((WIRE, ETH_P_ARP))
        replies.settimeout(0.5)
        assert reaches(namespace, target)
        with contextlib.suppress(TimeoutError):
            while True:
                frame, (_, _, packet_type, *_) = replies.recvfrom(2048)
                if packet_type != socket.PACKET_OUTGOING and frame[20:22] == b"\0\2":  # ARP's operation: reply
                    senders.add(frame[6:12].hex(":"))
    return senders


@pytest.mark.parametrize("accessible", [MACVLAN, *IPVLAN_L3], indirect=True)
def test_strict_arp_settings_of_the_node_do_not_matter(accessible, sandbox):
    """Pod and node reach each other if the node answers ARP only on the interface that has the address."""
    for key, value in (("arp_ignore", "1"), ("arp_announce", "2"), ("rp_filter", "1")):
        accessible.host.set_sysctl(f"net/ipv4/conf/all/{key}", value)
    result = accessible.add(sandbox)
    assert reaches(sandbox, NODE[0])
    assert reaches(accessible.host, address(result))


def test_host_link_exists_as_long_as_a_pod_needs_it(accessible, new_sandbox):
    """The first attachment creates the host link, and DEL of the last one deletes it; every route goes with its pod."""
    before = state(accessible.host)
    one, two = new_sandbox(), new_sandbox()
    first = accessible.add(one)
    name = uplink.host_link(accessible.host)
    assert links(accessible.host)[name]["addresses"] == []
    mac = shown(accessible.host, name)["address"]
    second = accessible.add(two)
    assert routes(accessible.host) == {"10.25.0.2", "fd00:25::2", "10.25.0.3", "fd00:25::3"}
    tunnel, ip = {"name": "tun0"}, {"address": "192.0.2.1/24", "interface": len(first["interfaces"])}
    first = {**first, "interfaces": [*first["interfaces"], tunnel], "ips": [*first["ips"], ip]}  # of a later plugin
    accessible.check(one, first)
    accessible.delete(one, first)
    assert routes(accessible.host) == {"10.25.0.3", "fd00:25::3"}
    accessible.check(two, second)
    assert reaches(two, NODE[1])
    accessible.delete(two, second)
    assert state(accessible.host) == before
    accessible.add(one)
    assert shown(accessible.host, name)["address"] == mac


@pytest.mark.parametrize("missing", ["namespace", "path", "prevResult", "both", "master", "routes"])
def test_del_removes_the_routes_without(accessible, sandbox, missing):
    """DEL removes routes and host link without namespace, path or prevResult; the kernel does so with the master."""
    before = set(links(accessible.host))
    result = accessible.add(sandbox)
    pod = "" if missing in ("path", "both") else sandbox
    if missing == "namespace":
        sandbox.delete()
    if missing == "master":
        accessible.host.ip("link", "del", UPLINK)
        before = {"lo"}
    if missing == "routes":
        accessible.host.ip("link", "set", uplink.host_link(accessible.host), "down")
    for _ in range(2):
        accessible.delete(pod, None if missing in ("prevResult", "both") else result, container_id=sandbox.name)
    assert set(links(accessible.host)) == before
    assert routes(accessible.host) == set()


def test_a_failed_add_leaves_nothing(accessible, sandbox, new_sandbox):
    """If the last step fails, ADD leaves neither host link nor routes, and keeps those of other pods."""
    before = state(accessible.host), state(sandbox)
    foreign = uplink.host_link(accessible.host)
    accessible.host.ip("link", "add", foreign, "type", "veth", "peer", "name", "other")
    error = accessible.run("ADD", sandbox).error()
    assert error["msg"] == f'the host\'s interface "{foreign}" is veth, not {accessible.config["type"]}'
    accessible.host.ip("link", "del", foreign)
    assert (state(accessible.host), state(sandbox), accessible.leases()) == (*before, {})
    accessible.add(new_sandbox())
    during = state(accessible.host)
    missing = {"dst": "192.0.2.0/24", "gw": "203.0.113.1"}
    bad = accessible.having(ipam={**accessible.config["ipam"], "routes": [missing]}).run("ADD", sandbox).error()
    assert bad["msg"].startswith("failed to add route")
    assert state(accessible.host) == during


@pytest.mark.parametrize("earlier", ["ADD", "DEL"])
def test_del_removes_the_link_of_a_killed_verb(accessible, sandbox, earlier):
    """A host link without routes, which an ADD or DEL leaves that is killed between link and routes, ends with DEL."""
    before = state(accessible.host)
    result = accessible.add(sandbox) if earlier == "DEL" else None
    if earlier == "DEL":
        for version in (4, 6):
            accessible.host.ip(f"-{version}", "route", "flush", "proto", "112")
    else:
        accessible.host.ip(
            "link", "add", uplink.host_link(accessible.host), "link", UPLINK, "type", accessible.config["type"]
        )
    accessible.delete(sandbox, result)
    assert state(accessible.host) == before


def test_gc_removes_the_routes_of_unlisted_attachments(accessible, new_sandbox):
    """GC keeps the routes of listed attachments and of other networks, and deletes an unused host link."""
    one, two, three = new_sandbox(), new_sandbox(), new_sandbox()
    before = set(links(accessible.host))
    accessible.add(one)
    accessible.add(two)
    other = accessible.having(name="other", ipam={**accessible.config["ipam"], "ranges": uplink.ranges("10.26.0.0/24")})
    kept = other.add(three)
    accessible.gc(one)
    assert routes(accessible.host) == {"10.25.0.2", "fd00:25::2", "10.26.0.2"}
    accessible.gc()
    assert routes(accessible.host) == {"10.26.0.2"}
    other.check(three, kept)
    other.delete(three, kept)
    assert set(links(accessible.host)) == before


def test_a_stale_route_to_an_address_is_replaced(accessible, new_sandbox):
    """A stale route to an address is replaced by that of the address's new owner."""
    one, two = new_sandbox(), new_sandbox()
    accessible.add(one)
    one.ip("link", "del", "eth0")  # the kernel would delete it after the namespace: until then it defends the address
    one.delete()
    ipam = accessible.config["ipam"]
    for lease in accessible.leases():
        Path(ipam["dataDir"], accessible.config["name"], lease).unlink()
    accessible.having(ipam={**ipam, "dataDir": f"{ipam['dataDir']}-fresh"}).add(two)
    assert routes(accessible.host) == {"10.25.0.2", "fd00:25::2"}
    accessible.delete("", container_id=one.name)
    assert routes(accessible.host) == {"10.25.0.2", "fd00:25::2"}
    assert reaches(accessible.host, "10.25.0.2")


BROKEN = {
    "host link": lambda host, pod: host.ip("link", "del", uplink.host_link(host)),
    "host link down": lambda host, pod: host.ip("link", "set", uplink.host_link(host), "down"),
    "route": lambda host, pod: host.ip("route", "del", "10.25.0.2", "proto", "112"),
    "IPv6 route": lambda host, pod: host.ip("-6", "route", "del", "fd00:25::2", "proto", "112"),
    "route in the pod": lambda host, pod: pod.ip("-6", "route", "del", NODE[1]),
    "neighbour entry": lambda host, pod: pod.ip("neighbour", "del", NODE[1], "dev", "eth0"),
    "address of the node": lambda host, pod: host.ip("address", "add", "10.25.0.99/24", "dev", UPLINK),
}


@pytest.mark.parametrize("case", [*BROKEN])
def test_check_reports_what_is_missing(accessible, sandbox, case):
    """CHECK reports a missing part of the host's access and names the command that restores it."""
    result = accessible.add(sandbox)
    accessible.check(sandbox, result)
    BROKEN[case](accessible.host, sandbox)
    error = accessible.run("CHECK", sandbox, prev_result=result).error()
    assert error["details"] == "run: podwire repair"


NO_REACH = 'interfaces of mode "{}" do not reach other interfaces on the same master'
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "linkInContainer": ({"linkInContainer": True}, 'with "linkInContainer" the master is not on the host'),
    "layer 2": ({"ipam": None}, 'the host needs routes to the pod\'s addresses, and without "ipam" it has none'),
    **{mode: ({"mode": mode}, NO_REACH.format(mode)) for mode in ("private", "vepa")},
    "passthru": ({"mode": "passthru"}, 'mode "passthru" gives the pod the whole master'),
}


@pytest.mark.parametrize(
    ("accessible", "case"),
    [("macvlan", case) for case in REFUSED] + [("ipvlan l2", case) for case in ("linkInContainer", "layer 2")],
    indirect=["accessible"],
)
def test_impossible_settings_are_refused(accessible, sandbox, case):
    """Host access is refused with the reason where it cannot work."""
    keys, reason = REFUSED[case]
    error = accessible.having(**keys).run("ADD", sandbox).error()
    assert (error["code"], error["msg"]) == (7, f'"hostAccess" is not possible: {reason}')
    assert set(links(sandbox)) == {"lo"}


def test_node_without_addresses_on_the_master(accessible, sandbox):
    """Without an address on the master the node has routes to the pod, and the pod none to the node."""
    accessible.host.ip("address", "flush", "dev", UPLINK)
    result = accessible.add(sandbox)
    accessible.check(sandbox, result)
    assert routes(accessible.host) == {"10.25.0.2", "fd00:25::2"}
    assert not sandbox.ip("neighbour", "show", "nud", "permanent")
    accessible.delete(sandbox, result)
    assert set(links(accessible.host)) == {"lo", UPLINK}


def test_reference_plugin_deletes_the_pod(accessible, sandbox, reference):
    """After DEL of the reference plugin, which leaves the routes, GC deletes them with the host link."""
    result = accessible.having(cniVersion="1.0.0").add(sandbox)
    replace(accessible, bin_dir=reference, path=str(reference)).having(cniVersion="1.0.0").delete(sandbox, result)
    assert routes(accessible.host) == {"10.25.0.2", "fd00:25::2"}
    accessible.gc()
    assert set(links(accessible.host)) == {"lo", UPLINK}
