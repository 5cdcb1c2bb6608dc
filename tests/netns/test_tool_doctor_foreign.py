"""`podwire doctor` raises no false alarm beside other programs' rules and routes; tests/data/foreign has most."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.binaries import ROOT
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.fault_node import describe, fault_node
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
SHELLS = {
    "a transparent proxy by nftables": PROXY
    + "nft 'add table inet clash; add chain inet clash pre { type filter hook prerouting priority mangle; }; "
    "add rule inet clash pre ip daddr { 127.0.0.0/8, 10.44.0.0/24, 192.0.2.1 } return; "
    "add rule inet clash pre meta l4proto { tcp, udp } tproxy ip to 127.0.0.1:7893 meta mark set 1 accept'",
    "a transparent proxy by iptables": PROXY
    + "iptables -t mangle -A PREROUTING -i cni0 -p tcp ! -d 10.44.0.0/24 -j TPROXY --on-port 7893 "
    "--on-ip 127.0.0.1 --tproxy-mark 1/1",
    "tailscale's rules": TAILSCALE,
    "a full tunnel of wg-quick": WG_QUICK,
    "nexthop objects": (
        "ip nexthop add id 10 via 192.0.2.2 dev out0; ip route replace default nhid 10; "
        "ip nexthop add id 99 blackhole; ip route add 203.0.114.0/24 nhid 99; ip route add unreachable 192.168.0.0/16"
    ),
}
SHELLS |= {path.stem: path.read_text() for path in sorted((ROOT / "tests" / "data" / "foreign").glob("*.sh"))}
NEEDS = {"firewalld": ("nft_inet",), "netavark": ("nft_inet", "nft_nat"), "kube-proxy-nftables": ("nft_inet",)}
# Notes that are true on such a node.
NOTES = {"ufw": {"node-closed"}}


@pytest.mark.needs("iptables_nft_nat")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.needs(*NEEDS.get(name, ())), id=name) for name in SHELLS]
)
def test_node_of_another_program_is_in_order(tmp_path: Path, bin_dir: Path, root: None, name: str) -> None:
    """Beside another program's rules and routes the node is in order, and a DROP rule for the pods is still found."""
    with fault_node(tmp_path) as node:
        node.inject(SHELLS[name].replace("{", "{{").replace("}", "}}"))
        findings = node.list_findings()
        assert {one["name"] for one in findings} == NOTES.get(name, set()), describe(findings)
        node.inject("iptables -t raw -I PREROUTING -i {gate} -j DROP")
        assert node.list_findings()[0]["name"] == "rule-drops"


def test_route_to_the_network_that_contains_the_pods_subnet(
    node: DoctorNode, new_sandbox: Callable[[], Namespace]
) -> None:
    """A route to the cluster's network that contains the node's subnet is right: flannel, kubenet, CRI-O.

    The route of the pod's subnet is narrower and comes first; `--fix` changes no route of the pod.
    """
    dsts = ["10.42.0.0/16", "0.0.0.0/0"]
    network = node.add_bridge("cbr0", "10.42.0.0/24", routes=dsts, isDefaultGateway=True, ipMasq=True)
    pod = new_sandbox()
    pod.ip("link", "set", "lo", "up")
    node.attach(network, pod)
    routes = pod.ip("route")
    assert "10.42.0.0/16 via 10.42.0.1" in routes
    assert list_problems(node.list_findings()) == []
    assert node.doctor("--fix", "--yes").returncode == 0
    assert pod.ip("route") == routes
    pod.ip("route", "del", "10.42.0.0/16")
    pod.ip("route", "add", "10.42.0.0/16", "dev", "eth0")
    assert node.find("pod-gateway-wrong")["text"].startswith("packets to 10.42.255.255 go to no gateway")
    assert node.doctor("--fix", "--yes").returncode == 0
    assert sorted(pod.ip("route").splitlines()) == sorted(routes.splitlines())
