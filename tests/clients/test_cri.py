"""Pods of containerd's CRI on a network of bridge, portmap and bandwidth have what kubelet requests."""

import json
import re

import pytest

from tests.clients import cri as client
from tests.clients.cri import page, pb
from tests.clients.images import PAGE
from tests.support import rates
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, ADDRESS6, PEER_ADDRESS
from tests.support.rates import Transfer
from tests.support.sockets import call, service

TO_POD, FROM_POD = 8_000_000, 16_000_000
LIMITS = {"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "16M"}
PORTS = ((8080, 80, pb.TCP, ""), (8053, 53, pb.UDP, ""), (8081, 80, pb.TCP, ADDRESS))
# The backend of portmap and of bridge's masquerading, the CNI version, and the subnets of both families.
NETWORKS = (
    ("iptables", "1.0.0", "10.70.0", "fd70:"),
    ("nftables", "1.0.0", "10.71.0", "fd71:"),
    ("nftables", "1.1.0", "10.78.0", "fd78:"),
)


@pytest.fixture(scope="module", params=NETWORKS, ids=lambda network: "-".join(network[:2]))
def network(request, cri):
    """A network of each backend and CNI version."""
    backend, version, ipv4, ipv6 = request.param
    if version == "1.1.0" and not cri.knows_current_cni:
        pytest.skip("containerd 1 does not know CNI 1.1.0")
    bridge = f"cni-{ipv4}"
    return client.network(bridge, bridge, f"{ipv4}.0/24", f"{ipv6}:/64", backend=backend) | {"cniVersion": version}


@pytest.fixture(scope="module")
def pods(cri, network):
    """Two pods, `web` with host ports and limits; afterwards the machine is as after the first pod of the network."""
    cri.configure(network)
    with cri.no_leftovers(network["name"], PORTS, LIMITS):
        yield cri.run("web", PORTS, LIMITS), cri.run("plain")


def test_pod_has_addresses_of_both_families_and_loopback(pods):
    """Containerd reports to kubelet the addresses of both families that the pod has, and lo is up."""
    for pod in pods:
        links = {link["ifname"]: link for link in json.loads(pod.namespace.run("ip", "-j", "address", "show"))}
        assert {"UP", "LOOPBACK"} <= set(links["lo"]["flags"])
        addresses = [one for one in links["eth0"]["addr_info"] if one["scope"] == "global"]
        assert [f"{one['local']}/{one['prefixlen']}" for one in addresses] == [f"{pod.ips[0]}/24", f"{pod.ips[1]}/64"]


def test_host_port_is_forwarded_from_peer_host_and_pods(cri, pods):
    """The peer, the host, another pod and the pod itself reach the pod by its host port, over both families.

    The first answer over IPv6 takes two seconds, while the kernel checks that the new bridge's address is unique.
    """
    web, plain = pods
    callers = {"peer": cri.machine.peer, "host": cri.machine.network, "plain": plain.namespace, "web": web.namespace}
    answers = {(name, ip): page(caller, ip, 8080) for name, caller in callers.items() for ip in (ADDRESS, ADDRESS6)}
    assert answers == dict.fromkeys(answers, PAGE)
    assert page(cri.machine.network, "127.0.0.1", 8080) == PAGE


def test_host_port_with_host_ip_is_published_at_that_address_only(cri, pods):
    """A mapping with hostIP is published at that address and at no other."""
    assert page(cri.machine.peer, ADDRESS, 8081) == PAGE
    assert page(cri.machine.network, "127.0.0.1", 8081) == ""
    assert page(cri.machine.peer, ADDRESS6, 8081) == ""


def test_udp_host_port_is_forwarded(cri, pods):
    """A UDP host port is forwarded to the pod, and the reply comes from the address that was called."""
    web, _ = pods
    with service(web.namespace, "udp", web.ips[0], 53, name="web") as server:
        reached = call([server], cri.machine.peer, "udp", ADDRESS, 8053)
    assert reached is not None
    assert reached.source == PEER_ADDRESS


def test_pods_reach_each_other_and_other_machines(cri, pods):
    """Pods reach each other by both families, and other machines with the machine's address as source."""
    web, plain = pods
    assert [page(plain.namespace, ip) for ip in web.ips] == [PAGE, PAGE]
    assert reaches(plain.namespace, PEER_ADDRESS), (
        "the peer has no route to pods: only replies to masqueraded packets return"
    )


def test_limits_are_set_and_hold(cri, pods):
    """The limits of the annotations are in two buckets, and TCP does not exceed them in either direction."""
    web, _ = pods
    text = cri.machine.run("tc", "qdisc", "show")
    assert sorted(re.findall(r"qdisc tbf .* rate (\S+)", text)) == ["16Mbit", "8Mbit"]
    host, gateway = cri.machine.network, re.sub(r"\d+$", "1", web.ips[0])  # the host listens: the pod's port is in use
    for transfer, limit in (
        (Transfer(host, web.namespace, gateway, server_sends=True), TO_POD),
        (Transfer(web.namespace, host, gateway), FROM_POD),
    ):
        assert rates.tcp(transfer, after=limit // 32) < 1.05 * limit


def test_container_shares_the_network_of_its_pod(cri, pods):
    """A container has the addresses of its pod, and the resolver of the pod's configuration."""
    _, plain = pods
    text = cri.run_in(plain, "sh", "-c", "ip -o addr show eth0; cat /etc/resolv.conf")
    assert f"inet {plain.ips[0]}/24 " in text
    assert f"inet6 {plain.ips[1]}/64 " in text
    assert "nameserver 10.96.0.10" in text
