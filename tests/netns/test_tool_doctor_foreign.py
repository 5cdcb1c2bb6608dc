"""`podwire doctor` raises no false alarm beside other programs' rules and routes, which tests/data/foreign has."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.binaries import ROOT
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.fault_node import describe, fault_node
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.one_kernel

SHELLS = {path.stem: path.read_text() for path in sorted((ROOT / "tests" / "data" / "foreign").glob("*.sh"))}
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
