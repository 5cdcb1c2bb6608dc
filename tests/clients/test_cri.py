"""Pods of containerd's CRI on a network of bridge, portmap and bandwidth: what kubelet asks for is there, and holds."""

from __future__ import annotations

import json
import re

import pytest

from tests.clients import cri as client
from tests.clients.cri import page, pb
from tests.clients.images import PAGE
from tests.support import netstate, rates
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, ADDRESS6, PEER_ADDRESS
from tests.support.rates import Transfer
from tests.support.sockets import call, service

TO_POD, FROM_POD = 8_000_000, 16_000_000
LIMITS = {"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "16M"}
PORTS = ((8080, 80, pb.TCP, ""), (8053, 53, pb.UDP, ""), (8081, 80, pb.TCP, ADDRESS))
SUBNETS = {"iptables": ("10.70.0", "fd70:"), "nftables": ("10.71.0", "fd71:")}


@pytest.fixture(scope="module")
def cri(needs_programs, bin_dir, empty_machine):
    """The CRI of a containerd that has our plugins only."""
    needs_programs(*client.PROGRAMS)
    with client.ready(empty_machine, bin_dir) as made:
        yield made


@pytest.fixture(scope="module", params=SUBNETS)
def backend(request):
    """What portmap and bridge make their rules with."""
    return request.param


@pytest.fixture(scope="module")
def pods(cri, backend):
    """Two pods, `web` with host ports and limits; when they are gone the machine is as before the first of them."""
    ipv4, ipv6 = SUBNETS[backend]
    network = client.network(f"pods-{backend}", f"cni-{backend}", f"{ipv4}.0/24", f"{ipv6}:/64", backend=backend)
    cri.configure(network)
    with cri.nothing_left(f"cni-{backend}", PORTS, LIMITS):
        yield cri.run("web", PORTS, LIMITS), cri.run("plain")


def test_a_pod_has_addresses_of_both_families_and_its_loopback(pods):
    """Kubelet is told the addresses of both families that the pod really has, and lo is up."""
    for pod in pods:
        links = {link["ifname"]: link for link in json.loads(pod.namespace.run("ip", "-j", "address", "show"))}
        assert {"UP", "LOOPBACK"} <= set(links["lo"]["flags"])
        given = [one for one in links["eth0"]["addr_info"] if one["scope"] == "global"]
        assert [f"{one['local']}/{one['prefixlen']}" for one in given] == [f"{pod.ips[0]}/24", f"{pod.ips[1]}/64"]


def test_host_ports_lead_to_the_pod_from_everywhere(cri, pods):
    """A host port is answered by the pod for the peer, the host, another pod and the pod itself, over both families.

    The first answer over IPv6 takes two seconds: so long the kernel looks whether the new bridge's address is unique.
    """
    web, plain = pods
    callers = {"peer": cri.machine.peer, "host": cri.machine.network, "plain": plain.namespace, "web": web.namespace}
    answers = {(name, ip): page(who, ip, 8080) for name, who in callers.items() for ip in (ADDRESS, ADDRESS6)}
    assert answers == dict.fromkeys(answers, PAGE)
    assert page(cri.machine.network, "127.0.0.1", 8080) == PAGE


def test_a_host_port_with_an_address_is_there_only(cri, pods):
    """A mapping with hostIP leads to the pod at that address and at no other."""
    assert page(cri.machine.peer, ADDRESS, 8081) == PAGE
    assert page(cri.machine.network, "127.0.0.1", 8081) == ""
    assert page(cri.machine.peer, ADDRESS6, 8081) == ""


def test_host_ports_of_udp(cri, pods):
    """A UDP host port leads to the pod, and the answer comes from where it was asked."""
    web, _ = pods
    with service(web.namespace, "udp", web.ips[0], 53, name="web") as own:
        reached = call([own], cri.machine.peer, "udp", ADDRESS, 8053)
    assert reached is not None
    assert reached.source == PEER_ADDRESS


def test_pods_reach_each_other_and_the_world(cri, pods):
    """Pods call each other by either family, and what they send to the world bears the machine's address."""
    web, plain = pods
    assert [page(plain.namespace, ip) for ip in web.ips] == [PAGE, PAGE]
    assert reaches(plain.namespace, PEER_ADDRESS), "the peer knows no way to pods: only masqueraded packets return"


def test_limits_are_set_and_held(cri, pods, backend):
    """What the annotations ask for is in two buckets, and TCP gets this much, in both directions, and no more."""
    web, _ = pods
    text = cri.machine.run("tc", "qdisc", "show")
    assert sorted(re.findall(r"qdisc tbf .* rate (\S+)", text)) == ["16Mbit", "8Mbit"]
    host, gateway = cri.machine.network, f"{SUBNETS[backend][0]}.1"  # the host listens: the pod's port is in use
    assert_held(Transfer(host, web.namespace, gateway, server_sends=True), TO_POD)
    assert_held(Transfer(web.namespace, host, gateway), FROM_POD)


def assert_held(way, limit):
    """Demands that TCP never gets more than the limit in bits/s, and most of it once in three measurements."""
    measured = []
    while len(measured) < 3 and (
        not measured or measured[-1] < 0.75 * limit
    ):  # a busy machine is slower than the limit
        measured.append(rates.tcp(way, after=limit // 32))
    assert max(measured) < 1.05 * limit, measured
    assert max(measured) > 0.75 * limit, measured


def test_a_container_shares_the_network_of_its_pod(cri, pods):
    """A container sees the addresses of its pod, and is given the pod's resolver."""
    _, plain = pods
    text = cri.said_in(plain, "sh", "-c", "ip -o addr show eth0; cat /etc/resolv.conf")
    assert f"inet {plain.ips[0]}/24 " in text
    assert f"inet6 {plain.ips[1]}/64 " in text
    assert "nameserver 10.96.0.10" in text


def test_a_pod_on_the_hosts_network_changes_nothing(cri, pods):
    """For a pod on the host's network no plugin is run."""
    before = netstate.state(cri.machine.network, netfilter=True)
    pod = cri.run("hostnet", host_network=True)
    assert pod.ips == ()
    assert netstate.state(cri.machine.network, netfilter=True) == before
    cri.remove(pod)
