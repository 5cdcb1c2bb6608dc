"""Hostile pods: changes by root in a sandbox neither block DEL, CHECK and GC nor mislead them.

After DEL the host has the same state as before ADD, whatever the pod has done.
"""

import time

import pytest

from tests.support import bandwidth_network, kernels, netstate
from tests.support.attaching import Network
from tests.support.bandwidth_network import BOTH, BandwidthNetwork
from tests.support.invocation import run_plugin
from tests.support.processes import output
from tests.support.publishing import PublishingNetwork

LOOPBACK = {"cniVersion": "1.1.0", "name": "net", "type": "loopback"}
BOUND_S = 60.0  # a runtime waits for minutes; normal pods take 5 ms, the largest pods seconds
BACKENDS = {"iptables": "iptables_nft_nat", "nftables": "nft_nat"}  # and the kernel feature that each needs

# Commands of `ip` that root in the pod runs between ADD and DEL; MAC and ADDRESS are those of eth0.
ATTACKS = {
    "another name": ["link set eth0 down", "link set eth0 name mine"],
    "another name and an alternative one": [
        "link set eth0 down",
        "link set eth0 name mine",
        "link property add dev lo altname eth0",
    ],
    "lo in its place": ["link set eth0 down", "link set eth0 name mine", "link set lo down", "link set lo name eth0"],
    "no lo": ["link set lo down", "link set lo name eth7"],
    "another veth in its place": [
        "link set eth0 down",
        "link set eth0 name mine",
        "link add eth0 address MAC type veth peer name eth1",
        "addr add ADDRESS dev eth0",
        "link set eth0 up",
    ],
    "a bridge in its place": ["link set eth0 down", "link set eth0 name mine", "link add eth0 type bridge"],
    "moved away": ["link set eth0 netns OTHER"],
    "moved away and replaced": ["link set eth0 netns OTHER", "link add eth0 type veth peer name eth1"],
    "moved away, and its twin there": [
        "link set eth0 netns OTHER",
        "link add eth0 address MAC type veth peer name eth0x netns OTHER",
    ],
    "deleted": ["link delete eth0"],
    "another MAC": ["link set eth0 address 02:00:00:00:00:99"],
    "its address elsewhere": ["addr add ADDRESS dev lo"],
    "its address elsewhere only": ["addr flush dev eth0", "addr add ADDRESS dev lo"],
    "the gateway's address": ["addr add 10.22.0.1/16 dev eth0", "addr add 10.22.0.1/32 dev lo"],
    "under a bridge": ["link add br0 type bridge", "link set eth0 master br0"],
    "a strange name": ["link add \x1b[2J type bridge", "link add -x type bridge", "link add $(id)`id` type bridge"],
}


class Node:
    """A network with masquerading, limits and a host port."""

    def __init__(self, host, store, backend):
        ipam = {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]], "dataDir": str(store)}
        config = {"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isDefaultGateway": True}
        masquerade = {"ipMasq": True, "ipMasqBackend": backend}
        spoof = {"macspoofchk": True} if kernels.has("nft_bridge") else {}
        self.bridge = Network(host, {**config, **masquerade, **spoof, "ipam": ipam})
        self.ports = PublishingNetwork(self.bridge, {"backend": backend})
        self.limits = BandwidthNetwork(self.bridge).with_runtime_limits(**BOTH)

    def add(self, pod):
        return self.limits.limit(pod, self.ports.add(pod, "8080:80"))

    def run_all(self, command, pod, result):
        """Runs a verb of each plugin as a runtime does, each in bounded time; returns the outcomes by plugin."""
        runs = {
            "bandwidth": lambda: self.limits.bandwidth(command, pod, result),
            "portmap": lambda: self.ports.portmap(command, pod, ("8080:80",), result),
            "bridge": lambda: self.bridge.run(command, pod, prev_result=result),
            "loopback": lambda: run_plugin("loopback", command, LOOPBACK, netns=pod, host=self.bridge.host),
        }
        return {name: run_in_time(run) for name, run in runs.items()}

    def state(self):
        return (
            netstate.state(self.bridge.host, netfilter=True),
            bandwidth_network.state(self.bridge.host),
            self.bridge.leases(),
        )


