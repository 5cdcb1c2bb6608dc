"""`podwire doctor` on faulty nodes: it reports each fault, and the printed fix removes it."""

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
    """Damage to a healthy node with a running pod; {veth} is the pod's host veth."""

    name: str
    shell: str
    sample: str = "60-podman.conflist"
    needs: tuple[str, ...] = ()


FIXABLE = {
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
    "policy of nftables, routed veths": Fault(
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

EXISTING_COMMANDS = {command.name for command in COMMANDS}
FIXABLE_NAMES = {one.name for one in FIXABLE.values()}


@pytest.fixture
def node(host, tmp_path) -> DoctorNode:
    return DoctorNode(host, tmp_path)


@pytest.fixture
def network(node: DoctorNode) -> NetworkList:
    return node.add_sample("60-podman.conflist").with_capabilities(portMappings=[MAPPING])


def marked() -> list[object]:
    return [pytest.param(one, marks=pytest.mark.needs(*one.needs), id=name) for name, one in FIXABLE.items()]


@pytest.mark.parametrize("fault", marked())
def test_printed_fix_removes_the_fault(node, sandbox, fault):
    """A fault is reported, and no longer reported after its printed fix has been run unchanged."""
    node.host.run("sh", "-ec", OUT.format(mtu=1500))
    result = node.attach(node.add_sample(fault.sample), sandbox)
    assert list_problems(node.list_findings()) == []
    veth = next(interface["name"] for interface in result["interfaces"] if interface["name"].startswith("veth"))
    node.host.run("sh", "-ec", fault.shell.format(veth=veth))
    node.run_fix(node.find(fault.name))
    rest = list_problems(node.list_findings())
    assert not any(one["name"] == fault.name for one in rest), rest
    for one in rest:  # faults that the first one hid
        if one["name"] in FIXABLE_NAMES:
            node.run_fix(one)
    assert {one["name"] for one in list_problems(node.list_findings())} <= {"iptables-mixture"}


def test_disabled_forwarding_without_pods_is_no_fault(node):
    """Without running pods disabled forwarding is not reported, since the first ADD enables it."""
    node.add_sample("60-podman.conflist")
    node.host.set_sysctl("net/ipv4/ip_forward", "0")
    assert list_problems(node.list_findings()) == []


@pytest.mark.needs("nft_inet")
def test_chain_that_may_accept_is_no_problem(node, sandbox):
    """A chain that drops what an earlier rule may accept is no problem."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    rules = "add table inet f; add chain inet f c { type filter hook forward priority 0; policy drop; };"
    node.host.run("nft", rules + "add rule inet f c limit rate 10/second accept")
    assert node.find("forward-policy")["severity"] == "note"
    assert list_problems(node.list_findings()) == []


def test_deleted_bridge_is_one_problem(node, network, sandbox):
    """The deleted bridge of running pods is reported once, without the failures of CHECK."""
    node.attach(network, sandbox)
    node.host.ip("link", "delete", "cni4")
    names = [one["name"] for one in list_problems(node.list_findings())]
    assert names.count("bridge-missing") == 1
    assert "check-failed" not in names


def test_pod_that_lost_its_route(node, network, sandbox):
    """A failure of CHECK for a running pod is reported with the fix in its details."""
    node.attach(network, sandbox)
    sandbox.ip("route", "flush", "default")
    finding = node.find("pod-route-missing")
    assert [one["name"] for one in finding["consequences"]] == ["check-failed"]
    node.run_fix(finding)
    assert list_problems(node.list_findings()) == []


@pytest.mark.parametrize("rules", ["masquerading", "host ports", "firewall"])
def test_flushed_rules(node, network, sandbox, rules):
    """Missing rules for masquerading, host ports or the firewall are reported, and `podwire repair` is the fix."""
    node.attach(network, sandbox)
    chain = {
        "masquerading": "-t nat -F POSTROUTING",
        "host ports": "-t nat -F PREROUTING",
        "firewall": "-F CNI-FORWARD",
    }
    node.host.run("sh", "-ec", f"iptables {chain[rules]}")
    finding = node.find("rules-missing")
    assert finding["cure"] == "podwire repair podwire-podman"
    assert sandbox.name in finding["subject"]
    if "repair" in EXISTING_COMMANDS:
        node.run_fix(finding)
        assert list_problems(node.list_findings()) == []


@pytest.mark.needs("iptables_nft_nat")
def test_equal_faults_of_many_attachments_are_counted(node, network, new_sandbox):
    """Of eight pods without rules five are reported, and the others are counted."""
    for number in range(8):
        node.attach(network.with_capabilities(portMappings=[{**MAPPING, "hostPort": 8080 + number}]), new_sandbox())
    node.host.run("nft", "flush ruleset")
    findings = [one for one in node.list_findings() if one["name"] == "rules-missing"]
    assert len(findings) == 6
    assert findings[-1]["text"].startswith("3 more")


def test_host_port_shadowed_by_another_pod(node, network, new_sandbox):
    """A running pod whose host port is forwarded by another pod's rule is reported as shadowed."""
    for _ in range(2):
        node.attach(network, new_sandbox())
    assert "8080" in node.find("host-port-shadowed")["text"]


def test_without_the_runtimes_namespaces_gc_is_not_recommended(node, network, sandbox):
    """If /run/netns is not the runtime's, doctor reports that, and does not recommend gc."""
    node.attach(network, sandbox)
    findings = list_problems(node.list_findings(before="mount -t tmpfs podwire /run/netns"))
    assert [one["name"] for one in findings] == ["namespaces-not-seen"], findings


def test_remains_of_a_pod_without_del(node, network, new_sandbox):
    """A pod that stopped without DEL is reported by cache entry, rules and address, and GC removes them."""
    dead, running = new_sandbox(), new_sandbox()
    node.attach(network, dead)
    node.attach(network.with_capabilities(portMappings=[{**MAPPING, "hostPort": 8081}]), running)
    delete_and_wait(dead, node.host)
    findings = node.list_findings()
    assert {one["name"] for one in list_problems(findings)} == {
        "dead-attachments",
        "stale-rules",
        "stale-reservations",
    }, findings
    assert {one["cure"] for one in list_problems(findings)} == {"podwire gc podwire-podman"}
    if "gc" in EXISTING_COMMANDS:
        node.run_fix(list_problems(findings)[0])
    else:
        collect(node, network, running)
        node.cache_file(network, dead).unlink()
    assert list_problems(node.list_findings()) == []


@pytest.mark.needs("nft_nat")
def test_stale_rules_in_nftables(node, new_sandbox):
    """Rules of nftables are reported as stale if the cache does not have their container."""
    network = node.add_sample("50-nftables.conflist").with_capabilities(portMappings=[MAPPING])
    gone, running = new_sandbox(), new_sandbox()
    node.attach(network, gone)
    node.attach(network.with_capabilities(portMappings=[{**MAPPING, "hostPort": 8081}]), running)
    node.cache_file(network, gone).unlink()
    delete_and_wait(gone, node.host)
    for address in (node.directory / "leases" / network.name).iterdir():
        if gone.name in address.read_text():
            os.utime(address, (0, 0))  # otherwise its ADD may still be running
    assert node.find("stale-rules")["text"].startswith("1 container(s)")
    collect(node, network, running)
    assert [one for one in node.list_findings() if one["name"] == "stale-rules"] == []


def collect(node: DoctorNode, network: NetworkList, *running: Namespace) -> None:
    """Runs GC of each plugin as `podwire gc` does, in the version that has it."""
    newer = NetworkList(network.name, "1.1.0", network.plugins)
    newer.collect(
        lambda plugin, command, config: run_plugin(plugin, command, config, host=node.host),
        [{"containerID": pod.name, "ifname": "eth0"} for pod in running],
    )


@pytest.mark.needs("iptables_legacy_nat", "iptables_nft_nat")
def test_two_variants_of_iptables(node, network, sandbox):
    """Rules in both variants of iptables are reported, until those of the other variant are gone."""
    node.attach(network, sandbox)
    node.host.run("iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
    assert "iptables-nft, the host's variant" in node.find("iptables-mixture")["cure"]
    node.host.run("iptables-legacy", "-t", "nat", "-F")
    assert list_problems(node.list_findings()) == []


def test_uplink_with_a_smaller_mtu(node, network, sandbox):
    """An uplink with a smaller MTU is reported with the key to set, until the pod's MTU fits."""
    result = node.attach(network, sandbox)
    node.host.run("sh", "-ec", OUT.format(mtu=1400))
    assert 'set "mtu": 1400 for the plugin bridge' in node.find("mtu-too-large")["cure"]
    veth = next(interface["name"] for interface in result["interfaces"] if interface["name"].startswith("veth"))
    node.host.ip("link", "set", veth, "mtu", "1400")
    assert [one for one in node.list_findings() if one["name"] == "mtu-too-large"] == []


def test_host_interface_in_a_pod_subnet(node):
    """A host interface with an address in a network's subnet is reported until the address is removed."""
    node.add_sample("60-podman.conflist")
    node.host.run("sh", "-ec", "ip link add lan type veth peer lan1; ip link add lan2 type bridge")
    node.host.run("sh", "-ec", "ip address add 10.26.5.1/24 dev lan2; ip link set lan2 up")
    assert "10.26.5.1/24" in node.find("subnet-taken")["text"]
    node.host.ip("address", "del", "10.26.5.1/24", "dev", "lan2")
    assert list_problems(node.list_findings()) == []


@pytest.mark.parametrize(
    "route",
    [
        OUT.format(mtu=1500) + "; ip route add 10.0.0.0/8 via 192.0.2.2",
        "ip link add wg0 type bridge; ip link set wg0 up; ip route add 10.0.0.0/8 dev wg0",
        "ip link add flannel.1 type bridge; ip link set flannel.1 up; ip address add 10.26.0.0/32 dev flannel.1",
    ],
)
def test_route_to_pods_of_other_nodes_is_no_fault(node, route):
    """A route to a network that contains the pod subnet, or an overlay's single address, is no fault."""
    node.add_sample("60-podman.conflist")
    node.host.run("sh", "-ec", route)
    assert list_problems(node.list_findings()) == []


def test_route_to_the_pods_through_another_interface(node):
    """A route to the pod subnet through an interface other than the bridge is reported."""
    node.add_sample("60-podman.conflist")
    node.host.run("sh", "-ec", "ip link add lan type bridge; ip link set lan up; ip route add 10.26.0.0/16 dev lan")
    assert 'the route to 10.26.0.0/16 by interface "lan"' in node.find("subnet-taken")["text"]


def test_interfaces_that_the_configuration_leaves_down(node, sandbox):
    """Pods whose interface the configuration leaves down are healthy."""
    body = {"type": "bridge", "bridge": "br0", "disableContainerInterface": True}
    path = node.configure("10-l2.conflist", {"cniVersion": "1.0.0", "name": "l2", "plugins": [body]})
    node.attach(NetworkList.load(path), sandbox)
    assert list_problems(node.list_findings()) == []


def test_pod_interface_that_is_down(node, network, sandbox):
    """An interface of a running pod that is down is reported, and the command restores it and its routes."""
    node.attach(network, sandbox)
    sandbox.ip("link", "set", "eth0", "down")
    node.run_fix(node.find("pod-link-down"))
    assert list_problems(node.list_findings()) == []


def test_duplicate_address(node, network, new_sandbox):
    """Two running attachments with the same address are reported."""
    first, second = new_sandbox(), new_sandbox()
    node.attach(network, first)
    node.attach(network.with_capabilities(portMappings=[]), second)
    text = node.cache_file(network, second).read_text()
    node.cache_file(network, second).write_text(text.replace("10.26.0.3/", "10.26.0.2/"))
    assert node.find("address-twice")["subject"] == "10.26.0.2"


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("mount -t tmpfs -o ro podwire {store}", "read-only"),
        ("mount -t tmpfs -o nr_inodes=1 podwire {store}", "no free inodes"),
        ("chown 65534 {store}; trap 'chown root {store}' EXIT", "belongs to user"),
        ("mkdir -p {store}/podwire-podman/lock", "lock is a directory"),
    ],
)
def test_unusable_store(node, before, text):
    """A store that is read-only, full, not root's or has no lock file is reported."""
    node.add_sample("60-podman.conflist")
    store = node.directory / "leases"
    store.mkdir()
    assert text in node.find("store-unusable", before=before.format(store=store))["text"]


def test_file_in_place_of_a_store(node, network, sandbox):
    """A file in place of a store is one problem that names it, and the cache is still checked."""
    node.attach(network, sandbox)
    store = node.directory / "leases" / "podwire-podman"
    shutil.rmtree(store)
    store.touch()
    assert node.find("store-unusable")["text"] == f"{store} is not a directory"
    findings = node.list_checks()
    assert [one for one in findings if one["name"] == "not-seen"] == []
    assert [one["severity"] for one in findings if one["name"] == "cache"] == ["ok"]


def test_runtime_with_another_plugin_directory(node):
    """A containerd that runs plugins from another directory is reported, with the command that installs there.

    After that command, and for a containerd that is not installed, nothing is reported.
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
    finding = node.find("runtime-looks-elsewhere", **how)
    assert (finding["subject"], finding["cure"]) == ("containerd", f"podwire install --bin-dir {elsewhere}")
    node.run_fix(finding)
    assert "runtime-looks-elsewhere" not in [one["name"] for one in node.list_findings(**how)]


def test_attachments_without_check_are_counted(node, sandbox):
    """Attachments of a version without CHECK are counted, without a problem or a warning."""
    body = {"type": "bridge", "bridge": "cni0", "isGateway": True}
    body["ipam"] = {"type": "host-local", "subnet": "10.9.0.0/28", "dataDir": str(node.directory / "leases")}
    path = node.configure("10-old.conflist", {"cniVersion": "0.3.1", "name": "old", "plugins": [body]})
    node.attach(NetworkList.load(path), sandbox)
    finding = node.find("not-all-checked")
    assert finding["text"] == "0 of 1 attachments were checked; not 1: cniVersion 0.3.1 has no CHECK"
    assert list_problems(node.list_findings()) == []


def test_running_pods_of_a_network_without_a_file(node, network, sandbox):
    """Running pods whose network's file was removed from net.d are a note."""
    node.attach(network, sandbox)
    node.add_sample("10-podwire.conflist")
    (node.conf / "60-podman.conflist").unlink()
    assert node.find("network-not-configured")["subject"] == "podwire-podman"
    assert list_problems(node.list_findings()) == []


def test_full_ranges(node, new_sandbox):
    """A range without a free address is a problem, and one that is nearly full a warning."""
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
