"""`nonMasqueradeCluster`: pods keep their address to the networks that podwire-agent keeps, with each backend."""

import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from attachment.masquerade import cluster
from attachment.masquerade.cluster import ClusterNetworks
from kernel.netfilter import nft
from kernel.netns import Netns, entered
from tests.netns.conftest import LEGACY, NFT
from tests.support import binaries, outside, xtables
from tests.support.attaching import address, reaches
from tests.support.namespaces import delete_and_wait
from tests.support.netlist import NetworkList
from tests.support.outside import EXTERNAL, EXTERNAL6, NODE, NODE6
from tests.support.repair_node import Node
from tests.support.sockets import open_socket
from tests.support.tcp import serving, source_address

BACKENDS = [
    pytest.param("nftables", marks=pytest.mark.needs("nft_nat")),
    pytest.param("iptables nft", marks=NFT.marks),
    pytest.param("iptables legacy", marks=LEGACY.marks),
]
OTHER_NODE = tuple(map(ip_network, ("10.44.1.0/24", "fd00:44:1::/64")))
POD, POD6 = "10.44.1.5", "fd00:44:1::5"  # a pod of the other node
SENDER = """
import socket, sys, time
while True:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", (sys.argv[1], 4242))
    time.sleep(0.0002)
"""
CHANGES, PACKETS = 40, 10  # packets that arrive after each change


@pytest.fixture(params=BACKENDS)
def backend(request):
    """The backend, with the variant of iptables."""
    return request.param


@pytest.fixture
def net(dual_network, backend, tmp_path, monkeypatch):
    """A masqueraded network of both families, whose plugins and agent use one backend."""
    name, _, variant = backend.partition(" ")
    network = dual_network.having(ipMasq=True, ipMasqBackend=name, nonMasqueradeCluster=True)
    if variant:
        network = replace(network, env=xtables.path(xtables.variant(tmp_path / variant, variant)))
        monkeypatch.setenv("PATH", network.env["PATH"])
    return network


@pytest.fixture
def agent(net, backend):
    """The agent's part, which creates the objects of the backend."""
    with agent_of(net, (backend.partition(" ")[0],)) as networks:
        yield networks


@contextlib.contextmanager
def agent_of(net, create):
    """Enters the network's host, and yields the agent's part there."""
    with Netns(net.host.path) as namespace, entered(namespace), ClusterNetworks(create) as networks:
        yield networks


@pytest.fixture
def other_node(net, new_sandbox):
    """A node on the uplink, which has a pod's address and routes to this node's pods."""
    namespace = new_sandbox()
    outside.connect(net.host, namespace, f"{POD}/32", f"{POD6}/128")
    return namespace


def sources(pod, other_node, destinations):
    """Returns the sources of connections from a pod to addresses of the other node."""
    seen = []
    for destination in destinations:
        assert reaches(pod, destination)  # the gateway's IPv6 address is tentative at first
        with serving(other_node, destination):
            seen.append(source_address(pod, destination))
    return seen


def places(net, backend):
    """Returns the networks of each set and chain, as the backend's tool lists them."""
    if backend == "nftables":
        listed = json.loads(net.host.run("nft", "-j", "list", "sets"))["nftables"]
        sets = {item["set"]["name"]: item["set"].get("elem", []) for item in listed if "set" in item}
        return {
            name: sorted("{addr}/{len}".format(**element["prefix"]) for element in elements)
            for name, elements in sets.items()
        }
    return {
        tool: sorted(line.split()[3] for line in lines if line.startswith("-A PODWIRE-CLUSTER "))
        for tool, lines in xtables.saved(net.host, tools_of(net)).items()
        if ":PODWIRE-CLUSTER" in lines
    }


def tools_of(net):
    """Returns the directory of the programs of iptables."""
    return Path(net.env["PATH"].partition(":")[0])


