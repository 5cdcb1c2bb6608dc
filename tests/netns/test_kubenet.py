"""conf/40-kubenet.conflist does the same on a node as kubenet, which Kubernetes 1.24 removed.

The node's uplink is connected to a router with a route to the pods; the source addresses that the router receives
show what was masqueraded.
"""

import json
from dataclasses import dataclass

import pytest

from tests.support import rates
from tests.support.attaching import Network, address, host_end, reaches
from tests.support.binaries import ROOT
from tests.support.invocation import run_plugin
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.netstate import links, shown
from tests.support.rates import Transfer
from tests.support.tcp import PORT, serving, source_address

NODE, OTHER_NODE, WORLD = "10.250.0.1", "10.250.0.2", "203.0.113.1"
SERVICE = "10.96.0.10"
BRIDGE_NF = "net/bridge/bridge-nf-call-iptables"


@dataclass(frozen=True)
class Node:
    """A node with the sample's network, and a router that is another node and the internet in one."""

    network: Network
    router: Namespace

    @property
    def host(self):
        """The node's network namespace."""
        return self.network.host

    def having(self, **keys):
        """Returns the node with other keys in its configuration."""
        return Node(self.network.having(**keys), self.router)


@pytest.fixture
def node(bin_dir, host, new_sandbox, store):
    """A node as a cloud creates it: an uplink of MTU 1450, a default route, a router with a route to its pod CIDR."""
    sample = NetworkList.load(ROOT / "conf" / "40-kubenet.conflist")
    plugin = next(plugin for plugin in sample.plugins if plugin["type"] == "bridge")
    ipam = {**plugin["ipam"], "dataDir": str(store)}
    router = new_sandbox()
    end = ("name", "up0", "mtu", "1450")
    host.ip("link", "add", *end, "type", "veth", "peer", *end, "netns", router.name)
    for namespace, addresses in ((host, (NODE,)), (router, (OTHER_NODE, WORLD))):
        for ip in addresses:
            namespace.ip("address", "add", f"{ip}/24", "dev", "up0")
        namespace.ip("link", "set", "up0", "up")
    host.ip("route", "add", "default", "via", OTHER_NODE)
    router.ip("route", "add", "10.24.0.0/16", "via", NODE)
    config = {**plugin, "name": sample.name, "cniVersion": sample.cni_version, "ipam": ipam}
    return Node(Network(host, config), router)


def attach(node, pod):
    """Attaches a pod and returns its address."""
    return address(node.network.add(pod))


def test_pods_and_node_are_configured_as_by_kubenet(node, new_sandbox):
    """Bridge cbr0 has the first address of the pod CIDR, each pod the next one, a hairpin port and a default route.

    All have the uplink's MTU. The node forwards, bridged frames pass iptables, and pods use their addresses at once.
    """
    for key in ("net/ipv4/ip_forward", BRIDGE_NF):
        node.host.set_sysctl(key, "0")
    for number in (2, 3, 4):
        pod = new_sandbox()
        result = node.network.add(pod)
        assert address(result) == f"10.24.0.{number}"
        port, container_veth = shown(node.host, host_end(result)), links(pod)["eth0"]
        bridge = links(node.host)["cbr0"]
        assert (port["master"], port["linkinfo"]["info_slave_data"]["hairpin"]) == ("cbr0", True)
        assert [link["mtu"] for link in (bridge, port, container_veth)] == [1450] * 3
        assert pod.ip("route", "show", "default").split() == ["default", "via", "10.24.0.1", "dev", "eth0"]
        assert pod.sysctl("net/ipv6/conf/eth0/accept_dad") == "0"
    assert [(item["local"], item["prefixlen"]) for item in bridge["addresses"]] == [("10.24.0.1", 24)]
    assert [node.host.sysctl(key) for key in ("net/ipv4/ip_forward", BRIDGE_NF)] == ["1", "1"]


@pytest.mark.parametrize(("configured", "expected"), [("auto", 1460), (1300, 1300)])
def test_mtu_without_an_uplink(node, sandbox, configured, expected):
    """Without an uplink that is up the MTU is 1460; a number instead is kubelet's --network-plugin-mtu."""
    node.host.ip("link", "set", "up0", "down")
    node.having(mtu=configured).network.add(sandbox)
    assert links(sandbox)["eth0"]["mtu"] == expected


