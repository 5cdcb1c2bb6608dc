"""`podwire doctor` on faulty nodes: the advice for each fault, and the end of the finding with the fault.

tests/data/faults.toml has the faults that a shell command injects and a printed command ends.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kernel.route import SCOPE_LINK
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.machine import eventually
from tests.support.namespaces import delete_and_wait
from tests.support.netlist import NetworkList

MAPPING = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
UPLINK = "ip link add out0 type veth peer out1; ip link set out0 up; ip link set out1 up;"
UPLINK += "ip address add 192.0.2.1/24 dev out0; ip route add default via 192.0.2.2"


@pytest.fixture
def network(node: DoctorNode) -> NetworkList:
    """Podman's network, whose pods have a host port."""
    return node.add_sample("60-podman.conflist").with_capabilities(portMappings=[MAPPING])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("address add 10.26.5.1/24", "10.26.5.1/24"),
        ("route add 10.26.0.0/16", 'the route to 10.26.0.0/16 by interface "lan"'),
    ],
    ids=["address", "route"],
)
def test_subnet_that_the_host_uses_before_the_first_pod(node, network, words, text):
    """An address or a route of the host in the pods' subnet is reported until it ends, with advice only."""
    node.host.ip("link", "add", "lan", "up", "type", "bridge")
    node.host.ip(*words.split(), "dev", "lan")
    finding = node.find("subnet-taken")
    assert text in f"{finding['subject']} {finding['text']} {finding['cure']}"
    assert finding["commands"] == []
    node.host.ip("link", "del", "lan")
    assert list_problems(node.list_findings()) == []


def test_resolver_without_a_route(node, sandbox, tmp_path):
    """The advice for a pod that has no route to its resolver names the route in IPAM first."""
    node.attach(node.add_bridge(), sandbox)
    (tmp_path / "resolv.conf").write_text("nameserver 10.96.0.10\n")
    script = f"mount --make-rprivate /; mount --bind {tmp_path}/resolv.conf /etc/resolv.conf; exec sleep 60"
    with sandbox.entered(), subprocess.Popen(["unshare", "--mount", "sh", "-ec", script]) as process:
        assert eventually(lambda: "10.96.0.10" in Path(f"/proc/{process.pid}/root/etc/resolv.conf").read_text())
        finding = node.find("pod-resolver-dead")
        process.kill()
    assert finding["cure"].startswith('add {"dst": "10.96.0.10/32"} to "routes" of the network\'s "ipam", or set ')


@pytest.mark.parametrize(("address", "gateway"), [("10.9.0.5/32", "10.9.1.1"), ("fd00:9::5/128", "fd00:9::1:1")])
def test_gateway_beyond_the_subnet(node, sandbox, address, gateway):
    """A route to a gateway outside of the pod's subnet is no fault, even if an old libcni has dropped its scope."""
    ipam = {"type": "static", "addresses": [{"address": address, "gateway": gateway}]}
    network = node.add_bridge(ipam=ipam, isDefaultGateway=True)
    node.attach(network, sandbox)
    file = node.cache_file(network, sandbox)
    entry = json.loads(file.read_text())
    assert [route.pop("scope", None) for route in entry["result"]["routes"]] == [SCOPE_LINK, None]
    file.write_text(json.dumps(entry))
    assert list_problems(node.list_findings()) == []


HEALTHY = {  # shell commands on a node without pods
    "disabled forwarding, which the first ADD enables": "sysctl -qw net/ipv4/ip_forward=0",
    "a route to a network that contains the pods' subnet": f"{UPLINK}; ip route add 10.0.0.0/8 via 192.0.2.2",
    "the same route through an overlay": "ip link add wg0 up type bridge; ip route add 10.0.0.0/8 dev wg0",
    "a single address of an overlay": (
        "ip link add flannel.1 up type bridge; ip address add 10.26.0.0/32 dev flannel.1"
    ),
}


