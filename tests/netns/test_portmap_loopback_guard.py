"""The guard of 127.0.0.0/8: no verb removes it from an interface that is open, and none stays behind a deleted pod."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_interface

import pytest

from kernel import link
from kernel.errors import KernelError
from kernel.netfilter import nft
from plugins.portmap import localhost, loopback_guard
from plugins.portmap.spec import HostPorts, PortMapping
from tests.netns.conftest import NFT
from tests.support import hidden_sysctls, xtables
from tests.support.attaching import host_end
from tests.support.netstate import iptables_rules
from tests.support.publishing import PublishingNetwork

pytestmark = pytest.mark.needs("nft_nat")


@pytest.fixture(params=["nftables", pytest.param("iptables", marks=NFT.marks)])
def ptp(routed, request):
    """A network of ptp with portmap behind it, with each backend: the guards are in nftables with both."""
    return PublishingNetwork(routed, {"backend": request.param})


def guarded(host):
    """Returns the interfaces whose guards there are."""
    lines = host.run("nft", "list", "chain", "ip", "cni_hostport", "localnet", check=False).splitlines()
    return [line.split('"')[1] for line in lines if "127.0.0.0/8 drop" in line]


def route_localnet_setting(host, interface):
    """Returns route_localnet of an interface."""
    return host.sysctl(f"net/ipv4/conf/{interface}/route_localnet")


def collect(network, *living):
    """Runs GC of portmap with the pods that are still there."""
    valid = [{"containerID": pod.name, "ifname": "eth0"} for pod in living]
    later = replace(network, bridge=network.bridge.having(cniVersion="1.1.0"))
    keys = {"cni.dev/valid-attachments": valid}
    later.having(**keys).portmap("GC", living[0], ()).assert_silent()


@pytest.mark.parametrize("way", hidden_sysctls.METHODS)
def test_gc_without_a_view_of_the_settings(published, sandbox, tmp_path, way):
    """GC that does not see /proc/sys leaves the guard of a running pod's bridge."""
    published.add(sandbox, "8080:80")
    assert (guarded(published.host), route_localnet_setting(published.host, "cni0")) == (["cni0"], "1")
    collect(replace(published, bin_dir=hidden_sysctls.install(tmp_path / "hidden", "portmap", way=way)), sandbox)
    assert (guarded(published.host), route_localnet_setting(published.host, "cni0")) == (["cni0"], "1")


@pytest.mark.parametrize("way", hidden_sysctls.METHODS)
@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_verb_for_another_pod_without_a_view_of_the_settings(published, routed, new_sandbox, tmp_path, way, verb):
    """A failing ADD and a DEL that do not see /proc/sys leave the guard of another pod's bridge."""
    published.add(new_sandbox(), "8080:80")
    pod = new_sandbox()
    result = routed.having(name="other").add(pod)
    other = PublishingNetwork(
        routed.having(name="other"), bin_dir=hidden_sysctls.install(tmp_path / "hidden", "portmap", way=way)
    )
    outcome = other.portmap(verb, pod, ("8081:80",), result)
    if verb == "ADD":
        assert "unable to enable route_localnet" in outcome.error()["msg"]
    else:
        outcome.assert_silent()
    assert "cni0" in guarded(published.host)
    assert route_localnet_setting(published.host, "cni0") == "1"


def test_the_reference_of_what_is_gone_is_rtnetlink(published, sandbox, monkeypatch):
    """Where the kernel does not answer which interfaces there are, every guard stays, and the error is reported."""
    published.add(sandbox, "8080:80")

    def refuse(*_):
        raise KernelError("look up an interface", 1)

    monkeypatch.setattr(link, "get", refuse)
    with published.host.entered(), nft.open_socket() as socket, pytest.raises(KernelError):
        loopback_guard.remove(socket)
    assert guarded(published.host) == ["cni0"]


def test_deleted_pods_leave_no_guard(ptp, new_sandbox):
    """DEL of a pod with an interface of its own closes that interface and removes its guard, and no other."""
    pods = [new_sandbox() for _ in range(3)]
    results = [ptp.add(pod, f"{8080 + number}:80") for number, pod in enumerate(pods)]
    names = [result["interfaces"][0]["name"] for result in results]
    assert guarded(ptp.host) == names
    for number, (pod, result) in enumerate(zip(pods, results, strict=True)):
        ptp.portmap("DEL", pod, (f"{8080 + number}:80",), result).assert_silent()
        assert guarded(ptp.host) == names[number + 1 :]
        assert route_localnet_setting(ptp.host, names[number]) == "0"
        ptp.bridge.delete(pod, result)


def test_the_guard_of_a_pod_with_limits(ptp, sandbox):
    """DEL removes the guard also where a later plugin has listed one more interface of the host in the result."""
    result = ptp.add(sandbox, "8080:80")
    result["interfaces"].append({"name": "bwp0123456789ab", "mac": "02:00:00:00:00:01"})
    ptp.portmap("DEL", sandbox, ("8080:80",), result).assert_silent()
    assert guarded(ptp.host) == []


