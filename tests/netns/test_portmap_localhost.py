"""portmap's way from 127.0.0.1 to a pod, and the guard that keeps the pods from the node's loopback."""

import socket
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from cni.errors import CniError
from kernel import route
from kernel.netfilter import iptables, nft
from kernel.rtnl import Socket
from plugins.portmap import localhost
from plugins.portmap.spec import HostPorts, PortMapping
from tests.support.netstate import iptables_rules, nft_rules, state
from tests.support.publishing import GATEWAY
from tests.support.sockets import PORT, Reached, call, open_socket, service

SETTING = "net/ipv4/conf/cni0/route_localnet"
POD, BRIDGE_RANGE = ip_interface("10.22.0.2/16"), "10.22.0.1/16"
NFT_GUARD = 'iifname "cni0" ip daddr 127.0.0.0/8 drop comment "cni0: only this host reaches its 127.0.0.0/8'
IPTABLES_GUARD = "-A PREROUTING -d 127.0.0.0/8 -i cni0 -m comment --comment"
NO_NFTABLES = nft.UnavailableError("open a netfilter socket", 93)


def wanted(address=POD, **keys):
    """Returns what is wanted of one pod with a TCP host port."""
    return replace(HostPorts("net", "cid", "eth0", (PortMapping(8080, 80, "tcp"),), {address.version: address}), **keys)


def refused(*_):
    """Stands for a kernel without nftables."""
    raise NO_NFTABLES


def guards(host):
    """Returns the guards there are, of both kinds, one line for each."""
    lines = (*nft_rules(host), *iptables_rules(host)) if nft_works(host) else iptables_rules(host)
    return [line.strip() for line in lines if "127.0.0.0/8" in line]


def nft_works(host):
    """Tells whether the kernel has nftables' family ip, in which iptables-nft's rules are shown as well."""
    return "ok" in host.run("sh", "-c", "nft -c add table ip any 2>&1 && echo ok", check=False)


def forged(pod, result):
    """Sends a datagram for the node's 127.0.0.1 from a pod, past its own routes, to the bridge's MAC."""
    bridge, _, own = (interface["mac"] for interface in result["interfaces"])
    with pod.entered():
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with wire:
        wire.bind(("eth0", 0))
        packet = Ether(src=own, dst=bridge) / IP(src=str(POD.ip), dst="127.0.0.1") / UDP(dport=PORT) / Raw(b"forged")
        wire.send(bytes(packet))


def hears(own):
    """Tells whether a datagram arrives within a moment."""
    own.settimeout(0.5)
    try:
        return own.recv(99) == b"forged"
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
def test_a_pod_does_not_reach_the_loopback(published, sandbox, nftables, monkeypatch):
    """A pod's packet for 127.0.0.1 reaches the node's loopback with the setting alone, and not with the guard."""
    result = published.bridge.add(sandbox)
    if not nftables:
        monkeypatch.setattr("kernel.netfilter.nft.open_socket", refused)
    with open_socket(published.host, "udp", "127.0.0.1", PORT) as loopback:
        forged(sandbox, result)
        assert not hears(loopback)
        published.host.set_sysctl(SETTING, "1")
        forged(sandbox, result)
        assert hears(loopback)
        published.host.set_sysctl(SETTING, "0")
        with published.host.entered():
            localhost.ensure(wanted())
        assert published.host.sysctl(SETTING) == "1"
        forged(sandbox, result)
        assert not hears(loopback)


@pytest.mark.parametrize("backend", ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))])
def test_localhost_is_served_behind_the_guard(published, sandbox, backend):
    """At the same time 127.0.0.1:hostPort leads to the pod, while the pod does not reach the node's loopback."""
    result = published.having(backend=backend).add(sandbox, "8080:80/udp", "8080:80")
    with (
        open_socket(published.host, "udp", "127.0.0.1", PORT) as loopback,
        service(sandbox, "udp", "0.0.0.0", name="pod") as udp,
        service(sandbox, "tcp", "0.0.0.0", name="pod") as tcp,
    ):
        for protocol in ("udp", "tcp"):
            found = call([udp, tcp], published.host, protocol, "127.0.0.1", 8080)
            assert found == Reached("pod", GATEWAY)
        forged(sandbox, result)
        assert not hears(loopback)
    assert len(guards(published.host)) == 1