@pytest.mark.parametrize("shell", HEALTHY.values(), ids=HEALTHY)
def test_state_without_pods_that_is_no_fault(node, network, shell):
    """What the first ADD changes, and a route to the pods of other nodes, is no problem."""
    node.host.run("sh", "-ec", shell)
    assert list_problems(node.list_findings()) == []


@pytest.mark.parametrize(
    "shell",
    [
        "ip address add 2001:db8:1::1/64 dev out0 nodad; ip -6 route add default via fe80::1 dev out0;"
        "ip link add docker0 up type bridge; ip address add fe80::1/64 dev docker0 nodad",
        "ip route del default; ip address flush dev out0; ip address add 169.254.0.2/30 dev out0;"
        "ip route add default via 169.254.0.1",
    ],
    ids=["fe80::1", "169.254"],
)
def test_link_local_gateway_is_no_fault(node, sandbox, shell):
    """A gateway's link-local address may be that of docker0, too, and a microVM's addresses may all be link-local."""
    node.host.run("sh", "-ec", f"{UPLINK}; {shell}")
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    assert list_problems(node.list_findings()) == []


@pytest.mark.needs("nft_inet", "ifb", "tbf")
def test_policy_at_routed_veths(node, sandbox):
    """The printed command for a policy that drops the packets of ptp's pods ends the fault."""
    node.host.run("sh", "-ec", UPLINK)
    node.attach(node.add_sample("70-ptp.conflist"), sandbox)
    node.host.run("nft", "add table ip f; add chain ip f c { type filter hook forward priority 0; policy drop; }")
    node.run_fix(node.find("forward-drop"))
    assert {one["name"] for one in list_problems(node.list_findings())} <= {"iptables-mixture"}


@pytest.mark.needs("iptables_nft_nat")
def test_equal_faults_of_many_attachments_are_counted(node, network, new_sandbox):
    """Of eight pods without rules five are reported, and the others are counted."""
    for number in range(8):
        node.attach(network.with_capabilities(portMappings=[{**MAPPING, "hostPort": 8080 + number}]), new_sandbox())
    node.host.run("nft", "flush ruleset")
    findings = [one for one in node.list_findings() if one["name"] == "rules-missing"]
    assert len(findings) == 6
    assert findings[0]["cure"] == "podwire repair podwire-podman"
    assert findings[-1]["text"].startswith("3 more")


def test_host_port_shadowed_by_another_pod(node, network, new_sandbox):
    """A running pod whose host port is forwarded by another pod's rule is reported as shadowed, and by show."""
    pods = new_sandbox(), new_sandbox()
    for pod in pods:
        node.attach(network, pod)
    assert "8080" in node.find("host-port-shadowed")["text"]
    shown = node.podwire("show", f"--data-dir={node.directory}/leases")
    assert (shown.returncode, shown.stdout.count(" ok\n"), shown.stdout.count("check failed\n")) == (1, 1, 1), shown
    assert f"{pods[1].name} eth0: portmap: host port 8080" in shown.stdout


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
    problems = list_problems(node.list_findings())
    assert {one["name"] for one in problems} == {"dead-attachments", "stale-rules", "stale-reservations"}, problems
    assert {one["cure"] for one in problems} == {"podwire gc podwire-podman"}
    node.run_fix(problems[0])
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
    finding = node.find("stale-rules")
    assert finding["text"].startswith("there are rules of 1 container ")
    node.run_fix(finding)
    assert [one for one in node.list_findings() if one["name"] == "stale-rules"] == []


def test_interfaces_that_the_configuration_leaves_down(node, sandbox):
    """Pods whose interface the configuration leaves down are healthy."""
    body = {"type": "bridge", "bridge": "br0", "disableContainerInterface": True}
    node.attach(node.add_network({"cniVersion": "1.0.0", "name": "l2", "plugins": [body]}), sandbox)
    assert list_problems(node.list_findings()) == []


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


