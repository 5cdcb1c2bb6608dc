"""Pods of containerd's CRI whose network is macvlan on the node's uplink: addresses, neighbours, kubelet's probes."""

import json
from typing import Any

from tests.clients.cri import page
from tests.clients.images import PAGE
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, ADDRESS6, PEER_ADDRESS, PEER_ADDRESS6

NODE, PEER = (ADDRESS, ADDRESS6), (PEER_ADDRESS, PEER_ADDRESS6)


def network(**keys: Any) -> dict[str, Any]:
    """Returns a dual-stack network of macvlan, with addresses of the uplink's network, and tuning."""
    ranges = [
        [{"subnet": "203.0.113.0/24", "rangeStart": "203.0.113.128", "gateway": PEER_ADDRESS}],
        [{"subnet": "2001:db8::/64", "rangeStart": "2001:db8::1:0", "gateway": PEER_ADDRESS6}],
    ]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    plugins = [{"type": "macvlan", "master": "up0", **keys, "ipam": ipam}, {"type": "tuning", "mtu": 1400}]
    return {"cniVersion": "1.0.0", "name": "-".join(["macvlan", *keys]).lower(), "plugins": plugins}


def test_pods_are_on_the_network_of_the_node(cri):
    """Pods, the peer and each other reach the pod by both families with the addresses that containerd reports.

    The node does not, as the kernel passes no packets between it and macvlan interfaces on its uplink.
    """
    cri.configure(network())
    with cri.unchanged():
        one, two = cri.run("one"), cri.run("two")
        (link,) = json.loads(one.namespace.run("ip", "-j", "address", "show", "eth0"))
        addresses = tuple(each["local"] for each in link["addr_info"] if each["scope"] == "global")
        assert (addresses, link["mtu"]) == (one.ips, 1400)
        for number, ip in enumerate(one.ips):
            assert reaches(one.namespace, PEER[number])
            assert page(two.namespace, ip) == page(cri.machine.peer, ip) == PAGE
            assert page(cri.machine.network, ip, timeout_s=1) == ""
        assert f"inet {one.ips[0]}/24 " in cri.run_in(one, "ip", "-o", "addr", "show", "eth0")


def test_probes_of_the_node_reach_the_pod(cri):
    """With "hostAccess" the node, as kubelet's probes, reaches each pod, and each pod the node, by both families."""
    cri.configure(network(hostAccess=True))
    with cri.unchanged():
        pods = cri.run("one"), cri.run("two")
        for pod in pods:
            for number, ip in enumerate(pod.ips):
                assert page(cri.machine.network, ip) == page(cri.machine.peer, ip) == PAGE
                assert reaches(pod.namespace, NODE[number])
        cri.remove(pods[0])
        assert page(cri.machine.network, pods[0].ips[0], timeout_s=1) == ""
        assert page(cri.machine.network, pods[1].ips[0]) == PAGE