def test_a_pods_loopback_is_up(node, sandbox):
    """Kubenet ran loopback first; runtimes set lo up themselves, or by conf/99-loopback.conflist."""
    sample = NetworkList.load(ROOT / "conf" / "99-loopback.conflist")
    sample.add(lambda *what: run_plugin(*what, host=node.host, netns=sandbox, ifname="lo"))
    node.network.add(sandbox)
    assert "UP" in links(sandbox)["lo"]["flags"]


def test_pods_and_node_reach_each_other(node, new_sandbox):
    """Two pods, and node and pod, reach each other without masquerading."""
    one, two = new_sandbox(), new_sandbox()
    first, second = attach(node, one), attach(node, two)
    with serving(two, second):
        assert source_address(one, second) == first
        assert source_address(node.host, second) == "10.24.0.1"
    with serving(node.host, NODE):
        assert source_address(one, NODE) == first


@pytest.mark.parametrize("hairpin", [True, False])
def test_pod_reaches_itself_through_a_service(node, sandbox, hairpin):
    """A pod that calls a service whose only pod it is gets an answer only in hairpin mode."""
    node = node.having(hairpinMode=hairpin)
    pod_ip = attach(node, sandbox)
    # As kube-proxy does: the first rules, with the node's address as source if the pod calls itself.
    nat = ("iptables", "-w", "-t", "nat", "-I")
    service = ("-d", SERVICE, "-p", "tcp", "--dport", "80")
    node.host.run(*nat, "PREROUTING", *service, "-j", "DNAT", "--to-destination", f"{pod_ip}:{PORT}")
    node.host.run(*nat, "POSTROUTING", "-s", pod_ip, "-d", pod_ip, "-j", "MASQUERADE")
    assert reaches(node.host, pod_ip)
    with serving(sandbox, pod_ip):
        assert source_address(sandbox, SERVICE, 80) == ("10.24.0.1" if hairpin else "")


MASQUERADED = [
    pytest.param({"ipMasqBackend": "iptables"}, {WORLD}, id="iptables"),
    pytest.param({"ipMasqBackend": "nftables"}, {WORLD}, id="nftables", marks=pytest.mark.needs("nft_nat")),
    pytest.param({"nonMasqueradeCIDRs": ["192.168.0.0/16", "203.0.113.0/24"]}, {OTHER_NODE}, id="configured"),
    pytest.param({"nonMasqueradeCIDRs": ["0.0.0.0/0"]}, set(), id="disabled"),
]


@pytest.mark.parametrize(("keys", "masqueraded"), MASQUERADED)
def test_packets_that_leave_the_cluster_are_masqueraded(node, sandbox, keys, masqueraded):
    """Packets outside 10.0.0.0/8, or nonMasqueradeCIDRs (--non-masquerade-cidr), have the node's address."""
    pod_ip = attach(node.having(**keys), sandbox)
    assert reaches(sandbox, OTHER_NODE)
    for ip in (WORLD, OTHER_NODE):
        with serving(node.router, ip):
            assert source_address(sandbox, ip) == (NODE if ip in masqueraded else pod_ip)


def attach_with_plugin(node, pod, name, capability, value):
    """Attaches a pod, runs the sample's plugin `name` with a capability's value, and returns the pod's address."""
    sample = NetworkList.load(ROOT / "conf" / "40-kubenet.conflist")
    plugin = next(plugin for plugin in sample.plugins if plugin["type"] == name)
    assert plugin["capabilities"] == {capability: True}
    config = {**plugin, "name": sample.name, "cniVersion": "1.0.0", "runtimeConfig": {capability: value}}
    result = node.network.add(pod)
    how = {"host": node.host, "netns": pod, "container_id": pod.name}
    run_plugin(name, "ADD", {**config, "prevResult": result}, **how).result()
    return address(result)


@pytest.fixture
def published(node, sandbox):
    """The address of a pod with host port 80 by the sample's portmap."""
    mapping = {"hostPort": 80, "containerPort": PORT, "protocol": "tcp"}
    return attach_with_plugin(node, sandbox, "portmap", "portMappings", [mapping])


