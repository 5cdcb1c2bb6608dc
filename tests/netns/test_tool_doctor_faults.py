"""`podwire doctor` on sick nodes: a fault is made, it is found, its cure is done as told, and it is gone."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

import pytest

from podwire.commands import COMMANDS
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.invocation import run_plugin
from tests.support.namespaces import Namespace, delete_and_wait
from tests.support.netlist import NetworkList
from tests.support.processes import PATH

MAPPING = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
OUT = "ip link add out0 mtu {mtu} type veth peer out1; ip link set out0 up; ip link set out1 up;"
OUT += "ip address add 192.0.2.1/24 dev out0; ip route add default via 192.0.2.2"


class Fault(NamedTuple):
    """What is done to a healthy node with a living pod; {veth} is the pod's end on the host."""

    name: str
    shell: str
    sample: str = "60-podman.conflist"
    needs: tuple[str, ...] = ()


CURABLE = {
    "forwarding": Fault("forwarding-off", "sysctl -qw net/ipv4/ip_forward=0"),
    "forwarding of IPv6": Fault(
        "forwarding-off", "sysctl -qw net/ipv6/conf/all/forwarding=0", "20-dual-stack.conflist", ("ifb", "tbf")
    ),
    "forwarding of the bridge": Fault("interface-forwarding-off", "sysctl -qw net/ipv4/conf/cni4/forwarding=0"),
    "IPv6 off": Fault(
        "ipv6-off", "sysctl -qw net/ipv6/conf/cni1/disable_ipv6=1", "20-dual-stack.conflist", ("ifb", "tbf")
    ),
    "bridged frames": Fault(
        "bridged-frames-pass-by",
        "iptables -t nat -N KUBE-SERVICES; sysctl -qw net/bridge/bridge-nf-call-iptables=0",
        needs=("br_netfilter",),
    ),
    "bridge down": Fault("bridge-down", "ip link set cni4 down"),
    "gateway": Fault("gateway-missing", "ip address flush dev cni4"),
    "port": Fault("port-lost", "ip link set {veth} nomaster"),
    "port down": Fault("pod-interface-down", "ip link set {veth} down"),
    "the pod's address on the host": Fault("address-twice", "ip address add 10.26.0.2/32 dev lo"),
    "policy of iptables": Fault("forward-drop", "iptables -P FORWARD DROP", "10-podwire.conflist", ("ifb", "tbf")),
    "policy of nftables": Fault(
        "forward-drop",
        "nft 'add table inet f; add chain inet f c {{ type filter hook forward priority 0; policy drop; }}'",
        needs=("nft_inet",),
    ),
    "policy of nftables, routed pairs": Fault(
        "forward-drop",
        "nft 'add table ip f; add chain ip f c {{ type filter hook forward priority 0; policy drop; }}'",
        "70-ptp.conflist",
        needs=("nft_inet", "ifb", "tbf"),
    ),
    "policy of Docker": Fault(
        "forward-drop",
        "iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER; iptables -P FORWARD DROP",
        "10-podwire.conflist",
        ("ifb", "tbf"),
    ),
    "policy of iptables-legacy": Fault(
        "forward-drop", "iptables-legacy -P FORWARD DROP", "10-podwire.conflist", ("iptables_legacy_nat", "ifb", "tbf")
    ),
}

COMMANDS_THERE = {command.name for command in COMMANDS}
CURABLE_BY_NAME = {one.name for one in CURABLE.values()}


@pytest.fixture
def node(host, tmp_path) -> DoctorNode:
    return DoctorNode(host, tmp_path)


@pytest.fixture
def network(node) -> NetworkList:
    return node.add_sample("60-podman.conflist").asking(portMappings=[MAPPING])


def marked() -> list[object]:
    return [pytest.param(one, marks=pytest.mark.needs(*one.needs), id=name) for name, one in CURABLE.items()]


@pytest.mark.parametrize("fault", marked())
def test_the_cure_that_is_told_cures(node, sandbox, fault):
    """What is wrong is found, the command that is told is run as it stands, and then it is not found any more."""
    result = node.attach(node.add_sample(fault.sample), sandbox)
    assert list_problems(node.list_findings()) == []
    veth = next(own["name"] for own in result["interfaces"] if own["name"].startswith("veth"))
    node.host.run("sh", "-ec", fault.shell.format(veth=veth))
    node.run_fix(node.find(fault.name))
    rest = list_problems(node.list_findings())
    assert not any(one["name"] == fault.name for one in rest), rest
    for one in rest:  # what had been hidden by the first, with cures of its own
        if one["name"] in CURABLE_BY_NAME:
            node.run_fix(one)
    assert {one["name"] for one in list_problems(node.list_findings())} <= {"iptables-mixture"}


