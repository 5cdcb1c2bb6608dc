"""`podwire test` sends packets on every path of the pods, and names the first suspect of a lost one."""

import json
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support import netstate, sockets
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.packet_node import PacketNode

pytestmark = pytest.mark.needs("nft_nat", "nft_inet")

_WHOLE = {"ok", "slow"}  # a busy machine may be slow
_LOCAL = {"duplicate", "gateway", "pod-to-node", "next-hop", "node-to-pod", "pod-to-pod", "pod-to-outside"}
_PORTS = {"outside-to-port", "node-to-port", "localhost-to-port", "hairpin-port"}


# Shell commands, a path that they break, the suspect and its words; the paths at the end still carry packets.
FAULTS = {
    "a foreign rule drops": (
        "nft add table inet mine; nft add chain inet mine fw '{{ type filter hook forward priority 5; }}';"
        "nft add rule inet mine fw iifname cnip0 oifname vethpwo* drop",
        "pod-to-outside", "rule", ("inet mine fw", "drop", "names an uplink"), ("pod-to-pod", "gateway"),
    ),
    "the path loses full-size segments": (
        "ip link set {webveth} mtu 1280", "pod-to-pod", "mtu", ("{webveth}", "1280"), ("gateway", "pod-to-node"),
    ),
    "a second machine with the address": (
        "ip -n {client} addr add 10.22.0.2/32 dev eth0", "duplicate", "duplicate", ("10.22.0.2",), (),
    ),
    "one of two gateways is dead": (
        "ip route replace default nexthop via 192.0.2.2 nexthop via 192.0.2.77",
        "next-hop", "gateway", ("192.0.2.77",), ("pod-to-outside",),
    ),
    "an IPsec policy blocks": (
        "ip xfrm policy add src 10.22.0.0/24 dst 0.0.0.0/0 dir fwd action block",
        "pod-to-outside", "discarded", ("IPsec", "XfrmInPolBlock"), ("gateway", "pod-to-pod"),
    ),
    "a lost address": ("ip -n {web} addr del 10.22.0.2/24 dev eth0", "gateway", "address", ("10.22.0.2",), ()),
}  # fmt: skip


@pytest.fixture
def node(host, new_sandbox, tmp_path):
    """A node with an uplink."""
    return PacketNode(host, tmp_path, new_sandbox())


@pytest.fixture
def pods(node, new_sandbox):
    """Two pods, the first with host ports."""
    web, client = new_sandbox(), new_sandbox()
    node.attach_pod(web, ports=True)
    node.attach_pod(client)
    return web, client