@pytest.mark.needs("nft_nat")
def test_the_guard_is_written_once(bridge):
    """Whoever comes next finds the guard and writes nothing."""
    localhost.ensure(wanted())
    first = state(bridge, netfilter=True)
    (line,) = guards(bridge)
    assert line.startswith(NFT_GUARD)
    localhost.ensure(wanted())
    assert state(bridge, netfilter=True) == first


@pytest.mark.needs("nft_nat")
def test_the_guard_is_mended(bridge):
    """A guard that somebody took away comes back with the next pod, although the setting is on."""
    localhost.ensure(wanted())
    bridge.run("nft", "flush", "chain", "ip", "cni_hostport", "localnet")
    localhost.ensure(wanted())
    assert len(guards(bridge)) == 1


def test_what_the_reference_opened_is_guarded_without_nftables(bridge, monkeypatch):
    """Where the setting is on already, and there is no table in which a guard could be, it is made by iptables."""
    bridge.set_sysctl(SETTING, "1")
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refused)
    monkeypatch.setattr("kernel.netfilter.iptables.get_candidate_families", lambda *how: set())
    localhost.ensure(wanted())
    assert [line for line in iptables_rules(bridge) if line.startswith(IPTABLES_GUARD)] != []


def test_without_nftables_the_guard_is_made_by_iptables(bridge, monkeypatch):
    """Where the kernel has no nftables, iptables drops the packets, and is run only when the setting is turned on."""
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refused)
    localhost.ensure(wanted())
    assert [line for line in iptables_rules(bridge) if line.startswith(IPTABLES_GUARD)] != []
    runs = []
    monkeypatch.setattr("kernel.netfilter.iptables.read", lambda *how: runs.append(how) or {})
    localhost.ensure(wanted())
    assert runs == []
    monkeypatch.undo()
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refused)
    bridge.set_sysctl(SETTING, "0")
    localhost.ensure(wanted())
    assert len([line for line in iptables_rules(bridge) if line.startswith(IPTABLES_GUARD)]) == 1


@pytest.mark.parametrize("nftables", [pytest.param(True, marks=pytest.mark.needs("nft_nat")), False])
def test_add_removes_no_guard(bridge, nftables, monkeypatch):
    """ADD adds the guard of its own interface, and removes none: what it has not removed it need not restore."""
    if not nftables:
        monkeypatch.setattr("kernel.netfilter.nft.open_socket", refused)
    localhost.ensure(wanted())
    bridge.ip("link", "add", "veth0", "type", "veth", "peer", "peer0")
    bridge.ip("link", "set", "veth0", "up")
    bridge.ip("route", "add", "10.99.0.9", "dev", "veth0")
    bridge.ip("link", "set", "cni0", "down")  # before Linux 6.2 an interface that is up keeps its name
    bridge.ip("link", "set", "cni0", "name", "gone")
    localhost.ensure(wanted(ip_interface("10.99.0.9/32")))
    text = "\n".join(nft_rules(bridge) if nftables else iptables_rules(bridge))
    assert [name in text for name in ("cni0", "veth0")] == [True, True]


@pytest.mark.needs("nft_nat")
def test_gc_leaves_rules_of_others(bridge):
    """GC removes the guards of interfaces that are gone, and no rule that somebody else has put there."""
    localhost.ensure(wanted())
    bridge.run("nft", 'add rule ip cni_hostport localnet iifname gone ip daddr 127.0.0.1 drop comment "mine: own"')
    bridge.ip("link", "set", "cni0", "name", "other")
    with nft.open_socket() as socket:
        localhost.gc(socket)
    assert [name in "\n".join(nft_rules(bridge)) for name in ("cni0", "gone")] == [False, True]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("snat off", wanted(snat=False)),
        ("an IPv6 pod", wanted(ip_interface("fd00:22::2/64"))),
        (
            "no mapping for IPv4",
            HostPorts("net", "cid", "eth0", (PortMapping(1, 1, "tcp", ip_address("::1")),), {4: POD}),
        ),
        ("no route", wanted(ip_interface("10.99.0.9/24"))),
        ("the node's own address", wanted(ip_interface(BRIDGE_RANGE))),
    ],
)
def test_where_localhost_is_not_served(bridge, name, how):
    """Without a need there is no setting and no rule, least of all one for the loopback itself."""
    before = state(bridge, netfilter=nft_works(bridge)), settings(bridge)
    localhost.ensure(how)
    localhost.check(how)
    assert (state(bridge, netfilter=nft_works(bridge)), settings(bridge)) == before