def test_forwarding_that_no_pod_needs_is_no_fault(node):
    """Without living pods nothing is told of forwarding, which the first ADD switches on."""
    node.add_sample("60-podman.conflist")
    node.host.set_sysctl("net/ipv4/ip_forward", "0")
    assert list_problems(node.list_findings()) == []


@pytest.mark.needs("nft_inet")
def test_rules_that_let_pods_through_are_not_called_wrong(node, sandbox):
    """A chain that drops, but speaks of the bridge, is a note and no more."""
    node.attach(node.add_sample("30-layer-2.conflist"), sandbox)
    node.add_sample("60-podman.conflist")
    rules = "add table inet f; add chain inet f c { type filter hook forward priority 0; policy drop; };"
    node.host.run("nft", rules + 'add rule inet f c iifname "cni4" accept')
    assert node.find("forward-policy")["severity"] == "note"
    assert list_problems(node.list_findings()) == []


def test_the_bridge_is_gone(node, network, sandbox):
    """A bridge that was deleted under living pods is told once, and no CHECK besides."""
    node.attach(network, sandbox)
    node.host.ip("link", "delete", "cni4")
    names = [one["name"] for one in list_problems(node.list_findings())]
    assert names.count("bridge-missing") == 1
    assert "check-failed" not in names


def test_a_pod_that_lost_its_route(node, network, sandbox):
    """What a plugin's CHECK says of a living pod is told, with what it says to do."""
    node.attach(network, sandbox)
    sandbox.ip("route", "flush", "default")
    found = node.find("check-failed")
    assert "route 0.0.0.0/0" in found["text"]
    assert "remove the container and create it again" in found["cure"]


@pytest.mark.parametrize("what", ["masquerading", "host ports", "firewall"])
def test_rules_that_were_flushed(node, network, sandbox, what):
    """Masquerading, host ports and the firewall's rules that are missing are told, and repair is the cure."""
    node.attach(network, sandbox)
    chain = {
        "masquerading": "-t nat -F POSTROUTING",
        "host ports": "-t nat -F PREROUTING",
        "firewall": "-F CNI-FORWARD",
    }
    node.host.run("sh", "-ec", f"iptables {chain[what]}")
    found = node.find("rules-missing")
    assert found["cure"] == "podwire repair podwire-podman"
    assert sandbox.name in found["subject"]
    if "repair" in COMMANDS_THERE:
        node.run_fix(found)
        assert list_problems(node.list_findings()) == []


@pytest.mark.needs("iptables_nft_nat")
def test_of_many_attachments_with_one_fault_a_few_are_told(node, network, new_sandbox):
    """Of eight pods without rules five are told, and the rest is counted."""
    for number in range(8):
        node.attach(network.asking(portMappings=[{**MAPPING, "hostPort": 8080 + number}]), new_sandbox())
    node.host.run("nft", "flush ruleset")
    found = [one for one in node.list_findings() if one["name"] == "rules-missing"]
    assert len(found) == 6
    assert found[-1]["text"].startswith("3 more")


def test_a_host_port_behind_anothers(node, network, new_sandbox):
    """A living pod whose host port another's rule takes is told as shadowed."""
    for _ in range(2):
        node.attach(network, new_sandbox())
    assert "8080" in node.find("host-port-shadowed")["text"]


def test_a_view_without_the_pods_namespaces(node, network, sandbox):
    """Where /run/netns is not the runtime's, doctor says so, and does not recommend gc."""
    node.attach(network, sandbox)
    found = list_problems(node.list_findings(before="mount -t tmpfs podwire /run/netns"))
    assert [one["name"] for one in found] == ["namespaces-not-seen"], found


def test_what_is_left_of_the_dead(node, network, new_sandbox):
    """A pod that vanished without DEL is told by its cache, its rules and its address, and GC takes it all away."""
    dead, living = new_sandbox(), new_sandbox()
    node.attach(network, dead)
    node.attach(network.asking(portMappings=[{**MAPPING, "hostPort": 8081}]), living)
    delete_and_wait(dead, node.host)
    found = node.list_findings()
    assert {one["name"] for one in list_problems(found)} == {"dead-attachments", "stale-rules", "stale-reservations"}, (
        found
    )
    assert {one["cure"] for one in list_problems(found)} == {"podwire gc podwire-podman"}
    if "gc" in COMMANDS_THERE:
        node.run_fix(list_problems(found)[0])
    else:
        collect(node, network, living)
        node.cache_file(network, dead).unlink()
    assert list_problems(node.list_findings()) == []