def rules(net, backend):
    """Returns the rules of the pods that refer to the cluster's networks."""
    if backend == "nftables":
        lines = net.host.run("nft", "list", "table", "inet", "cni_plugins_masquerade").splitlines()
        return [line.strip() for line in lines if "daddr @podwire_cluster" in line]
    saved = xtables.saved(net.host, tools_of(net)).values()
    return [line for lines in saved for line in lines if line.endswith("-j PODWIRE-CLUSTER")]


def flush(net, backend):
    """Deletes all content of the sets or chains, and all rules that refer to them, as another program may."""
    if backend == "nftables":
        net.host.run("nft", "delete", "table", "inet", "cni_plugins_masquerade")
    else:
        for tool in xtables.TOOLS:
            for option in ("-F", "-X"):
                net.host.run(f"{tools_of(net)}/{tool}", "-t", "nat", option)


def test_pods_keep_their_address_within_the_cluster(net, backend, agent, sandbox, other_node):
    """A pod keeps its address to the agent's networks only, at once after each change, in both families."""
    result = net.add(sandbox)
    pod_ips = [address(result, number) for number in (0, 1)]
    destinations = (POD, POD6, EXTERNAL, EXTERNAL6)
    masqueraded = [NODE, NODE6, NODE, NODE6]
    assert sources(sandbox, other_node, destinations) == masqueraded  # without the agent the sets are empty
    agent.set_networks(OTHER_NODE)
    assert sources(sandbox, other_node, destinations) == [*pod_ips, NODE, NODE6]
    agent.set_networks([*OTHER_NODE, ip_network(f"{EXTERNAL}/32")])
    assert sources(sandbox, other_node, destinations) == [*pod_ips, pod_ips[0], NODE6]
    net.check(sandbox, result)
    agent.set_networks([])
    assert sources(sandbox, other_node, destinations) == masqueraded


def test_objects_of_add_and_del(net, backend, agent, new_sandbox):
    """ADD creates empty sets or chains and a rule for each address; DEL deletes the pod's rules only."""
    one, two = new_sandbox(), new_sandbox()
    first = net.add(one)
    assert list(places(net, backend).values()) == [[], []]
    assert len(rules(net, backend)) == 2
    agent.set_networks(OTHER_NODE)
    filled = places(net, backend)
    assert list(filled.values()) == [["10.44.1.0/24"], ["fd00:44:1::/64"]]
    second = net.add(two)
    assert len(rules(net, backend)) == 4
    net.delete(one, first)
    net.check(two, second)
    assert len(rules(net, backend)) == 2
    net.delete(two, second)
    assert (rules(net, backend), places(net, backend)) == ([], filled)


def test_check_requires_the_rule_and_add_restores_it(net, backend, sandbox):
    """CHECK fails for a pod without the rule, since it was attached without the key or the rule was deleted."""
    result = net.having(nonMasqueradeCluster=None).add(sandbox)
    without = net.run("CHECK", sandbox, prev_result=result).error()
    assert without["code"] == 999
    assert "cluster" in without["msg"].lower()
    net.having(nonMasqueradeCluster=None).delete(sandbox, result)
    result = net.add(sandbox)
    net.check(sandbox, result)
    flush(net, backend)
    assert "is missing" in net.run("CHECK", sandbox, prev_result=result).error()["msg"]


def test_gc_deletes_stale_rules_only(net, backend, agent, new_sandbox):
    """GC deletes the rules of pods that are not listed; sets and chains stay as the agent has filled them."""
    stale, running = new_sandbox(), new_sandbox()
    net.add(stale)
    delete_and_wait(stale, net.host)
    result = net.add(running)
    agent.set_networks(OTHER_NODE)
    filled = places(net, backend)
    net.gc(running)
    net.check(running, result)
    assert (len(rules(net, backend)), places(net, backend)) == (2, filled)


def test_a_flush_is_repaired(net, backend, agent, sandbox):
    """After another program deleted everything, a repeated ADD and the agent's next comparison restore all of it."""
    net.add(sandbox)
    agent.set_networks(OTHER_NODE)
    filled = places(net, backend)
    flush(net, backend)
    assert agent.repair() > 0
    assert places(net, backend) == filled
    net.delete(sandbox)
    result = net.add(sandbox)
    net.check(sandbox, result)
    assert places(net, backend) == filled
    assert agent.repair() == 0