def settings(host):
    """Returns route_localnet of all interfaces."""
    return host.run("sh", "-c", "grep . /proc/sys/net/ipv4/conf/*/route_localnet")


def test_check(bridge, capsys):
    """CHECK wants the setting, on the interface or for all, and only tells that a guard is missing."""
    with pytest.raises(CniError) as caught:
        localhost.check(wanted())
    assert caught.value.msg == "127.0.0.1 is not forwarded to the pod: net/ipv4/conf/cni0/route_localnet is off"
    assert caught.value.details == "podwire repair creates the guard of 127.0.0.0/8 and enables it"
    for interface in ("cni0", "all"):
        bridge.set_sysctl(f"net/ipv4/conf/{interface}/route_localnet", "1")
        localhost.check(wanted())
        said = capsys.readouterr().err
        assert said.startswith("podwire: the guard of cni0 is missing: packets for 127.0.0.0/8")
        bridge.set_sysctl(f"net/ipv4/conf/{interface}/route_localnet", "0")
    localhost.ensure(wanted())
    localhost.check(wanted())
    assert capsys.readouterr().err == ""


def test_a_pod_of_the_reference_passes(published, reference, sandbox):
    """CHECK of a pod whose host ports the reference made succeeds, and tells that there is no guard."""
    result = replace(published, bin_dir=reference).add(sandbox, "8080:80")
    outcome = published.portmap("CHECK", sandbox, ("8080:80",), result)
    assert (outcome.status, outcome.stdout) == (0, b"")
    assert "the guard of cni0 is missing" in outcome.stderr


def test_check_finds_the_guard_of_iptables(bridge, monkeypatch, capsys):
    """A guard that iptables made is found, too."""
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refused)
    localhost.ensure(wanted())
    monkeypatch.undo()
    localhost.check(wanted())
    assert capsys.readouterr().err == ""


def test_neither_nftables_nor_iptables(bridge, monkeypatch):
    """Without a guard the setting stays off, and the error says what to do without localhost."""
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refused)

    def unusable(*_):
        raise iptables.UnusableError(999, "iptables-restore is not installed", "install iptables")

    monkeypatch.setattr("kernel.netfilter.iptables.read", unusable)
    with pytest.raises(CniError) as caught:
        localhost.ensure(wanted())
    assert caught.value.msg == "unable to enable route_localnet: iptables-restore is not installed"
    assert caught.value.details.startswith('install iptables; or set "snat" to false')
    assert bridge.sysctl(SETTING) == "0"


def test_the_interface_to_an_address(bridge):
    """The route leads to the bridge, to the loopback for the node's own address, to nothing elsewhere."""
    with Socket() as sock:
        names = [
            route.get_interface_to(sock, ip_address(ip))
            for ip in ("10.22.9.9", "10.22.0.1", "10.99.0.1", "2001:db8::1")
        ]
    assert [link and link.name for link in names] == ["cni0", "lo", None, None]


def test_what_is_local(bridge):
    """The node's addresses are local, 127.0.0.0/8, and what the administrator declares so."""
    bridge.ip("route", "add", "local", "198.51.100.0/24", "dev", "lo")
    with Socket() as sock:
        found = {str(network) for network in route.list_local_networks(sock, 4)}
    assert found == {"127.0.0.0/8", "127.0.0.1/32", "10.22.0.1/32", "198.51.100.0/24"}