@pytest.mark.needs("nft_nat")
def test_rules_of_the_dead_in_nftables(node, new_sandbox):
    """Also rules of nftables are told when the cache does not know their container."""
    network = node.add_sample("50-nftables.conflist").asking(portMappings=[MAPPING])
    gone, living = new_sandbox(), new_sandbox()
    node.attach(network, gone)
    node.attach(network.asking(portMappings=[{**MAPPING, "hostPort": 8081}]), living)
    node.cache_file(network, gone).unlink()
    delete_and_wait(gone, node.host)
    for address in (node.directory / "leases" / network.name).iterdir():
        if gone.name in address.read_text():
            os.utime(address, (0, 0))  # else its ADD may be under way
    assert node.find("stale-rules")["text"].startswith("1 container(s)")
    collect(node, network, living)
    assert [one for one in node.list_findings() if one["name"] == "stale-rules"] == []


def collect(node: DoctorNode, network: NetworkList, *living: Namespace) -> None:
    """Does what `podwire gc` does: GC of each plugin, in the version that has it."""
    newer = NetworkList(network.name, "1.1.0", network.plugins)
    newer.collect(
        lambda plugin, command, config: run_plugin(plugin, command, config, host=node.host),
        [{"containerID": pod.name, "ifname": "eth0"} for pod in living],
    )


@pytest.mark.needs("iptables_legacy_nat", "iptables_nft_nat")
def test_two_variants_of_iptables(node, network, sandbox):
    """Rules of both variants of iptables are told, and what is told of the other one empties it."""
    node.attach(network, sandbox)
    node.host.run("iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
    found = node.find("iptables-mixture")
    node.host.run("sh", "-ec", found["cure"].partition("other's: ")[2])
    assert list_problems(node.list_findings()) == []


def test_pods_that_send_more_than_the_way_out_takes(node, network, sandbox):
    """An uplink with a smaller MTU is told with the key to set; with that, and the pod made again, it is gone."""
    result = node.attach(network, sandbox)
    node.host.run("sh", "-ec", OUT.format(mtu=1400))
    assert 'set "mtu": 1400 for the plugin bridge' in node.find("mtu-too-large")["cure"]
    veth = next(own["name"] for own in result["interfaces"] if own["name"].startswith("veth"))
    node.host.ip("link", "set", veth, "mtu", "1400")
    assert [one for one in node.list_findings() if one["name"] == "mtu-too-large"] == []


def test_the_hosts_own_way_to_a_pod_subnet(node):
    """An interface of the host in a network's subnet is told; without its address all is well."""
    node.add_sample("60-podman.conflist")
    node.host.run("sh", "-ec", "ip link add lan type veth peer lan1; ip link add lan2 type bridge")
    node.host.run("sh", "-ec", "ip address add 10.26.5.1/24 dev lan2; ip link set lan2 up")
    assert "10.26.5.1/24" in node.find("subnet-taken")["text"]
    node.host.ip("address", "del", "10.26.5.1/24", "dev", "lan2")
    assert list_problems(node.list_findings()) == []


@pytest.mark.parametrize(
    "way",
    [
        OUT.format(mtu=1500) + "; ip route add 10.0.0.0/8 via 192.0.2.2",
        "ip link add wg0 type bridge; ip link set wg0 up; ip route add 10.0.0.0/8 dev wg0",
        "ip link add flannel.1 type bridge; ip link set flannel.1 up; ip address add 10.26.0.0/32 dev flannel.1",
    ],
)
def test_the_way_to_the_rest_of_the_pods_is_no_fault(node, way):
    """A route to a network that contains the pods', or an overlay's single address, is how other nodes are reached."""
    node.add_sample("60-podman.conflist")
    node.host.run("sh", "-ec", way)
    assert list_problems(node.list_findings()) == []


def test_a_route_to_the_pods_by_another_interface(node):
    """A route to the pods' subnet itself, by an interface that is not their bridge, is told."""
    node.add_sample("60-podman.conflist")
    node.host.run("sh", "-ec", "ip link add lan type bridge; ip link set lan up; ip route add 10.26.0.0/16 dev lan")
    assert 'the route to 10.26.0.0/16 by interface "lan"' in node.find("subnet-taken")["text"]


def test_interfaces_that_are_down_on_purpose(node, sandbox):
    """Pods whose interface the configuration leaves down are healthy."""
    body = {"type": "bridge", "bridge": "br0", "disableContainerInterface": True}
    path = node.configure("10-l2.conflist", {"cniVersion": "1.0.0", "name": "l2", "plugins": [body]})
    node.attach(NetworkList.load(path), sandbox)
    assert list_problems(node.list_findings()) == []


def test_a_pods_interface_that_is_down(node, network, sandbox):
    """The interface of a living pod that is down is told, and that its routes went with it."""
    node.attach(network, sandbox)
    sandbox.ip("link", "set", "eth0", "down")
    assert "routes" in node.find("pod-interface-down")["cure"]


def test_the_same_address_twice(node, network, new_sandbox):
    """Two living attachments with one address are told."""
    first, second = new_sandbox(), new_sandbox()
    node.attach(network, first)
    node.attach(network.asking(portMappings=[]), second)
    text = node.cache_file(network, second).read_text()
    node.cache_file(network, second).write_text(text.replace("10.26.0.3/", "10.26.0.2/"))
    assert node.find("address-twice")["subject"] == "10.26.0.2"


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("mount -t tmpfs -o ro podwire {store}", "read-only"),
        ("mount -t tmpfs -o nr_inodes=1 podwire {store}", "no free inodes"),
        ("chown nobody {store}; trap 'chown root {store}' EXIT", "belongs to user"),
        ("mkdir -p {store}/podwire-podman/lock", "lock is a directory"),
    ],
)
def test_a_store_that_cannot_be_used(node, before, text):
    """A store that is read-only, full, another's or not one is told."""
    node.add_sample("60-podman.conflist")
    store = node.directory / "leases"
    store.mkdir()
    assert text in node.find("store-unusable", before=before.format(store=store))["text"]


