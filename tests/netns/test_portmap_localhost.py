"""Host ports at 127.0.0.1, and the guard that drops packets of pods for the node's loopback."""

import socket
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from cni.errors import CniError
from kernel import route
from kernel.netfilter import nft
from kernel.netfilter.iptables_program import UnusableError
from kernel.rtnl import Socket
from plugins.portmap import localhost
from plugins.portmap.conf import HostPorts, PortMapping
from tests.support.netstate import iptables_rules, nft_rules, state
from tests.support.sockets import PORT, open_socket

SETTING = "net/ipv4/conf/cni0/route_localnet"
POD, BRIDGE_RANGE = ip_interface("10.22.0.2/16"), "10.22.0.1/16"
NFT_GUARD = 'iifname "cni0" ip daddr 127.0.0.0/8 drop comment "cni0: only this host reaches its 127.0.0.0/8'
NO_NFTABLES = nft.UnavailableError("open a netfilter socket", 93)


def host_ports(address=POD, **keys):
    """Returns the host ports of a pod with one TCP host port."""
    return replace(HostPorts("net", "cid", "eth0", (PortMapping(8080, 80, "tcp"),), {address.version: address}), **keys)


def refuse(*_):
    """Raises the error of a kernel without nftables, in place of nft.open_socket."""
    raise NO_NFTABLES


def guards(host):
    """Returns the guards of both packet filters, one line for each."""
    return [line.strip() for line in (*nft_rules(host), *iptables_rules(host)) if "127.0.0.0/8" in line]


def iptables_guards(host):
    return [line for line in iptables_rules(host) if line.startswith("-A PREROUTING -d 127.0.0.0/8 -i cni0 -m comment")]


def send_forged_packet(pod, result):
    """Sends a datagram for the node's 127.0.0.1 from a pod to the bridge's MAC address, whatever the pod's routes."""
    bridge, _, container_veth = (interface["mac"] for interface in result["interfaces"])
    with pod.entered():
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with wire:
        wire.bind(("eth0", 0))
        ip = IP(src=str(POD.ip), dst="127.0.0.1") / UDP(dport=PORT) / Raw(b"forged")
        wire.send(bytes(Ether(src=container_veth, dst=bridge) / ip))


def receives_forged_packet(datagrams, within_s=0.5):
    """Returns whether the forged datagram arrives in time."""
    datagrams.settimeout(within_s)
    try:
        return datagrams.recv(99) == b"forged"
    except TimeoutError:
        return False


@pytest.fixture
def bridge(host):
    """A bridge with an address, as the bridge plugin leaves it."""
    host.ip("link", "add", "cni0", "type", "bridge")
    host.ip("addr", "add", BRIDGE_RANGE, "dev", "cni0")
    host.ip("link", "set", "cni0", "up")
    with host.entered():
        yield host


@pytest.mark.parametrize("nftables", [pytest.param(True, marks=pytest.mark.needs("nft_nat")), False])
def test_pod_does_not_reach_the_loopback(published, sandbox, nftables, monkeypatch):
    """A pod's packet for 127.0.0.1 reaches the node's loopback with route_localnet only, and not with the guard."""
    result = published.bridge.add(sandbox)
    if not nftables:
        monkeypatch.setattr("kernel.netfilter.nft.open_socket", refuse)
    with open_socket(published.host, "udp", "127.0.0.1", PORT) as loopback:
        send_forged_packet(sandbox, result)
        assert not receives_forged_packet(loopback)
        published.host.set_sysctl(SETTING, "1")
        send_forged_packet(sandbox, result)
        assert receives_forged_packet(loopback, within_s=30)
        published.host.set_sysctl(SETTING, "0")
        with published.host.entered():
            localhost.ensure(host_ports())
        assert published.host.sysctl(SETTING) == "1"
        send_forged_packet(sandbox, result)
        assert not receives_forged_packet(loopback)


@pytest.mark.needs("nft_nat")
def test_guard_is_created_once(bridge):
    """ADD of a second pod changes nothing if the guard exists, and creates it if it is missing."""
    localhost.ensure(host_ports())
    first = state(bridge, netfilter=True)
    (line,) = guards(bridge)
    assert line.startswith(NFT_GUARD)
    localhost.ensure(host_ports())
    assert state(bridge, netfilter=True) == first
    bridge.run("nft", "flush", "chain", "ip", "cni_hostport", "localnet")
    localhost.ensure(host_ports())
    assert len(guards(bridge)) == 1


def test_interface_of_the_reference_plugin_is_guarded_without_nftables(bridge, monkeypatch):
    """Without nftables ADD creates the guard in iptables, too, if route_localnet is enabled but mangle is missing."""
    bridge.set_sysctl(SETTING, "1")
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refuse)
    monkeypatch.setattr("kernel.netfilter.iptables.get_missing_chains", lambda *arguments: {4: {"PREROUTING"}})
    localhost.ensure(host_ports())
    assert len(iptables_guards(bridge)) == 1


def test_guard_without_nftables(bridge, monkeypatch, capsys):
    """Without nftables the guard is a rule of iptables, which ADD runs only if route_localnet is disabled."""
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refuse)
    localhost.ensure(host_ports())
    assert len(iptables_guards(bridge)) == 1
    runs = []

    def read(*arguments):
        runs.append(arguments)
        return {}

    monkeypatch.setattr("kernel.netfilter.iptables.read", read)
    localhost.ensure(host_ports())
    assert runs == []
    monkeypatch.undo()
    localhost.check(host_ports())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refuse)
    bridge.set_sysctl(SETTING, "0")
    localhost.ensure(host_ports())
    assert len(iptables_guards(bridge)) == 1