def test_healthy_node(node, pods):
    """On a healthy node no path loses a packet, with IPv4 and IPv6, and each kind of path is tested."""
    document = node.test()
    assert {one["state"] for one in document["paths"]} <= _WHOLE, document
    for version in (4, 6):
        names = {one["path"] for one in document["paths"] if one["ipVersion"] == version}
        assert names == (_LOCAL | _PORTS) - ({"localhost-to-port"} if version == 6 else set())
    done = node.podwire("test", pods[1].name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("1 pod, ")


@pytest.mark.parametrize(("shell", "path", "suspect", "words", "whole"), FAULTS.values(), ids=FAULTS)
def test_fault(node, new_sandbox, shell, path, suspect, words, whole):
    """The path is lost with the injected fault as its suspect; paths that do not meet the fault are in order."""
    web, client = new_sandbox(), new_sandbox()
    names = {"web": web.name, "client": client.name}
    names |= {"webveth": node.attach_pod(web), "clientveth": node.attach_pod(client)}
    node.host.run("sh", "-ec", shell.format(**names))
    done = node.podwire("test", web.name, "--json", "--timeout", "1")
    document = json.loads(done.stdout)
    assert done.returncode == 1, document
    broken = [one for one in document["paths"] if one["path"] == path and one["state"] == "lost"]
    assert broken, document
    suspects = [one["suspect"] for one in broken if one["suspect"]]
    assert suspects, broken
    assert suspects[0]["name"] == suspect, suspects
    for word in words:
        assert word.format(**names) in suspects[0]["text"], suspects
    for name in whole:
        assert {one["state"] for one in document["paths"] if one["path"] == name} <= _WHOLE, name


def test_fault_beside_a_queue(node, pods):
    """Where a program reads a queue (NFQUEUE), no rule is a suspect, and the result says that rules were not traced."""
    shell, path, *_ = FAULTS["a foreign rule drops"]
    node.host.run("sh", "-ec", shell.format())
    with node.host.entered(), sockets.hold_queue(9):
        document = node.test(pods[0].name)
    lost = [one["suspect"] for one in document["paths"] if one["path"] == path and one["state"] == "lost"]
    assert {suspect["text"].partition("; ")[2] for suspect in lost if suspect} == {"rules were not traced"}, lost
    assert ["read" in text and "queue 9 (NFQUEUE)" in text for text in document["unseen"]] == [True], document
    assert not document["complete"]


def test_second_uplink_of_the_pods(node, pods):
    """A policy rule that sends the pods' packets to an uplink is no fault: what the test cannot reach is not lost."""
    node.host.run(
        "sh",
        "-ec",
        "ip route add default via 192.0.2.2 table 9; ip route add 10.22.0.0/24 dev cnip0 table 9;"
        "ip rule add from 10.22.0.0/24 lookup 9 pref 900",
    )
    document = node.test()
    names = {path["path"] for path in document["paths"]}
    assert not names & {"pod-to-outside", "outside-to-port"}
    assert {path["state"] for path in document["paths"]} <= _WHOLE
    assert not document["complete"]
    assert ["from 10.22.0.0/24 lookup 9" in text for text in document["unseen"]] == [True]


def test_stale_flow(node, pods):
    """A tracked UDP flow of a client to an address that the pod of the port does not have is reported."""
    node.host.run(
        "sh", "-ec",
        "nft add table ip old; nft add chain ip old out '{ type nat hook output priority -150; }';"
        "nft add rule ip old out udp dport 5353 dnat to 10.22.0.99:53",
    )  # fmt: skip
    with node.host.entered():
        subprocess.run(["sh", "-c", "echo x >/dev/udp/192.0.2.1/5353"], executable="/bin/bash", check=False)
    node.host.run("nft", "delete", "table", "ip", "old")
    trace = node.trace("outside", ":5353/udp")
    assert trace["outcome"] == "lost"
    assert trace["suspect"]["name"] == "stale-conntrack", trace["suspect"]
    assert "10.22.0.99" in trace["suspect"]["text"]


def test_resolver(node, pods, tmp_path):
    """The resolvers of a pod's resolv.conf are asked; one that does not answer is lost, one that refuses is not."""
    (tmp_path / "resolv.conf").write_text("search example\nnameserver 192.0.2.2\n")
    script = f"mount --make-rprivate /; mount --bind {tmp_path}/resolv.conf /etc/resolv.conf; exec sleep 60"
    with pods[1].entered():
        process = subprocess.Popen(["unshare", "--mount", "sh", "-ec", script])
    resolvers = Path(f"/proc/{process.pid}/root/etc/resolv.conf")
    try:
        assert eventually(lambda: "192.0.2.2" in resolvers.read_text(), within_s=50)
        (path,) = [one for one in node.test(pods[1].name)["paths"] if one["path"] == "dns"]
        with sockets.open_socket(node.client, "udp", "192.0.2.2", 53) as server:
            threading.Thread(target=_refuse, args=(server,)).start()
            (refused,) = [one for one in node.test(pods[1].name)["paths"] if one["path"] == "dns"]
    finally:
        process.kill()
        process.wait()
    assert (path["state"], path["destination"]) == ("lost", "192.0.2.2")
    assert path["suspect"]["name"] == "no-answer", path
    assert refused["state"] in _WHOLE, refused


def _refuse(server: socket.socket) -> None:
    """Answers one query with REFUSED and nothing else, the shortest answer (RFC 1035)."""
    query, client = server.recvfrom(512)
    server.sendto(query[:2] + b"\x81\x05" + query[4:], client)


@pytest.mark.needs("ifb", "tbf")
def test_limits(node, new_sandbox):
    """A rate limit that holds is ok, and one whose queueing discipline was deleted is wrong."""
    pod = new_sandbox()
    rate = {"ingressRate": 20_000_000, "ingressBurst": 2_000_000, "egressRate": 20_000_000, "egressBurst": 2_000_000}
    veth = node.attach_pod(pod, limits=rate)
    states = {one["path"]: one["state"] for one in node.test(pod.name, "--limits")["paths"]}
    assert (states["limit-receives"], states["limit-sends"]) == ("ok", "ok")
    node.host.run("tc", "qdisc", "del", "dev", veth, "root")
    document = node.test(pod.name, "--limits")
    (path,) = [one for one in document["paths"] if one["path"] == "limit-receives"]
    assert path["state"] == "wrong", path
    assert path["suspect"]["name"] == "limit"
    assert "the limit is 20 Mbit/s" in path["suspect"]["text"]


def _snapshot(node: PacketNode, *pods: Namespace) -> dict[str, object]:
    """Returns the state of node and pods, without neighbour entries, which every packet creates."""
    return {each.name: netstate.state(each, netfilter=True) for each in (node.host, *pods)}


@pytest.mark.long
def test_node_is_as_before_after_a_signal(node, pods):
    """A test that a signal ends leaves nothing on the node: no interface, address, route or rule."""
    drop = "{ type filter hook forward priority 5; policy drop; }"
    node.host.run("sh", "-ec", f"nft add table inet x; nft add chain inet x f '{drop}'")
    before = _snapshot(node, *pods)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = node.start("test", pods[1].name, "--every", "0.05")
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.3)  # it sends, traces, or creates the outside
            process.send_signal(number)
            process.wait(50)
        finally:
            process.kill()
            process.communicate()
        assert eventually(lambda: _snapshot(node, *pods) == before, within_s=50)