def test_attachments_without_check_are_counted(node, sandbox):
    """Attachments of a version without CHECK are counted, without a problem or a warning; show says so."""
    node.attach(node.add_bridge(version="0.3.1"), sandbox)
    finding = node.find("not-all-checked")
    assert finding["text"] == "0 of 1 attachment checked; not 1: cniVersion 0.3.1 has no CHECK"
    assert list_problems(node.list_findings()) == []
    shown = node.podwire("show", f"--data-dir={node.directory}/leases")
    assert (shown.returncode, "not checked" in shown.stdout) == (0, True), shown


def test_full_ranges(node, new_sandbox):
    """A range without a free address is a problem, and one that is nearly full a warning."""
    network = node.add_bridge("small", "10.9.0.0/28")
    for number in range(13):
        node.attach(network, new_sandbox())
        if number == 11:
            assert node.find("range-nearly-full")["severity"] == "warning"
    assert [one["name"] for one in list_problems(node.list_findings())] == ["range-full"]
    larger = 'delete the bridge cni0 and set a larger "subnet" in /etc/cni/net.d/10-small.conflist'
    assert node.find("range-full")["cure"] == f"create a network with another bridge; or, without pods, {larger}"


@pytest.mark.needs("iptables_nft_nat")
def test_advice_for_a_dropping_chain_names_host_ports(node, sandbox):
    """The firewall plugin accepts what pods send: with portmap, the advice says that host ports need a rule as well."""
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}, "backend": "iptables"}
    network = node.add_bridge("pods", "10.9.0.0/24", portmap, isDefaultGateway=True)
    node.attach(network, sandbox)
    node.host.run("iptables", "-P", "FORWARD", "DROP")
    advice = json.dumps([one for one in node.list_findings() if one["name"] == "forward-drop"])
    assert 'for host ports a rule: \\"Making a fix permanent\\" in docs/troubleshooting.md' in advice, advice


def test_fix_gives_a_recreated_bridge_the_address_that_pods_know(node, sandbox):
    """The fix for a recreated bridge sets the MAC address that its pods know as their gateway's."""
    result = node.attach(node.add_sample("60-podman.conflist"), sandbox)
    node.host.run("sh", "-ec", "ip link del cni4; ip link add cni4 type bridge; ip link set cni4 up")
    known = next(interface["mac"] for interface in result["interfaces"] if interface["name"] == "cni4")
    assert node.find("bridge-address-changes")["cure"] == f"ip link set cni4 address {known}"
    names = ["port-lost", "gateway-missing", "bridge-address-changes"]
    assert [one["name"] for one in list_problems(node.list_findings())] == names[:2]  # the third one is a note
    for name in names:
        node.run_fix(node.find(name))
    assert list_problems(node.list_findings()) == []