def test_host_port_is_forwarded_to_the_pod(node, sandbox, published):
    """A hostPort is reached from other nodes with their address, from the node, and by localhost."""
    with serving(sandbox, published):
        assert source_address(node.router, NODE, 80) == OTHER_NODE
        assert source_address(node.host, NODE, 80) == NODE
        assert source_address(node.host, "127.0.0.1", 80) == "10.24.0.1"


def test_a_pod_reaches_a_host_port(node, sandbox, new_sandbox, published):
    """Other pods of the node and the pod itself reach a hostPort at the node's address."""
    other = new_sandbox()
    attach(node, other)
    with serving(sandbox, published):
        assert source_address(other, NODE, 80) == "10.24.0.1"
        assert source_address(sandbox, NODE, 80) == "10.24.0.1"


@pytest.mark.needs("ifb", "tbf")
def test_bandwidth_annotations_limit_the_pod(node, sandbox):
    """The annotations ingress-bandwidth and egress-bandwidth limit transfers between a pod and other nodes."""
    bits = 10_000_000
    bandwidth = json.loads((ROOT / "tests" / "data" / "runtimes" / "containerd.json").read_text())["bandwidth"]
    pod_ip = attach_with_plugin(node, sandbox, "bandwidth", "bandwidth", bandwidth)
    for transfer in (Transfer(node.router, sandbox, pod_ip), Transfer(sandbox, node.router, OTHER_NODE)):
        rates.assert_at_limit(transfer, bits)


def test_del_removes_the_rules(node, sandbox):
    """After DEL the node has no rules of the pod."""
    node.network.add(sandbox)
    node.network.delete(sandbox)
    assert "10.24.0.2" not in node.host.run("iptables-save") + node.host.run("nft", "list", "ruleset")


def test_another_pod_cidr_replaces_the_bridges_address(node, new_sandbox):
    """After the node got another pod CIDR, the bridge has only the first address of the new one."""
    node.network.add(new_sandbox())
    ipam = {**node.network.config["ipam"], "ranges": [[{"subnet": "10.24.9.0/24"}]]}
    pod = new_sandbox()
    node.having(ipam=ipam).network.add(pod)
    assert [item["local"] for item in links(node.host)["cbr0"]["addresses"]] == ["10.24.9.1"]
    assert reaches(pod, OTHER_NODE)


def test_the_pod_cidr_may_come_from_the_runtime(node, sandbox):
    """A runtime with the capability ipRanges can pass the node's pod CIDR with each pod."""
    ipam = {key: value for key, value in node.network.config["ipam"].items() if key != "ranges"}
    ranges = {"ipRanges": [[{"subnet": "10.24.7.0/24"}]]}
    assert attach(node.having(ipam=ipam, runtimeConfig=ranges), sandbox) == "10.24.7.2"
    assert reaches(sandbox, OTHER_NODE)


def test_a_node_with_two_pod_cidrs_gives_each_pod_two_addresses(node, sandbox):
    """With an IPv4 and an IPv6 pod CIDR, bridge and pods have an address of each."""
    ipam = node.network.config["ipam"]
    ipam = {**ipam, "ranges": [*ipam["ranges"], [{"subnet": "fd00:24::/64"}]]}
    result = node.having(ipam=ipam).network.add(sandbox)
    assert [ip["address"] for ip in result["ips"]] == ["10.24.0.2/24", "fd00:24::2/64"]
    assert [item["local"] for item in links(node.host)["cbr0"]["addresses"]] == ["10.24.0.1", "fd00:24::1"]
    assert reaches(sandbox, "fd00:24::1")


def test_promiscuous_bridge_instead_of_hairpin_mode(node, sandbox):
    """Kubelet's promiscuous-bridge: the bridge is promiscuous, and the ports are not in hairpin mode."""
    result = node.having(hairpinMode=False, promiscMode=True).network.add(sandbox)
    assert shown(node.host, "cbr0")["promiscuity"] > 0
    assert shown(node.host, host_end(result))["linkinfo"]["info_slave_data"]["hairpin"] is False