def test_podwire_repair_restores_the_pods_rules(net, backend, agent, sandbox, tmp_path):
    """After a flush `podwire repair` creates the pod's rules and empty sets or chains, which the agent fills."""
    plugin = {key: value for key, value in net.config.items() if key not in ("name", "cniVersion")}
    node = Node(net.host, NetworkList("net", "1.0.0", (plugin,)), tmp_path / "cni", net.env or {})
    result = node.add(sandbox)
    agent.set_networks(OTHER_NODE)
    filled, created = places(net, backend), rules(net, backend)
    flush(net, backend)
    assert node.repair() == {sandbox.name: "repaired"}
    assert (rules(net, backend), list(places(net, backend).values())) == (created, [[], []])
    node.check(sandbox, result)
    assert agent.repair() == 2
    assert places(net, backend) == filled


def test_later_objects_are_noticed(net, backend, sandbox):
    """An agent that creates nothing fills the sets or chains of the first ADD at its next comparison."""
    with agent_of(net, ()) as agent:
        assert agent.set_networks(OTHER_NODE) == 0
        assert agent.repair() == 0
        assert places(net, backend) == {}
        net.add(sandbox)
        assert agent.repair() == 2
        assert list(places(net, backend).values()) == [["10.44.1.0/24"], ["fd00:44:1::/64"]]
        assert (agent.repair(), agent.set_networks(OTHER_NODE)) == (0, 0)


def test_foreign_content_is_removed_and_others_stay(net, backend, agent, sandbox):
    """A comparison deletes what others put into the sets or chains, and leaves other rules of the tables alone."""
    net.add(sandbox)
    agent.set_networks(OTHER_NODE)
    filled = places(net, backend)
    if backend == "nftables":
        net.host.run("nft", "add element inet cni_plugins_masquerade podwire_cluster_4 { 10.9.0.0-10.9.0.8 }")
        net.host.run("nft", "add chain inet cni_plugins_masquerade operator")
        foreign = "nft list chain inet cni_plugins_masquerade operator"
    else:
        content = ("-A PODWIRE-CLUSTER -d 10.9.0.0/24 -j ACCEPT", "-A PODWIRE-CLUSTER -p tcp -j RETURN")
        xtables.load(net.host, tools_of(net), *content, "-A PREROUTING -s 192.0.2.1 -j ACCEPT")
        foreign = f"{tools_of(net)}/iptables -t nat -S PREROUTING"
    before = net.host.run(*foreign.split())
    assert agent.repair() == (1 if backend == "nftables" else 2)
    assert places(net, backend) == filled
    assert net.host.run(*foreign.split()) == before


def test_a_difference_that_does_not_apply(net, backend, agent, sandbox):
    """If another program has changed the content, a change of the networks compares everything and succeeds."""
    net.add(sandbox)
    agent.set_networks(OTHER_NODE)
    with agent_of(net, ()) as other:
        other.set_networks([ip_network("10.44.0.0/16")])
    agent.set_networks([ip_network("10.44.1.0/25")])
    agent.repair()
    first, second = places(net, backend).values()
    assert (first, second) == (["10.44.1.0/25"], [])


def test_networks_are_collapsed(net, backend, agent, sandbox):
    """Overlapping and adjacent networks become the fewest ones, also when a node joins or leaves."""
    net.add(sandbox)
    halves = [ip_network("10.44.0.0/25"), ip_network("10.44.0.128/25")]
    agent.set_networks([*halves, ip_network("10.44.0.7/32"), ip_network("10.44.1.0/24"), ip_network("10.44.2.0/24")])
    assert next(iter(places(net, backend).values())) == ["10.44.0.0/23", "10.44.2.0/24"]
    assert agent.set_networks(halves[:1]) == 3
    assert next(iter(places(net, backend).values())) == ["10.44.0.0/25"]
    assert agent.set_networks(map(ip_network, ("0.0.0.0/1", "128.0.0.0/1", "255.255.255.255/32"))) == 2
    with Netns(net.host.path) as namespace, entered(namespace):
        if backend != "iptables legacy":
            assert ip_network("0.0.0.0/0") in next(iter(cluster.list_networks().values()))


