"""`podwire doctor` on healthy nodes: routes and rules of other programs, and pods as other programs configure them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.fault_node import FaultNode, fault_node
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.one_kernel

PROXY = "ip rule add priority 100 fwmark 1 lookup 100; ip route add local default dev lo table 100; "
TAILSCALE = """
ip route add 100.64.0.0/10 dev out0 table 52; ip route add throw 127.0.0.0/8 table 52
ip rule add priority 5210 fwmark 0x80000/0xff0000 lookup main
ip rule add priority 5250 fwmark 0x80000/0xff0000 unreachable; ip rule add priority 5270 lookup 52
"""
WG_QUICK = """
ip link add wg0 type veth peer name wg1; ip link set wg0 up; ip link set wg1 up
ip route add default dev wg0 table 51820; ip rule add priority 32765 not fwmark 51820 lookup 51820
ip rule add priority 32764 lookup main suppress_prefixlength 0
"""
HEALTHY = {  # shell commands on the node, and those that remove what they leave
    "a transparent proxy by nftables": (
        PROXY
        + "nft 'add table inet clash; add chain inet clash pre {{ type filter hook prerouting priority mangle; }}; "
        "add rule inet clash pre ip daddr {{ 127.0.0.0/8, {subnet}, 192.0.2.1 }} return; "
        "add rule inet clash pre meta l4proto {{ tcp, udp }} tproxy ip to 127.0.0.1:7893 meta mark set 1 accept'",
        "nft delete table inet clash; ip rule del priority 100; ip route flush table 100",
    ),
    "a transparent proxy by iptables": (
        PROXY + "iptables -t mangle -A PREROUTING -i {gate} -p tcp ! -d {subnet} -j TPROXY --on-port 7893 "
        "--on-ip 127.0.0.1 --tproxy-mark 1/1",
        "iptables -t mangle -F PREROUTING; ip rule del priority 100; ip route flush table 100",
    ),
    "tailscale": (
        TAILSCALE,
        "for n in 5210 5250 5270; do ip rule del priority $n; done; ip route flush table 52",
    ),
    "a full tunnel of wg-quick": (
        WG_QUICK,
        "for n in 32764 32765; do ip rule del priority $n; done; ip link del wg0",
    ),
    "nexthop objects": (
        "ip nexthop add id 10 via 192.0.2.2 dev out0; ip route replace default nhid 10; "
        "ip nexthop add id 99 blackhole; ip route add 203.0.114.0/24 nhid 99; ip route add unreachable 192.168.0.0/16",
        "ip route replace default via 192.0.2.2; ip route del unreachable 192.168.0.0/16; ip nexthop flush",
    ),
}


@pytest.fixture(scope="module")
def node(root: None, bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultNode]:
    """A node with two pods."""
    with fault_node(tmp_path_factory.mktemp("node")) as healthy:
        yield healthy


@pytest.mark.parametrize(("shell", "undo"), HEALTHY.values(), ids=HEALTHY)
def test_other_programs_are_no_fault(node: FaultNode, shell: str, undo: str) -> None:
    """Policy routing of another program that carries the pods' packets is no problem, and no command is printed."""
    node.inject(shell)
    try:
        findings = node.list_findings()
        assert list_problems(findings) == []
        assert not any(one["commands"] for one in findings)
    finally:
        node.inject(undo)


def test_route_to_the_network_that_contains_the_pods_subnet(
    host: Namespace, new_sandbox: Callable[[], Namespace], tmp_path: Path
) -> None:
    """A route to the cluster's network that contains the node's subnet is right: flannel, kubenet, CRI-O.

    The route of the pod's subnet is narrower and comes first; `--fix` changes no route of the pod.
    """
    ipam = {
        "type": "host-local", "ranges": [[{"subnet": "10.42.0.0/24"}]], "dataDir": str(tmp_path / "leases"),
        "routes": [{"dst": "10.42.0.0/16"}, {"dst": "0.0.0.0/0"}],
    }  # fmt: skip
    bridge = {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "ipMasq": True, "ipam": ipam}
    healthy = DoctorNode(host, tmp_path)
    network = healthy.add_network({"cniVersion": "1.0.0", "name": "cbr0", "plugins": [bridge]})
    pod = new_sandbox()
    pod.ip("link", "set", "lo", "up")
    healthy.attach(network, pod)
    routes = pod.ip("route")
    assert "10.42.0.0/16 via 10.42.0.1" in routes
    assert list_problems(healthy.list_findings()) == []
    assert healthy.doctor("--fix", "--yes").returncode == 0
    assert pod.ip("route") == routes
    pod.ip("route", "del", "10.42.0.0/16")
    pod.ip("route", "add", "10.42.0.0/16", "dev", "eth0")
    assert healthy.find("pod-gateway-wrong")["text"].startswith("packets to 10.42.255.255 go to no gateway")
    assert healthy.doctor("--fix", "--yes").returncode == 0
    assert sorted(pod.ip("route").splitlines()) == sorted(routes.splitlines())