def test_a_store_that_is_a_file(node, network, sandbox):
    """A file in a store's place is one problem that names it; the cache is looked at all the same."""
    node.attach(network, sandbox)
    store = node.directory / "leases" / "podwire-podman"
    shutil.rmtree(store)
    store.touch()
    assert node.find("store-unusable")["text"] == f"{store} is not a directory"
    found = node.list_checks()
    assert [one for one in found if one["name"] == "not-seen"] == []
    assert [one["severity"] for one in found if one["name"] == "cache"] == ["ok"]


def test_a_runtime_that_looks_elsewhere(node):
    """A containerd that runs plugins from another directory is reported, with the command that installs there.

    After that command nothing is wrong; of a containerd that is not installed nothing is reported.
    """
    node.add_sample("60-podman.conflist")
    elsewhere, program = node.directory / "elsewhere", node.directory / "containerd"
    config = f'version = 2\\n[plugins."io.containerd.grpc.v1.cri".cni]\\n  bin_dir = "{elsewhere}"\\n'
    copy = node.directory / "etc"
    write = (
        f"rm -rf {copy}; cp -a /etc {copy}; mkdir -p {copy}/containerd; "
        f"printf '{config}' > {copy}/containerd/config.toml; "
        f"mount --rbind /etc/cni {copy}/cni; mount --rbind {copy} /etc"
    )
    how = {"before": write, "env": {"PATH": f"{node.directory}:{PATH}"}}
    assert "runtime-looks-elsewhere" not in [one["name"] for one in node.list_findings(**how)]
    program.touch(0o755)
    found = node.find("runtime-looks-elsewhere", **how)
    assert (found["subject"], found["cure"]) == ("containerd", f"podwire install --bin-dir {elsewhere}")
    node.run_fix(found)
    assert "runtime-looks-elsewhere" not in [one["name"] for one in node.list_findings(**how)]


def test_what_cannot_be_checked_is_counted(node, sandbox):
    """Attachments of a version without CHECK are counted, and nothing bad is told of them."""
    body = {"type": "bridge", "bridge": "cni0", "isGateway": True}
    body["ipam"] = {"type": "host-local", "subnet": "10.9.0.0/28", "dataDir": str(node.directory / "leases")}
    path = node.configure("10-old.conflist", {"cniVersion": "0.3.1", "name": "old", "plugins": [body]})
    node.attach(NetworkList.load(path), sandbox)
    found = node.find("not-all-checked")
    assert found["text"] == "0 of 1 attachments were checked; not 1: cniVersion 0.3.1 has no CHECK"
    assert list_problems(node.list_findings()) == []


def test_pods_of_a_network_without_a_file(node, network, sandbox):
    """Living pods whose network's file was taken out of net.d are a note."""
    node.attach(network, sandbox)
    node.add_sample("10-podwire.conflist")
    (node.conf / "60-podman.conflist").unlink()
    assert node.find("network-not-configured")["subject"] == "podwire-podman"
    assert list_problems(node.list_findings()) == []


def test_ranges_that_are_full(node, new_sandbox):
    """A range without a free address is a problem, one that is nearly so a warning."""
    body = {"type": "bridge", "bridge": "cni0", "isGateway": True}
    body["ipam"] = {"type": "host-local", "subnet": "10.9.0.0/28", "dataDir": str(node.directory / "leases")}
    path = node.configure("10-small.conflist", {"cniVersion": "1.0.0", "name": "small", "plugins": [body]})
    network = NetworkList.load(path)
    for number in range(13):
        node.attach(network, new_sandbox())
        if number == 11:
            assert node.find("range-nearly-full")["severity"] == "warning"
    assert [one["name"] for one in list_problems(node.list_findings())] == ["range-full"]
    assert node.find("range-full")["cure"] == 'set a larger "subnet" in /etc/cni/net.d/10-small.conflist'