def test_no_packet_sees_a_change_half_done(net, agent, sandbox, other_node):
    """While the agent replaces a network by a larger one and back, every packet to both keeps the pod's address."""
    result = net.add(sandbox)
    agent.set_networks(OTHER_NODE)
    assert reaches(sandbox, POD)
    seen = set()
    with open_socket(other_node, "udp", POD, 4242) as receiver:
        receiver.settimeout(30)
        process = subprocess.Popen(["nsenter", f"--net={sandbox.path}", "--", sys.executable, "-c", SENDER, POD])
        try:
            for number in range(CHANGES):
                agent.set_networks([ip_network("10.44.0.0/16")] if number % 2 == 0 else OTHER_NODE)
                seen |= {receiver.recvfrom(9)[1][0] for _ in range(PACKETS)}
        finally:
            process.kill()
            process.wait()
    assert seen == {address(result)}


def test_removal_keeps_what_rules_refer_to(net, backend, agent, sandbox):
    """Removal deletes sets and chains only if no pod's rule refers to them; the others stay filled and are named."""
    net.add(sandbox)
    agent.set_networks(OTHER_NODE)
    filled = places(net, backend)
    remaining = cluster.remove()
    assert len(remaining) == 2
    assert places(net, backend) == filled
    net.delete(sandbox)
    assert cluster.remove() == []
    assert places(net, backend) == {}
    assert cluster.remove() == []


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("backend", BACKENDS[1:], indirect=True)
def test_the_reference_plugin_deletes_the_pods_rules(net, backend, agent, sandbox):
    """DEL of the reference plugin succeeds and deletes the pod's rules; the cluster's chains stay."""
    result = net.add(sandbox)
    agent.set_networks(OTHER_NODE)
    filled = places(net, backend)
    replace(net, bin_dir=binaries.REFERENCE, path=str(binaries.REFERENCE)).delete(sandbox, result)
    assert (rules(net, backend), places(net, backend)) == ([], filled)


@pytest.mark.needs("nft_nat")
def test_ptp_has_the_same_key(routed, sandbox):
    """A network of ptp has the same key, and DEL leaves the sets."""
    net = routed.having(ipMasq=True, ipMasqBackend="nftables", nonMasqueradeCluster=True)
    result = net.add(sandbox)
    assert len(rules(net, "nftables")) == 2
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert rules(net, "nftables") == []
    assert set(places(net, "nftables")) == {"podwire_cluster_4", "podwire_cluster_6"}


@pytest.mark.needs("nft_nat")
def test_a_cluster_of_5000_nodes(host, monkeypatch):
    """One transaction sets 20,000 networks, and a change of one node changes that node's elements only."""
    networks = [ip_network(f"10.{number // 128}.{number % 128 * 2}.0/24") for number in range(5000)]
    networks += [ip_network(f"172.16.{number // 100}.{number % 100 * 2}/32") for number in range(5000)]
    networks += [ip_network(f"fd00:{number * 2:x}::/64") for number in range(5000)]
    networks += [ip_network(f"fd01::{number * 2:x}/128") for number in range(5000)]
    sent, change = [], nft.change

    def recording(socket, *requests, **how):
        sent.append(requests)
        change(socket, *requests, **how)

    monkeypatch.setattr(nft, "change", recording)
    with Netns(host.path) as namespace, entered(namespace), ClusterNetworks() as agent:
        assert agent.set_networks(networks) == 20_000
        assert len(sent) == 1
        sent.clear()
        assert agent.set_networks(networks[1:]) == 1
        assert agent.set_networks(networks) == 1
        assert [len(requests) for requests in sent] == [1, 1]
        assert agent.repair() == 0
        assert frozenset(networks) == frozenset().union(*cluster.list_networks().values())
