"""`podwire test` with the sample networks of conf/."""

import pytest

from tests.support.doctor_node import list_problems
from tests.support.packet_node import PacketNode

_NEED_IPTABLES, _NEED_LIMITS = ("iptables_nft_nat",), ("iptables_nft_nat", "ifb", "tbf")
_POD_PATHS = {"duplicate", "pod-to-pod"}
_NODE_PATHS = {"gateway", "pod-to-node", "next-hop", "node-to-pod", "pod-to-outside"}
_SAMPLES = {  # the paths that a network is made for, and the features that it needs
    "10-podwire": (_POD_PATHS | _NODE_PATHS, _NEED_LIMITS),
    "20-dual-stack": (_POD_PATHS | _NODE_PATHS, _NEED_LIMITS),
    "50-nftables": (_POD_PATHS | _NODE_PATHS, ("nft_nat", "nft_inet", "ifb", "tbf")),
    "60-podman": (_POD_PATHS | _NODE_PATHS, _NEED_IPTABLES),
    "70-ptp": (_POD_PATHS | _NODE_PATHS, _NEED_IPTABLES),
    "90-macvlan": (_POD_PATHS, ("macvlan",)),
    "91-ipvlan": ({"pod-to-pod"}, ("ipvlan",)),
}


@pytest.mark.parametrize(
    ("sample", "paths"),
    [pytest.param(name, paths, marks=pytest.mark.needs(*needs), id=name) for name, (paths, needs) in _SAMPLES.items()],
)
def test_sample_networks(host, new_sandbox, tmp_path, sample, paths):
    """With a sample network no path of a healthy pod is lost, and those that the network is made for are tested."""
    node = PacketNode(host, tmp_path, new_sandbox())
    for name in ("eth0", "eth2"):  # the masters of the samples
        node.host.run("sh", "-ec", f"ip link add {name} type veth peer wire{name}; ip link set {name} up")
        node.host.ip("link", "set", f"wire{name}", "up")
    network = node.add_sample(f"{sample}.conflist")
    for pod in (new_sandbox(), new_sandbox()):
        node.attach(network, pod)
    document = node.test()
    assert {one["state"] for one in document["paths"]} <= {"ok", "slow"}, document
    assert {one["path"] for one in document["paths"]} == paths


@pytest.mark.parametrize("gateway", ["fd00:22::1", "fe80::1"])
@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_ipv6_without_masquerading(host, new_sandbox, tmp_path, kind, gateway):
    """On a node that detects duplicate addresses, no path of a healthy pod is lost, and `podwire doctor` agrees.

    The path to the outside begins when its interface on the node is a moment old.
    """
    node = PacketNode(host, tmp_path, new_sandbox())
    host.set_sysctl("net/ipv6/conf/default/accept_dad", "1")
    ranges = [[{"subnet": "fd00:22::/64", "gateway": gateway}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "::/0"}], "dataDir": f"{tmp_path}/leases"}
    plugin = {"type": kind, **({"isGateway": True} if kind == "bridge" else {}), "ipam": ipam}
    network = node.add_network({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]})
    for pod in (new_sandbox(), new_sandbox()):
        pod.ip("link", "set", "lo", "up")
        node.attach(network, pod)
    document = node.test()
    assert {one["state"] for one in document["paths"]} <= {"ok", "slow"}, document
    assert {one["path"] for one in document["paths"]} == _POD_PATHS | _NODE_PATHS
    assert list_problems(node.list_findings()) == []