def test_a_stale_guard_goes_with_the_next_del(ptp, new_sandbox):
    """The guard of a pod that died and never got its DEL goes with the DEL of another pod."""
    dead, other = new_sandbox(), new_sandbox()
    gone = ptp.add(dead, "8080:80")["interfaces"][0]["name"]
    result = ptp.add(other, "8081:80")
    ptp.host.ip("link", "delete", gone)
    assert len(guarded(ptp.host)) == 2
    ptp.delete(other, "8081:80", result=result)
    assert guarded(ptp.host) == []


def test_gc_removes_stale_guards(ptp, new_sandbox):
    """GC removes the guards of interfaces that are gone."""
    dead, living = new_sandbox(), new_sandbox()
    gone = ptp.add(dead, "8080:80")["interfaces"][0]["name"]
    kept = ptp.add(living, "8081:80")["interfaces"][0]["name"]
    ptp.host.ip("link", "delete", gone)
    collect(ptp, living)
    assert guarded(ptp.host) == [kept]


def test_an_interface_that_stays_open_keeps_its_guard(ptp, new_sandbox):
    """With route_localnet on for all interfaces DEL leaves the guard until the interface is gone."""
    ptp.host.set_sysctl("net/ipv4/conf/all/route_localnet", "1")
    pods = [new_sandbox() for _ in range(2)]
    results = [ptp.add(pod, f"{8080 + number}:80") for number, pod in enumerate(pods)]
    ptp.delete(pods[0], "8080:80", result=results[0])
    assert guarded(ptp.host) == [result["interfaces"][0]["name"] for result in results]
    ptp.delete(pods[1], "8081:80", result=results[1])
    assert guarded(ptp.host) == [results[1]["interfaces"][0]["name"]]
    ptp.portmap("DEL", pods[1], ()).assert_silent()
    assert guarded(ptp.host) == []


def test_the_guard_of_a_bridge_outlives_its_pods(published, sandbox):
    """DEL leaves the guard of the bridge, which other pods share."""
    result = published.add(sandbox, "8080:80")
    published.delete(sandbox, "8080:80", result=result)
    assert (guarded(published.host), route_localnet_setting(published.host, "cni0")) == (["cni0"], "1")
    assert host_end(result) not in guarded(published.host)


def test_an_interface_that_comes_back_is_guarded(published, sandbox, monkeypatch):
    """A guard is made again when its interface appears while the guard of its predecessor is removed."""
    published.add(sandbox, "8080:80")
    answers = iter([[None]])
    get = link.get
    monkeypatch.setattr(link, "get", lambda *how: next(answers, None) or get(*how))
    with published.host.entered(), nft.open_socket() as socket:
        loopback_guard.remove(socket)
    assert guarded(published.host) == ["cni0"]


@pytest.fixture
def legacy(host, tmp_path, monkeypatch):
    """The host of a kernel that has iptables-legacy only, entered."""

    def refused():
        raise nft.UnavailableError("open a netfilter socket", 93)

    tools = xtables.variant(tmp_path / "tools", "legacy")
    monkeypatch.setenv("PATH", xtables.path(tools)["PATH"])
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refused)
    for name, ip in (("stale0", "10.99.0.8"), ("veth0", "10.99.0.9")):
        host.ip("link", "add", name, "type", "veth", "peer", f"peer-{name}")
        host.ip("link", "set", name, "up")
        host.ip("route", "add", ip, "dev", name)
        with host.entered():
            localhost.ensure(pod(name, ip))
    host.ip("link", "delete", "stale0")
    with host.entered():
        yield host, tools


def pod(interface, ip="10.99.0.9"):
    """Returns the host ports of a pod behind an interface of its own."""
    address = ip_interface(f"{ip}/32")
    ports = (PortMapping(8080, 80, "tcp"),)
    return HostPorts("net", "cid", "eth0", ports, {4: address}, host_interfaces=(interface,), host_veth=interface)


@pytest.mark.needs("iptables_legacy_nat")
def test_gc_removes_stale_guards_of_iptables(legacy):
    """GC removes the guards that iptables-legacy made of interfaces that are gone."""
    host, tools = legacy
    localhost.gc_legacy()
    (line,) = (line for line in iptables_rules(host, f"{tools}/iptables") if "127.0.0.0/8" in line)
    assert " -i veth0 " in line


@pytest.mark.needs("iptables_legacy_nat")
def test_del_removes_the_guard_of_iptables(legacy, sandbox):
    """DEL removes the guards that iptables-legacy made: its own one, and stale ones."""
    host, tools = legacy
    host.ip("link", "set", "peer-veth0", "netns", sandbox.name)
    localhost.delete_legacy(pod("veth0"))
    assert not any("127.0.0.0/8" in line for line in iptables_rules(host, f"{tools}/iptables"))
    assert route_localnet_setting(host, "veth0") == "0"
