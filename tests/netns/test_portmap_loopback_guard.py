"""The guard of 127.0.0.0/8: it stays while route_localnet is enabled, and is deleted with the pod's interface."""

from dataclasses import replace
from ipaddress import ip_interface

import pytest

from kernel import link
from kernel.errors import KernelError
from kernel.netfilter import nft
from plugins.portmap import localhost, loopback_guard
from plugins.portmap.conf import HostPorts, PortMapping
from tests.netns.conftest import NFT
from tests.support import mount_wrapper, xtables
from tests.support.attaching import host_end
from tests.support.mount_wrapper import HIDING_SYSCTLS
from tests.support.netstate import iptables_rules
from tests.support.publishing import PublishingNetwork

pytestmark = pytest.mark.needs("nft_nat")


@pytest.fixture(params=["nftables", pytest.param("iptables", marks=NFT.marks)])
def ptp(routed, request):
    """A network of ptp and portmap, with each backend; with both the guards are in nftables."""
    return PublishingNetwork(routed, {"backend": request.param})


def guarded_interfaces(host):
    """Returns the interfaces that have a guard."""
    lines = host.run("nft", "list", "chain", "ip", "cni_hostport", "localnet", check=False).splitlines()
    return [line.split('"')[1] for line in lines if "127.0.0.0/8 drop" in line]


def get_route_localnet(host, interface):
    """Returns route_localnet of an interface."""
    return host.sysctl(f"net/ipv4/conf/{interface}/route_localnet")


def run_gc(network, *running):
    """Runs GC of portmap with the running pods as valid attachments."""
    valid = [{"containerID": pod.name, "ifname": "eth0"} for pod in running]
    later = replace(network, bridge=network.bridge.having(cniVersion="1.1.0"))
    keys = {"cni.dev/valid-attachments": valid}
    later.having(**keys).portmap("GC", running[0], ()).assert_silent()


@pytest.mark.parametrize("method", HIDING_SYSCTLS)
@pytest.mark.parametrize("verb", ["ADD", "DEL", "GC"])
def test_verb_without_proc_sys(published, routed, new_sandbox, tmp_path, method, verb):
    """ADD, which fails and publishes no port, DEL and GC that cannot see /proc/sys keep the guard of a bridge."""
    pod, running = new_sandbox(), new_sandbox()
    published.add(running, "8080:80")
    network = routed.having(name="other")
    result = network.add(pod)
    bin_dir = mount_wrapper.install(tmp_path / "hidden", "portmap", HIDING_SYSCTLS[method])
    if verb == "GC":
        run_gc(replace(published, bin_dir=bin_dir), running)
    else:
        outcome = PublishingNetwork(network, bin_dir=bin_dir).portmap(verb, pod, ("8081:80",), result)
        assert outcome.status == (verb == "ADD")
        assert verb == "DEL" or "unable to enable route_localnet" in outcome.error()["msg"]
    assert "8081" not in published.host.run("nft", "list", "ruleset")
    assert "cni0" in guarded_interfaces(published.host)
    assert get_route_localnet(published.host, "cni0") == "1"


def test_guards_stay_if_rtnetlink_fails(published, sandbox, monkeypatch):
    """If rtnetlink cannot report which interfaces exist, every guard stays and the error is raised."""
    published.add(sandbox, "8080:80")

    def refuse(*_):
        raise KernelError("look up an interface", 1)

    monkeypatch.setattr(link, "get", refuse)
    with published.host.entered(), nft.open_socket() as socket, pytest.raises(KernelError):
        loopback_guard.remove(socket)
    assert guarded_interfaces(published.host) == ["cni0"]


def test_deleted_pods_leave_no_guard(ptp, new_sandbox):
    """DEL of a pod with its own host veth disables route_localnet of that veth and deletes only its guard."""
    pods = [new_sandbox() for _ in range(3)]
    results = [ptp.add(pod, f"{8080 + number}:80") for number, pod in enumerate(pods)]
    names = [result["interfaces"][0]["name"] for result in results]
    assert guarded_interfaces(ptp.host) == names
    for number, (pod, result) in enumerate(zip(pods, results, strict=True)):
        ptp.portmap("DEL", pod, (f"{8080 + number}:80",), result).assert_silent()
        assert guarded_interfaces(ptp.host) == names[number + 1 :]
        assert get_route_localnet(ptp.host, names[number]) == "0"
        ptp.bridge.delete(pod, result)