@pytest.mark.long
def test_node_is_as_before_a_test(node, pods):
    """A test that traces losses leaves no interface, address, route, rule or tracked flow on the node."""
    node.host.ip("route", "add", "blackhole", "10.22.0.2")
    before, neighbours = _snapshot(node, *pods), [_list_neighbours(each) for each in (node.host, *pods)]
    assert "lost" in {one["state"] for one in node.test(pods[0].name)["paths"]}
    assert _snapshot(node, *pods) == before
    table = Path("/proc/self/net/nf_conntrack")  # some kernels lack it
    with node.host.entered():
        tracked = table.read_text().splitlines() if table.exists() else []
    assert not [line for line in tracked if " tcp " in line or " udp " in line]  # echoes expire within seconds
    assert [_list_neighbours(each) for each in (node.host, *pods)] == neighbours


def _list_neighbours(namespace: Namespace) -> set[tuple[str, str]]:
    """Returns the neighbours of a namespace, without link-local ones, which the kernel adds by itself."""
    entries = json.loads(namespace.ip("-j", "neighbour"))
    return {(one["dst"], one["dev"]) for one in entries if not one["dst"].startswith("fe80:")}


def test_refusals(node, pods):
    """A pod that does not exist, an invalid destination and invalid options are refused with one message."""
    for arguments, status, words in (
        (("test", "nothing"), 3, 'no running pod of this node is called "nothing"'),
        (("trace", pods[0].name, "nothing:80"), 3, 'no running pod of this node is called "nothing"'),
        (("trace", pods[0].name, "10.0.0.1:99999"), 2, "is not a destination"),
        (("test", "--timeout", "0"), 2, "is not a number of seconds"),
        (("test", "--address", "example.org"), 2, "is not an IP address"),
    ):
        done = node.podwire(*arguments)
        assert done.returncode == status, done
        assert words in done.stderr
        assert "Traceback" not in done.stderr
