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


def test_the_bridge_is_cbr0_with_the_first_address_of_the_pod_cidr(node, sandbox):
    """Pods are attached to the bridge cbr0, which has the first address of the node's pod CIDR."""
    result = node.network.add(sandbox)
    bridge = links(node.host)["cbr0"]
    assert [(item["local"], item["prefixlen"]) for item in bridge["addresses"]] == [("10.24.0.1", 24)]
    assert links(node.host)[host_end(result)]["master"] == "cbr0"


def test_pods_get_consecutive_addresses(node, new_sandbox):
    """The first pod has the second address of the pod CIDR, the next pod the next one."""
    assert [attach(node, new_sandbox()) for _ in range(3)] == ["10.24.0.2", "10.24.0.3", "10.24.0.4"]


def test_every_host_end_is_in_hairpin_mode(node, new_sandbox):
    """Each pod's port is in hairpin mode (kubelet's hairpin-veth)."""
    for _ in range(2):
        port = shown(node.host, host_end(node.network.add(new_sandbox())))
        assert port["linkinfo"]["info_slave_data"]["hairpin"] is True


def test_mtu_is_the_lowest_of_the_nodes_interfaces(node, sandbox):
    """Bridge and both veth ends have the uplink's MTU."""
    result = node.network.add(sandbox)
    host_links = links(node.host)
    assert [host_links["cbr0"]["mtu"], host_links[host_end(result)]["mtu"], links(sandbox)["eth0"]["mtu"]] == [1450] * 3


def test_default_mtu_is_1460(node, sandbox):
    """Without an uplink that is up the MTU is 1460."""
    node.host.ip("link", "set", "up0", "down")
    node.network.add(sandbox)
    assert links(sandbox)["eth0"]["mtu"] == 1460


def test_mtu_can_be_configured(node, sandbox):
    """A number instead of "auto" is kubelet's --network-plugin-mtu."""
    node.having(mtu=1300).network.add(sandbox)
    assert links(sandbox)["eth0"]["mtu"] == 1300


def test_default_route_is_via_cbr0(node, sandbox):
    """A pod has a default route via the bridge's address."""
    node.network.add(sandbox)
    assert sandbox.ip("route", "show", "default").split() == ["default", "via", "10.24.0.1", "dev", "eth0"]


def test_a_pods_loopback_is_up(node, sandbox):
    """Kubenet ran loopback first; runtimes set lo up themselves, or by conf/99-loopback.conflist."""
    sample = NetworkList.load(ROOT / "conf" / "99-loopback.conflist")
    sample.add(lambda *what: run_plugin(*what, host=node.host, netns=sandbox, ifname="lo"))
    node.network.add(sandbox)
    assert "UP" in links(sandbox)["lo"]["flags"]


def test_forwarding_is_on(node, sandbox):
    """The node forwards IPv4."""
    node.host.set_sysctl("net/ipv4/ip_forward", "0")
    node.network.add(sandbox)
    assert node.host.sysctl("net/ipv4/ip_forward") == "1"


def test_bridged_frames_pass_iptables(node, sandbox):
    """The setting bridge-nf-call-iptables is on, as kube-proxy needs it."""
    node.host.set_sysctl(BRIDGE_NF, "0")
    node.network.add(sandbox)
    assert node.host.sysctl(BRIDGE_NF) == "1"


def test_a_pods_addresses_are_used_at_once(node, sandbox):
    """Pods do not run duplicate address detection."""
    node.network.add(sandbox)
    assert sandbox.sysctl("net/ipv6/conf/eth0/accept_dad") == "0"


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


@pytest.mark.parametrize("backend", ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))])
def test_packets_that_leave_the_cluster_are_masqueraded(node, sandbox, backend):
    """Packets to addresses outside 10.0.0.0/8 have the node's address, others the pod's."""
    node = node.having(ipMasqBackend=backend)
    pod_ip = attach(node, sandbox)
    assert reaches(sandbox, OTHER_NODE)
    for ip, source in ((WORLD, NODE), (OTHER_NODE, pod_ip)):
        with serving(node.router, ip):
            assert source_address(sandbox, ip) == source


def test_configured_networks_are_not_masqueraded(node, sandbox):
    """Only the networks of nonMasqueradeCIDRs are exempt (kubelet's --non-masquerade-cidr)."""
    pod_ip = attach(node.having(nonMasqueradeCIDRs=["192.168.0.0/16", "203.0.113.0/24"]), sandbox)
    assert reaches(sandbox, OTHER_NODE)
    for ip, source in ((WORLD, pod_ip), (OTHER_NODE, NODE)):
        with serving(node.router, ip):
            assert source_address(sandbox, ip) == source


def test_masquerading_can_be_disabled_for_all_networks(node, sandbox):
    """With 0.0.0.0/0 in nonMasqueradeCIDRs nothing is masqueraded."""
    pod_ip = attach(node.having(nonMasqueradeCIDRs=["0.0.0.0/0"]), sandbox)
    with serving(node.router, WORLD):
        assert source_address(sandbox, WORLD) == pod_ip


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