@pytest.mark.parametrize("nftables", [pytest.param(True, marks=pytest.mark.needs("nft_nat")), False])
def test_add_removes_no_guard(bridge, nftables, monkeypatch):
    """ADD creates the guard of its interface and deletes no other guard, so a failed ADD has nothing to restore."""
    if not nftables:
        monkeypatch.setattr("kernel.netfilter.nft.open_socket", refuse)
    localhost.ensure(host_ports())
    bridge.ip("link", "add", "veth0", "type", "veth", "peer", "peer0")
    bridge.ip("link", "set", "veth0", "up")
    bridge.ip("route", "add", "10.99.0.9", "dev", "veth0")
    bridge.ip("link", "set", "cni0", "down")  # before Linux 6.2 an interface that is up keeps its name
    bridge.ip("link", "set", "cni0", "name", "gone")
    localhost.ensure(host_ports(ip_interface("10.99.0.9/32")))
    text = "\n".join(nft_rules(bridge) if nftables else iptables_rules(bridge))
    assert [name in text for name in ("cni0", "veth0")] == [True, True]


@pytest.mark.needs("nft_nat")
def test_gc_keeps_rules_of_other_programs(bridge):
    """GC deletes the guards of missing interfaces, and no other rule of the chain."""
    localhost.ensure(host_ports())
    bridge.run("nft", 'add rule ip cni_hostport localnet iifname gone ip daddr 127.0.0.1 drop comment "mine: own"')
    bridge.ip("link", "set", "cni0", "name", "other")
    with nft.open_socket() as socket:
        localhost.gc(socket)
    assert [name in "\n".join(nft_rules(bridge)) for name in ("cni0", "gone")] == [False, True]


UNPUBLISHED = {
    "snat off": host_ports(snat=False),
    "an IPv6 pod": host_ports(ip_interface("fd00:22::2/64")),
    "no mapping for IPv4": host_ports(mappings=(PortMapping(1, 1, "tcp", ip_address("::1")),)),
    "no route": host_ports(ip_interface("10.99.0.9/24")),
    "the node's own address": host_ports(ip_interface(BRIDGE_RANGE)),
}


@pytest.mark.parametrize("ports", UNPUBLISHED.values(), ids=UNPUBLISHED)
def test_localhost_is_not_published(bridge, ports):
    """Without an IPv4 mapping, "snat" or a route, ADD enables no sysctl and creates no guard."""
    has_nftables = "ok" in bridge.run("sh", "-c", "nft -c add table ip any 2>&1 && echo ok", check=False)
    before = state(bridge, netfilter=has_nftables)
    localhost.ensure(ports)
    localhost.check(ports)
    assert state(bridge, netfilter=has_nftables) == before
    assert bridge.run("sh", "-c", "sort -u /proc/sys/net/ipv4/conf/*/route_localnet") == "0\n"


def test_check(bridge, capsys):
    """CHECK requires route_localnet of the interface or of all, and reports a missing guard on stderr only."""
    with pytest.raises(CniError) as caught:
        localhost.check(host_ports())
    assert caught.value.msg == "127.0.0.1 is not forwarded to the pod: net/ipv4/conf/cni0/route_localnet is off"
    assert caught.value.details == "podwire repair creates the guard of 127.0.0.0/8, then enables the sysctl"
    for interface in ("cni0", "all"):
        bridge.set_sysctl(f"net/ipv4/conf/{interface}/route_localnet", "1")
        localhost.check(host_ports())
        stderr = capsys.readouterr().err
        assert stderr.startswith("portmap: the guard of cni0 is missing: packets for 127.0.0.0/8")
        bridge.set_sysctl(f"net/ipv4/conf/{interface}/route_localnet", "0")
    localhost.ensure(host_ports())
    localhost.check(host_ports())
    assert capsys.readouterr().err == ""


def test_add_without_nftables_and_iptables(bridge, monkeypatch):
    """If no guard can be created, route_localnet stays disabled, and the fix names "snat"."""
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refuse)

    def unusable(*_):
        raise UnusableError(999, "iptables-restore is not installed", "install iptables")

    monkeypatch.setattr("kernel.netfilter.iptables.read", unusable)
    with pytest.raises(CniError) as caught:
        localhost.ensure(host_ports())
    assert caught.value.msg == "unable to enable route_localnet: iptables-restore is not installed"
    assert caught.value.details.startswith('install iptables; or set "snat" to false')
    assert bridge.sysctl(SETTING) == "0"


def test_interface_of_the_route_to_an_address(bridge):
    """The route uses the bridge, or the loopback for the node's own address, or does not exist."""
    with Socket() as sock:
        names = [
            route.get_interface_to(sock, ip_address(ip))
            for ip in ("10.22.9.9", "10.22.0.1", "10.99.0.1", "2001:db8::1")
        ]
    assert [link and link.name for link in names] == ["cni0", "lo", None, None]


def test_local_networks(bridge):
    """Local networks are the node's addresses, 127.0.0.0/8, and local routes of the administrator."""
    bridge.ip("route", "add", "local", "198.51.100.0/24", "dev", "lo")
    with Socket() as sock:
        networks = {str(network) for network in route.list_local_networks(sock, 4)}
    assert networks == {"127.0.0.0/8", "127.0.0.1/32", "10.22.0.1/32", "198.51.100.0/24"}
