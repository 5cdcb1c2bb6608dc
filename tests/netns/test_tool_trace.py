"""`podwire trace` names the object that loses a packet, with faults injected into a node with two pods."""

import os
import socket
import subprocess
import tomllib

import pytest

from tests.support.binaries import ROOT
from tests.support.packet_node import BRIDGE, PacketNode

NFTABLES = pytest.mark.needs("nft_nat", "nft_inet")

FAULTS = tomllib.loads((ROOT / "tests" / "data" / "trace_faults.toml").read_text())


@pytest.fixture
def node(host, new_sandbox, tmp_path):
    """A node with an uplink."""
    return PacketNode(host, tmp_path, new_sandbox())


@NFTABLES
@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=pytest.mark.needs(*one.get("needs", ())), id=name) for name, one in FAULTS.items()],
)
def test_suspect(node, new_sandbox, fault):
    """The suspect is the injected fault, and nothing else."""
    web, client = new_sandbox(), new_sandbox()
    names = {"webveth": node.attach_pod(web, ports=True), "clientveth": node.attach_pod(client)}
    names |= {"web": web.name, "client": client.name, "far": node.client.name}
    node.host.run("sh", "-ec", fault["shell"].format(**names))
    trace = node.trace(*(word.format(**names) for word in fault["packet"]))
    assert trace["outcome"] == "lost", trace
    suspect = trace["suspect"]
    assert suspect["name"] == fault["suspect"], suspect
    for word in fault["words"]:
        assert word.format(**names) in suspect["text"], suspect
    assert suspect["owner"] == fault.get("owner", ""), suspect


@NFTABLES
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
    assert done.stdout.splitlines()[-1] == "answered: the answer came back"


@NFTABLES
@pytest.mark.needs("macvlan")
def test_way_of_a_packet_past_the_node(node, new_sandbox):
    """Packets of macvlan leave by the master, without a decision of the node's routing."""
    ipam = {"type": "static", "addresses": [{"address": "192.0.2.9/24"}]}
    plugins = [{"type": "macvlan", "master": "uplink", "ipam": ipam}]
    pod = new_sandbox()
    node.attach(node.add_network({"cniVersion": "1.0.0", "name": "lan", "plugins": plugins}), pod)
    trace = node.trace(pod.name, "192.0.2.2")
    steps = [hop["step"] for hop in trace["hops"] if hop["place"] == "node"]
    assert (trace["outcome"], steps) == ("answered", ["out", "answer in"])


@NFTABLES
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


@NFTABLES
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


WITHOUT_VLAN = "ip link set {bridge} type bridge vlan_filtering 1; bridge vlan del dev {veth} vid 1"


@pytest.mark.needs("vlan_filtering")
@pytest.mark.parametrize(
    ("shell", "word"),
    [("bridge vlan add dev {veth} vid 7 pvid untagged", "VLAN 7"), ("true", "{veth}: no PVID")],
    ids=["a port of another VLAN", "a port without PVID"],
)
def test_suspect_is_a_vlan(node, new_sandbox, shell, word):
    """The suspect is the VLAN of a port, also on a kernel without nftables' inet family."""
    server, client = new_sandbox(), new_sandbox()
    node.attach_pod(server, ipMasq=False)
    veth = node.attach_pod(client, ipMasq=False)
    node.host.run("sh", "-ec", f"{WITHOUT_VLAN}; {shell}".format(bridge=BRIDGE, veth=veth))
    trace = node.trace(client.name, f"{server.name}:80")
    assert (trace["outcome"], trace["suspect"]["name"]) == ("lost", "vlan"), trace
    assert all(part.format(veth=veth) in trace["suspect"]["text"] for part in word.split(": ")), trace