def run_in_time(run):
    start = time.monotonic()
    outcome = run()
    assert time.monotonic() - start < BOUND_S
    if outcome.status:
        outcome.error()
    for line in outcome.stderr.splitlines():
        assert line.isprintable(), repr(line)
    return outcome


@pytest.fixture
def backends(nightly, request):
    """Both backends; in `make test-all` one, alternating from test to test."""
    available = [name for name, needed in BACKENDS.items() if kernels.has(needed)]
    return available if nightly else [available[request.session.items.index(request.node) % len(available)]]


def create_used_node(host, store, backend, new_sandbox):
    """Returns a node that has had a pod, so that all shared objects exist."""
    node = Node(host, store, backend)
    first = new_sandbox()
    result = node.add(first)
    for outcome in node.run_all("DEL", first, result).values():
        outcome.assert_silent()
    return node


@pytest.mark.needs("tbf", "ifb")
@pytest.mark.parametrize("attack", ATTACKS)
def test_attack(bin_dir, host, store, new_sandbox, backends, attack):
    """DEL succeeds in time and restores the host, although sandbox and prevResult differ; CHECK may fail."""
    for backend in backends:
        node = create_used_node(host, store, backend, new_sandbox)
        pod, other, neighbour = new_sandbox(), new_sandbox(), new_sandbox()
        neighbour_result = node.add(neighbour)
        before = node.state()
        result = node.add(pod)
        words = {"MAC": result["interfaces"][2]["mac"], "ADDRESS": result["ips"][0]["address"], "OTHER": other.name}
        for line in ATTACKS[attack]:
            pod.ip(*[words.get(word, word) for word in line.split(" ")])
        node.run_all("CHECK", pod, result)
        for outcome in node.run_all("DEL", pod, result).values():
            outcome.assert_silent()
        assert node.state() == before
        for plugin, outcome in node.run_all("CHECK", neighbour, neighbour_result).items():
            assert outcome.status == (plugin == "loopback")  # no plugin has configured it
        node.run_all("DEL", neighbour, neighbour_result)


@pytest.mark.needs("tbf", "ifb")
def test_pod_with_thousands_of_objects(bin_dir, host, store, new_sandbox, backends, nightly):
    """Thousands of addresses, routes, links, tables and rules in a pod delay no verb beyond seconds."""
    for backend in backends:
        assert_fast(create_used_node(host, store, backend, new_sandbox), new_sandbox, 10_000 if nightly else 3_000)


def assert_fast(node, new_sandbox, number):
    pod = new_sandbox()
    before = node.state()
    result = node.add(pod)
    addresses = [f"172.{16 + i // 65536}.{i // 256 % 256}.{i % 256}" for i in range(number)]
    lines = [f"addr add {ip}/32 dev lo" for ip in addresses]
    lines += [f"route add {ip}/32 via 10.22.0.1 dev eth0 table {i % 250 + 1}" for i, ip in enumerate(addresses)]
    lines += [f"link add b{i} type bridge" for i in range(number // 20)]
    lines += [f"neigh add 10.22.{i // 256 % 256}.{i % 256} lladdr 02:00:00:00:00:01 dev eth0" for i in range(500, 1500)]
    output("ip", "-n", pod.name, "-batch", "-", stdin="\n".join(lines) + "\n")
    pod.run("nft", "add", "table", "ip", "nat")
    pod.run("nft", "add", "chain", "ip", "nat", "CNI-HOSTPORT-DNAT")
    for outcome in node.run_all("CHECK", pod, result).values():
        if outcome.status:
            assert outcome.error()["code"] == 999
    keys = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": [{"containerID": pod.name, "ifname": "eth0"}]}
    run_in_time(lambda: node.bridge.having(**keys).run("GC")).assert_silent()
    for outcome in node.run_all("DEL", pod, result).values():
        outcome.assert_silent()
    assert node.state() == before