def test_uplink_is_the_default_route_in_use(node, sandbox):
    """The MTU of a default route with a higher metric, which the kernel does not use, is ignored."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    for number, mtu in ((0, 1500), (1, 1400)):
        net = f"192.0.{2 + number}"
        node.host.run(
            "sh", "-ec",
            f"ip link add out{number} mtu {mtu} type veth peer far{number}; ip link set out{number} up;"
            f"ip link set far{number} up; ip address add {net}.1/24 dev out{number};"
            f"ip route add default via {net}.2 metric {100 + number}",
        )  # fmt: skip
    findings = node.list_checks()
    assert [one["text"] for one in findings if one["name"] == "mtu"] == [
        'MTU 1500; that of the uplink "out0" is 1500'
    ], findings
    node.host.ip("route", "del", "default", "dev", "out0")
    assert 'the uplink "out1" has 1400' in node.find("mtu-too-large")["text"]


def test_two_pods_with_one_mac_address(node, new_sandbox):
    """Two pods on one bridge with the same MAC address are reported once."""
    network = node.add_sample("60-podman.conflist")
    for number in range(2):
        mapping = {**MAPPING, "hostPort": 8080 + number}
        pod = network.with_capabilities(portMappings=[mapping], mac="02:00:00:00:00:42")
        node.attach(pod, new_sandbox())
    assert "02:00:00:00:00:42" in node.find("mac-twice")["text"]


@pytest.mark.parametrize("group", ["all", "default"])
def test_ipv6_disabled_for_a_new_bridge(node, group):
    """Before the first ADD the setting of new interfaces counts, which the bridge will have; the fix removes it."""
    node.add_sample("20-dual-stack.conflist")
    node.host.set_sysctl(f"net/ipv6/conf/{group}/disable_ipv6", "1")
    finding = node.find("ipv6-off")
    assert f"net/ipv6/conf/{group}/disable_ipv6 is 1" in finding["text"]
    assert [one["name"] for one in list_problems(node.list_findings())] == ["ipv6-off"]
    node.run_fix(finding)
    assert list_problems(node.list_findings()) == []


@pytest.mark.needs("ifb", "tbf")
def test_show_of_a_host_port_without_ipv4_rules(node, sandbox):
    """In `podwire show` a dual-stack pod whose host port has no IPv4 rules is not ok; the port is not confirmed."""
    network = node.add_sample("20-dual-stack.conflist").with_capabilities(portMappings=[MAPPING])
    node.attach(network, sandbox)
    leases = f"--data-dir={node.directory}/leases"
    assert node.podwire("show", leases).returncode == 0
    node.host.run("iptables", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT")
    done = node.podwire("show", leases)
    assert (done.returncode, "check failed" in done.stdout, "8080->80/tcp?" in done.stdout) == (1, True, True), done
    assert f"{network.name} {sandbox.name} eth0: portmap: " in done.stdout
    assert done.stdout.endswith("for the fixes: podwire doctor\n")


@pytest.fixture(params=["60-podman.conflist", pytest.param("50-nftables.conflist", marks=pytest.mark.needs("nft_nat"))])
def running(node: DoctorNode, new_sandbox, request) -> NetworkList:
    """A network with host ports and one pod, which keeps its entry in the cache."""
    network_list = node.add_sample(request.param)
    node.attach(network_list.with_capabilities(portMappings=[{**MAPPING, "hostPort": 8081}]), new_sandbox())
    return network_list.with_capabilities(portMappings=[MAPPING])


def test_running_pod_without_cache_entry(node, running, sandbox):
    """A running pod whose entry in the cache is deleted has no stale rules and no stale address."""
    node.attach(running, sandbox)
    node.cache_file(running, sandbox).unlink()
    assert list_problems(node.list_findings()) == []


def test_running_pod_with_truncated_cache_entry(node, running, sandbox):
    """For a running pod with a truncated entry the advice is not gc, but del and add, which write the whole entry."""
    node.attach(running, sandbox)
    entry = node.cache_file(running, sandbox)
    entry.write_text(entry.read_text()[:300])
    findings = node.list_findings()
    assert list_problems(findings) == []
    (unseen,) = (one for one in findings if one["name"] == "not-seen")
    assert "if the container is running, do not delete the file" in unseen["cure"]
    for verb in ("del", "add"):
        words = [verb, running.name, sandbox.path, "--container-id", sandbox.name, f"--bin-dir={node.bin_dir}"]
        done = node.podwire(*words)
        assert done.returncode == 0, done
    findings = node.list_findings()
    assert [one for one in findings if one["name"] == "not-seen"] + list_problems(findings) == []


def test_address_of_a_running_add(node, running):
    """An address that was reserved less than a minute ago, without an entry in the cache, is not stale."""
    (store,) = (path for path in (node.directory / "leases").iterdir() if path.is_dir())
    first = next(path for path in store.iterdir() if path.name[0].isdecimal() and ":" not in path.name)
    (store / f"{first.name.rpartition('.')[0]}.201").write_bytes(b"abc\r\neth0")
    assert list_problems(node.list_findings()) == []
