"""conf/40-kubenet.conflist does the same on a node as kubenet, which Kubernetes 1.24 removed.

The node's uplink is connected to a router with a route to the pods; the source addresses that the router receives
show what was masqueraded.
"""

import pytest

from tests.support.attaching import Network, address, host_end, reaches
from tests.support.binaries import ROOT
from tests.support.netlist import NetworkList
from tests.support.netstate import links, shown
from tests.support.sockets import NO_ANSWER_S
from tests.support.tcp import PORT, serving, source_address

NODE, OTHER_NODE, WORLD = "10.250.0.1", "10.250.0.2", "203.0.113.1"
SERVICE = "10.96.0.10"
BRIDGE_NF = "net/bridge/bridge-nf-call-iptables"


@pytest.fixture
def router(new_sandbox):
    """A machine that is another node and the internet in one, with a route to the node's pod CIDR."""
    return new_sandbox()


@pytest.fixture
def node(bin_dir, host, router, store):
    """The sample's network on a node as a cloud creates it: an uplink of MTU 1450 and a default route to the router."""
    sample = NetworkList.load(ROOT / "conf" / "40-kubenet.conflist")
    plugin = next(plugin for plugin in sample.plugins if plugin["type"] == "bridge")
    ipam = {**plugin["ipam"], "dataDir": str(store)}
    end = ("name", "up0", "mtu", "1450")
    host.ip("link", "add", *end, "type", "veth", "peer", *end, "netns", router.name)
    for namespace, addresses in ((host, (NODE,)), (router, (OTHER_NODE, WORLD))):
        for ip in addresses:
            namespace.ip("address", "add", f"{ip}/24", "dev", "up0")
        namespace.ip("link", "set", "up0", "up")
    host.ip("route", "add", "default", "via", OTHER_NODE)
    router.ip("route", "add", "10.24.0.0/16", "via", NODE)
    config = {**plugin, "name": sample.name, "cniVersion": sample.cni_version, "ipam": ipam}
    return Network(host, config)


def test_pods_and_node_are_configured_as_by_kubenet(node, new_sandbox):
    """Bridge cbr0 has the first address of the pod CIDR, each pod the next one, a hairpin port and a default route."""
    for key in ("net/ipv4/ip_forward", BRIDGE_NF):
        node.host.set_sysctl(key, "0")
    for number in (2, 3, 4):
        pod = new_sandbox()
        result = node.add(pod)
        assert address(result) == f"10.24.0.{number}"
        port, container_veth = shown(node.host, host_end(result)), links(pod)["eth0"]
        bridge = links(node.host)["cbr0"]
        assert (port["master"], port["linkinfo"]["info_slave_data"]["hairpin"]) == ("cbr0", True)
        assert [link["mtu"] for link in (bridge, port, container_veth)] == [1450] * 3
        assert pod.ip("route", "show", "default").split() == ["default", "via", "10.24.0.1", "dev", "eth0"]
        assert pod.sysctl("net/ipv6/conf/eth0/accept_dad") == "0"
    assert [(item["local"], item["prefixlen"]) for item in bridge["addresses"]] == [("10.24.0.1", 24)]
    assert [node.host.sysctl(key) for key in ("net/ipv4/ip_forward", BRIDGE_NF)] == ["1", "1"]


@pytest.mark.parametrize("hairpin", [True, False])
def test_pod_reaches_itself_through_a_service(node, sandbox, hairpin):
    """A pod that calls a service whose only pod it is gets an answer only in hairpin mode."""
    node = node.having(hairpinMode=hairpin)
    pod_ip = address(node.add(sandbox))
    # As kube-proxy does: the first rules, with the node's address as source if the pod calls itself.
    nat = ("iptables", "-w", "-t", "nat", "-I")
    service = ("-d", SERVICE, "-p", "tcp", "--dport", "80")
    node.host.run(*nat, "PREROUTING", *service, "-j", "DNAT", "--to-destination", f"{pod_ip}:{PORT}")
    node.host.run(*nat, "POSTROUTING", "-s", pod_ip, "-d", pod_ip, "-j", "MASQUERADE")
    assert reaches(node.host, pod_ip)
    with serving(sandbox, pod_ip):
        seen = source_address(sandbox, SERVICE, 80, timeout_s=20.0 if hairpin else NO_ANSWER_S)
    assert seen == ("10.24.0.1" if hairpin else "")


MASQUERADED = [
    pytest.param({"ipMasqBackend": "iptables"}, {WORLD}, id="iptables"),
    pytest.param({"ipMasqBackend": "nftables"}, {WORLD}, id="nftables", marks=pytest.mark.needs("nft_nat")),
    pytest.param({"nonMasqueradeCIDRs": ["192.168.0.0/16", "203.0.113.0/24"]}, {OTHER_NODE}, id="configured"),
    pytest.param({"nonMasqueradeCIDRs": ["0.0.0.0/0"]}, set(), id="disabled"),
]


@pytest.mark.parametrize(("keys", "masqueraded"), MASQUERADED)
def test_packets_that_leave_the_cluster_are_masqueraded(node, router, sandbox, keys, masqueraded):
    """Packets outside 10.0.0.0/8, or nonMasqueradeCIDRs (--non-masquerade-cidr), have the node's address."""
    pod_ip = address(node.having(**keys).add(sandbox))
    assert reaches(sandbox, OTHER_NODE)
    for ip in (WORLD, OTHER_NODE):
        with serving(router, ip):
            assert source_address(sandbox, ip) == (NODE if ip in masqueraded else pod_ip)


def test_another_pod_cidr_replaces_the_bridges_address(node, new_sandbox):
    """After the node got another pod CIDR, the bridge has only the first address of the new one."""
    node.add(new_sandbox())
    ipam = {**node.config["ipam"], "ranges": [[{"subnet": "10.24.9.0/24"}]]}
    pod = new_sandbox()
    node.having(ipam=ipam).add(pod)
    assert [item["local"] for item in links(node.host)["cbr0"]["addresses"]] == ["10.24.9.1"]
    assert reaches(pod, OTHER_NODE)
