"""`podwire trace` names the object that loses a packet, with faults injected into a node with two pods."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import NamedTuple

import pytest

from tests.support.packet_node import BRIDGE, PacketNode

pytestmark = pytest.mark.needs("nft_nat", "nft_inet")

WEB, CLIENT = "{web}:80", "{client}"  # the pod with host ports, and the other one


class Fault(NamedTuple):
    """A fault: a shell script for the node, the packet (source, destination), and what the suspect must say.

    {web} and {client} are the namespaces of the pods, {webveth} and {clientveth} their host veths.
    """

    shell: str
    packet: tuple[str, str]
    name: str
    words: tuple[str, ...]
    owner: str = ""
    needs: tuple[str, ...] = ()


_CLIENT_WEB, _OUT, _PORT = (CLIENT, WEB), (CLIENT, "192.0.2.2"), ("outside", ":8080")
FAULTS = {
    "a rule of nftables drops forwarded packets": Fault(
        "nft add table inet mine; nft add chain inet mine fw '{{ type filter hook forward priority 5; }}';"
        "nft add rule inet mine fw ip saddr 10.22.0.3 counter drop",
        _OUT, "rule", ("inet mine fw", "ip saddr 10.22.0.3 drop"), "unknown",
    ),
    "a policy drops forwarded packets": Fault(
        "nft add table ip fire; nft add chain ip fire fw '{{ type filter hook forward priority 5; policy drop; }}'",
        _PORT, "rule", ("policy", "ip fire fw"), "unknown",
    ),
    "ufw's chain drops": Fault(
        "iptables-nft -N ufw-user-forward; iptables-nft -A FORWARD -j ufw-user-forward;"
        "iptables-nft -A ufw-user-forward -s 10.22.0.0/24 -j DROP",
        _OUT, "rule", ("ip filter ufw-user-forward", "drop"), "ufw", ("iptables_nft_nat",),
    ),
    "Docker rejects": Fault(
        "iptables-nft -N DOCKER-USER; iptables-nft -A FORWARD -j DOCKER-USER; iptables-nft -A DOCKER-USER -j REJECT",
        _OUT, "rule", ("ip filter DOCKER-USER", "REJECT"), "Docker", ("iptables_nft_nat",),
    ),
    "iptables-legacy drops": Fault(
        "iptables-legacy -A FORWARD -d 192.0.2.2 -j DROP",
        _OUT, "rule", ("iptables-legacy filter FORWARD", "-d 192.0.2.2/32 -j DROP"), "unknown",
        ("iptables_legacy_nat",),
    ),
    "a rule drops frames of a bridge": Fault(
        "nft add table bridge l2; nft add chain bridge l2 fw '{{ type filter hook forward priority 0; }}';"
        "nft add rule bridge l2 fw ip daddr 10.22.0.2 drop",
        _CLIENT_WEB, "rule", ("bridge l2 fw", "ip daddr 10.22.0.2 drop"), "unknown", ("nft_bridge",),
    ),
    "a rule in the pod drops": Fault(
        "ip netns exec {web} nft 'add table ip pod; add chain ip pod in {{ type filter hook input priority 0; }};"
        "add rule ip pod in tcp dport 80 drop'",
        _CLIENT_WEB, "rule", ("ip pod in", "tcp dport 80 drop"), "unknown",
    ),
    "a rule drops the answer": Fault(
        "nft add table ip back; nft add chain ip back fw '{{ type filter hook forward priority 5; }}';"
        "nft add rule ip back fw tcp sport 80 drop",
        _PORT, "rule", ("ip back fw", "tcp sport 80 drop"), "unknown",
    ),
    "a rule of the raw table drops": Fault(
        "nft add table ip early; nft add chain ip early pre '{{ type filter hook prerouting priority -300; }}';"
        "nft add rule ip early pre tcp dport 8080 drop",
        _PORT, "rule", ("ip early pre", "tcp dport 8080 drop"), "unknown",
    ),
    "a foreign translation": Fault(
        "nft add table ip other; nft add chain ip other pre '{{ type nat hook prerouting priority -150; }}';"
        "nft add rule ip other pre tcp dport 8080 dnat to 192.0.2.99:80",
        _PORT, "translated", ("ip other pre", "192.0.2.99"), "unknown",
    ),
    "a blackhole route": Fault("ip route add blackhole 10.22.0.2", _PORT, "route", ("blackhole 10.22.0.2",)),
    "a wrong route to the pod": Fault("ip route add 10.22.0.2 dev uplink", _PORT, "route", ("leave by uplink", BRIDGE)),
    "a policy rule prohibits": Fault(
        "ip rule add from 10.22.0.3 prohibit pref 50", _OUT, "policy-rule", ("50:", "from 10.22.0.3", "prohibit")
    ),
    "a policy rule looks up a table with a blackhole": Fault(
        "ip route add blackhole default table 77; ip rule add iif cnip0 lookup 77 pref 60",
        _OUT, "route", ("blackhole default table 77", "60:", "iif cnip0"),
    ),
    "a policy rule for a mark": Fault(
        "nft add table ip marks; nft add chain ip marks pre '{{ type filter hook prerouting priority -150; }}';"
        "nft add rule ip marks pre ip saddr 10.22.0.3 meta mark set 0x77; ip rule add fwmark 0x77 blackhole pref 70",
        _OUT, "policy-rule", ("70:", "fwmark 0x77", "blackhole"),
    ),
    "no default route": Fault("ip route del default", (CLIENT, "203.0.113.9"), "route", ("203.0.113.9", "no route")),
    "the pod has no default route": Fault(
        "ip -n {client} route del default", _OUT, "route", ("192.0.2.2", "no route")
    ),
    "the pod's gateway is wrong": Fault(
        "ip -n {client} route replace default via 10.22.0.77", _OUT, "gateway", ("10.22.0.77",)
    ),
    "rp_filter": Fault(
        "sysctl -qw net/ipv4/conf/cnip0/rp_filter=1; ip route add 10.22.0.3 dev uplink",
        _OUT, "rp-filter", ("cnip0", "rp_filter is 1"),
    ),
    "forwarding is off": Fault("sysctl -qw net/ipv4/ip_forward=0", _OUT, "forwarding", ("ipv4/conf/cnip0/forwarding",)),
    "forwarding is off at one interface": Fault(
        "sysctl -qw net/ipv4/conf/cnip0/forwarding=0", _OUT, "forwarding", ("ipv4/conf/cnip0/forwarding",)
    ),
    "the pod's neighbour entry of the gateway lies": Fault(
        "ip -n {client} neigh replace 10.22.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud permanent",
        _OUT, "neighbour", ("static", "02:00:00:00:00:99", "10.22.0.1"),
    ),
    "the node's neighbour entry of the pod lies": Fault(
        "ip neigh replace 10.22.0.2 lladdr 02:00:00:00:00:99 dev cnip0 nud permanent",
        _PORT, "neighbour", ("static", "02:00:00:00:00:99", "10.22.0.2"),
    ),
    "isolated ports": Fault(
        "bridge link set dev {webveth} isolated on; bridge link set dev {clientveth} isolated on",
        _CLIENT_WEB, "isolation", ("{webveth}", "{clientveth}"),
    ),
    "a blocked port": Fault("bridge link set dev {webveth} state 0", _PORT, "bridge-port", ("{webveth}", "disabled")),
    "a static forwarding entry": Fault(
        "mac=$(ip netns exec {web} cat /sys/class/net/eth0/address);"
        "bridge fdb replace $mac dev {clientveth} master sticky static",
        _PORT, "forwarding-entry", ("static", "{clientveth}"),
    ),
    "a forwarding entry for the node itself": Fault(
        "bridge fdb replace $(ip netns exec {web} cat /sys/class/net/eth0/address) dev {clientveth} master permanent",
        _PORT, "forwarding-entry", ("node itself", "{clientveth}"),
    ),
    "the source's port left the bridge": Fault(
        "ip link set {clientveth} nomaster", _OUT, "bridge-port", ("{clientveth}", "cnip0")
    ),
    "the port left the bridge": Fault("ip link set {webveth} nomaster", _CLIENT_WEB, "bridge-port", ("{webveth}",)),
    "the pod's interface is down": Fault("ip -n {web} link set eth0 down", _PORT, "link", ("eth0", "down")),
    "the host veth is down": Fault("ip link set {clientveth} down", _OUT, "link", ("{clientveth}", "is down")),
    "the bridge is down": Fault("ip link set cnip0 down", _OUT, "link", ("cnip0", "down")),
    "the pod lost its address": Fault(
        "ip -n {web} addr del 10.22.0.2/24 dev eth0", ("node", "10.22.0.2"), "address", ("10.22.0.2",)
    ),
    "the pod has no way back": Fault(
        "ip -n {web} route del default", ("outside", "10.22.0.2"), "route", ("no route",)
    ),
    "the destination does not answer": Fault(
        "true", (CLIENT, "192.0.2.77:80"), "neighbour-unanswered", ("192.0.2.77",)
    ),
    "the network beyond": Fault(
        "ip neigh replace 192.0.2.77 lladdr 02:00:00:00:00:77 dev uplink",
        (CLIENT, "192.0.2.77:80"), "beyond", ("uplink",),
    ),
}  # fmt: skip


@pytest.fixture
def node(host, new_sandbox, tmp_path):
    """A node with an uplink."""
    return PacketNode(host, tmp_path, new_sandbox())


@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=pytest.mark.needs(*one.needs), id=name) for name, one in FAULTS.items()]
)
def test_suspect(node, new_sandbox, fault):
    """The suspect is the injected fault, and nothing else."""
    web, client = new_sandbox(), new_sandbox()
    names = {"webveth": node.attach_pod(web, ports=True), "clientveth": node.attach_pod(client)}
    names |= {"web": web.name, "client": client.name}
    node.host.run("sh", "-ec", fault.shell.format(**names))
    trace = node.trace(*(word.format(**names) for word in fault.packet))
    assert trace["outcome"] == "lost", trace
    suspect = trace["suspect"]
    assert suspect["name"] == fault.name, suspect
    for word in fault.words:
        assert word.format(**names) in suspect["text"], suspect
    assert suspect["owner"] == fault.owner, suspect


def test_way_of_a_packet(node, new_sandbox):
    """A trace shows each interface, the translation with its rule and owner, the routes, and the answer."""
    web = new_sandbox()
    veth = node.attach_pod(web, ports=True)
    trace = node.trace("outside", ":8080")
    assert (trace["outcome"], trace["suspect"], trace["complete"]) == ("answered", None, True)
    hops = [(hop["place"], hop["step"], hop["object"]) for hop in trace["hops"]]
    seen = ("node", "out", BRIDGE), ("node", "out", veth), (web.name, "in", "eth0"), (web.name, "answer out", "eth0")
    for hop in seen:
        assert hop in hops, trace
    assert ("outside", "answer in", "eth0") in hops
    (translation,) = [hop for hop in trace["hops"] if hop["step"] == "translation"]
    assert translation["owner"] == "podwire"
    assert "192.0.2.1:8080 becomes 10.22.0.2:80 by ip cni_hostport hostports handle" in translation["text"]
    done = node.podwire("trace", "outside", ":8080")
    assert done.stdout.splitlines()[-1] == "answered the answer came back"


def test_program_of_the_pod_answers(node, new_sandbox):
    """Where a program of the pod listens, it answers; without one, and without podwire's socket, nothing is left."""
    web, client = new_sandbox(), new_sandbox()
    node.attach_pod(web)
    node.attach_pod(client)
    with web.entered(), socket.create_server(("", 80)) as server:
        trace = node.trace(client.name, f"{web.name}:80")
        assert trace["outcome"] == "answered"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # the connection was never complete
            server.accept()


def test_tables_of_a_killed_trace_are_removed(node, new_sandbox):
    """The tables that a trace without an owner left are deleted, unless its process still runs."""
    web = new_sandbox()
    node.attach_pod(web)
    process = subprocess.Popen(["true"])
    process.wait()
    for pid in (process.pid, os.getpid()):
        node.host.run("nft", "add", "table", "inet", f"podwire_trace_{pid}")
    assert node.trace(web.name, "gateway")["outcome"] == "answered"
    tables = node.host.run("nft", "list", "tables")
    assert f"podwire_trace_{process.pid}\n" not in tables
    assert f"podwire_trace_{os.getpid()}\n" in tables