def test_guard_is_deleted_if_prev_result_lists_an_ifb(ptp, sandbox):
    """DEL deletes the guard, too, if a later plugin has added an interface of the host to the result."""
    result = ptp.add(sandbox, "8080:80")
    result["interfaces"].append({"name": "bwp0123456789ab", "mac": "02:00:00:00:00:01"})
    ptp.portmap("DEL", sandbox, ("8080:80",), result).assert_silent()
    assert guarded_interfaces(ptp.host) == []


@pytest.mark.every_case
@pytest.mark.parametrize("verb", ["DEL", "GC"])
def test_stale_guards_are_deleted(ptp, new_sandbox, verb):
    """GC, and DEL of another pod, delete the guard of a pod that is no longer running and had no DEL."""
    stopped, other = new_sandbox(), new_sandbox()
    missing = ptp.add(stopped, "8080:80")["interfaces"][0]["name"]
    result = ptp.add(other, "8081:80")
    ptp.host.ip("link", "delete", missing)
    assert len(guarded_interfaces(ptp.host)) == 2
    _ = run_gc(ptp, other) if verb == "GC" else ptp.delete(other, "8081:80", result=result)
    assert guarded_interfaces(ptp.host) == ([result["interfaces"][0]["name"]] if verb == "GC" else [])


def test_guard_stays_while_route_localnet_is_enabled(ptp, new_sandbox):
    """If route_localnet is enabled for all interfaces, DEL keeps the guard until the interface no longer exists."""
    ptp.host.set_sysctl("net/ipv4/conf/all/route_localnet", "1")
    pods = [new_sandbox() for _ in range(2)]
    results = [ptp.add(pod, f"{8080 + number}:80") for number, pod in enumerate(pods)]
    ptp.delete(pods[0], "8080:80", result=results[0])
    assert guarded_interfaces(ptp.host) == [result["interfaces"][0]["name"] for result in results]
    ptp.delete(pods[1], "8081:80", result=results[1])
    assert guarded_interfaces(ptp.host) == [results[1]["interfaces"][0]["name"]]
    ptp.portmap("DEL", pods[1], ()).assert_silent()
    assert guarded_interfaces(ptp.host) == []


def test_guard_of_a_bridge_stays(published, sandbox):
    """DEL keeps the guard of the bridge, which other pods use."""
    result = published.add(sandbox, "8080:80")
    published.delete(sandbox, "8080:80", result=result)
    assert (guarded_interfaces(published.host), get_route_localnet(published.host, "cni0")) == (["cni0"], "1")
    assert host_end(result) not in guarded_interfaces(published.host)


def test_guard_of_an_interface_that_is_created_again(published, sandbox, monkeypatch):
    """The guard is created again if an interface of the same name appears while the guard is being deleted."""
    published.add(sandbox, "8080:80")
    answers = iter([[None]])
    get = link.get
    monkeypatch.setattr(link, "get", lambda *arguments: next(answers, None) or get(*arguments))
    with published.host.entered(), nft.open_socket() as socket:
        loopback_guard.remove(socket)
    assert guarded_interfaces(published.host) == ["cni0"]


@pytest.fixture
def legacy(host, tmp_path, monkeypatch):
    """A host whose kernel has only iptables-legacy; the test runs in its namespace."""

    def refuse_nftables():
        raise nft.UnavailableError("open a netfilter socket", 93)

    tools = xtables.variant(tmp_path / "tools", "legacy")
    monkeypatch.setenv("PATH", xtables.path(tools)["PATH"])
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refuse_nftables)
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
    """Returns the host ports of a pod with its own host veth."""
    address = ip_interface(f"{ip}/32")
    ports = (PortMapping(8080, 80, "tcp"),)
    return HostPorts("net", "cid", "eth0", ports, {4: address}, host_interfaces=(interface,), host_veth=interface)


@pytest.mark.needs("iptables_legacy_nat")
def test_gc_removes_stale_guards_of_iptables(legacy):
    """GC deletes the guards of missing interfaces from iptables-legacy."""
    host, tools = legacy
    localhost.gc_legacy()
    (line,) = (line for line in iptables_rules(host, f"{tools}/iptables") if "127.0.0.0/8" in line)
    assert " -i veth0 " in line


@pytest.mark.needs("iptables_legacy_nat")
def test_del_removes_the_guard_of_iptables(legacy, sandbox):
    """DEL deletes its guard and stale guards from iptables-legacy."""
    host, tools = legacy
    host.ip("link", "set", "peer-veth0", "netns", sandbox.name)
    localhost.delete_legacy(pod("veth0"))
    assert not any("127.0.0.0/8" in line for line in iptables_rules(host, f"{tools}/iptables"))
    assert get_route_localnet(host, "veth0") == "0"
