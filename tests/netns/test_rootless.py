"""In the user namespace of an unprivileged user everything works, or the error names what the kernel forbids."""

import json
import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import bandwidth_network, netstate, rootless
from tests.support.attaching import Network, address
from tests.support.bandwidth_network import BOTH, BandwidthNetwork
from tests.support.invocation import run_plugin
from tests.support.namespaces import temporary
from tests.support.processes import output
from tests.support.publishing import CLIENT, GATEWAY, NODE, PublishingNetwork, connect, disable_dad
from tests.support.sockets import Reached, call, open_services

BACKENDS = ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat", "nft_inet"))]
EVERYWHERE = ("0.0.0.0", "::")
PORTS = ("8080:80", "8080:80/udp")


def network(host, home, **keys):
    """Returns the README's network, without limits, with its reservations in the user's home."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]]}
    config = {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {**ipam, "dataDir": str(home / "networks")},
    }
    return Network(host, {**config, **keys})


class Chain:
    """The plugins of conf/10, firewall and tuning, with one backend for all rules."""

    def __init__(self, host, home, backend):
        disable_dad(host)
        self.bridge = network(host, home, ipMasqBackend=backend)
        self.ports = PublishingNetwork(self.bridge, {"backend": backend})
        self.limits = BandwidthNetwork(self.bridge).with_runtime_limits(**BOTH)
        sysctl = {"net.ipv4.ip_default_ttl": "65", "net.ipv4.conf.IFNAME.arp_filter": "1"}
        self.others = {
            "firewall": {"backend": backend, "ingressPolicy": "same-bridge"},
            "tuning": {"mtu": 1400, "sysctl": sysctl, "dataDir": str(home / "tuning")},
        }

    def add(self, pod):
        result = self.bridge.run("ADD", pod)
        assert result.stderr == ""
        ports = self.ports.portmap("ADD", pod, PORTS, result.result())
        assert ports.stderr == ""  # conntrack entries were deleted
        result = self.limits.limit(pod, ports.result())
        for plugin in self.others:
            result = self.other(plugin, "ADD", pod, result).result()
        return result

    def check(self, pod, result):
        self.bridge.check(pod, result)
        self.ports.portmap("CHECK", pod, PORTS, result).assert_silent()
        self.limits.check(pod, result)
        for plugin in self.others:
            self.other(plugin, "CHECK", pod, result).assert_silent()

    def delete(self, pod, result):
        for plugin in reversed(self.others):
            self.other(plugin, "DEL", pod, result).assert_silent()
        self.limits.release(pod, result)
        self.ports.delete(pod, *PORTS, result=result)

    def status(self):
        self.bridge.run("STATUS").assert_silent()
        for plugin, keys in (("portmap", self.ports.keys), ("bandwidth", {}), *self.others.items()):
            config = {"cniVersion": "1.1.0", "name": "net", "type": plugin, **keys}
            run_plugin(plugin, "STATUS", config, host=self.bridge.host).assert_silent()

    def gc(self, *valid):
        attachments = [{"containerID": pod.name, "ifname": "eth0"} for pod in valid]
        keys = {"cniVersion": "1.1.0", "name": "net", "cni.dev/valid-attachments": attachments}
        for plugin in ("bandwidth", "portmap", *self.others):
            config = {"type": plugin, **self.others.get(plugin, {}), **keys}
            run_plugin(plugin, "GC", config, host=self.bridge.host).assert_silent()
        self.bridge.having(**keys).run("GC").assert_silent()

    def other(self, plugin, command, pod, result):
        config = {"cniVersion": "1.1.0", "name": "net", "type": plugin, **self.others[plugin], "prevResult": result}
        return run_plugin(plugin, command, config, host=self.bridge.host, netns=pod, container_id=pod.name)


@pytest.mark.needs("tbf", "ifb")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mapped", [rootless.ONE_ID, rootless.MANY_IDS], ids=["one-user", "many-users"])
def test_all_plugins_work_rootless(root, bin_dir, backend, mapped):
    """A pod is attached, reached, masqueraded, limited, checked, collected and detached, and leaves nothing."""

    def scenario(host, home):
        with ExitStack() as stack:
            pods = {name: stack.enter_context(temporary()) for name in ("pod", "stale")}
            client = stack.enter_context(temporary())
            disable_dad(client)
            connect(host, client)
            chain = Chain(host, home, backend)
            chain.status()
            chain.add(pods["stale"])
            chain.gc()  # releases the addresses of an existing pod, too
            assert chain.bridge.leases() == {}
            chain.bridge.delete(pods["stale"])
            before = netstate.state(host, netfilter=True)
            result = chain.add(pods["pod"])
            services = open_services(stack, {**pods, "client": client}, ("tcp", "udp"), *EVERYWHERE)
            for protocol in ("tcp", "udp"):
                assert call(services, client, protocol, NODE, 8080) == Reached("pod", CLIENT)
                assert call(services, host, protocol, "127.0.0.1", 8080) == Reached("pod", GATEWAY)
                assert call(services, pods["pod"], protocol, CLIENT, 80) == Reached("client", NODE)
            assert bandwidth_network.ifbs(host)
            chain.check(pods["pod"], result)
            chain.gc(pods["pod"])
            chain.check(pods["pod"], result)
            assert chain.bridge.leases() == {address(result, n): pods["pod"].name for n in (0, 1)}
            assert_owned_by_user(home / "networks" / "net", host_user=rootless.USER)
            chain.delete(pods["pod"], result)
            assert netstate.state(host, netfilter=True) == before
            assert chain.bridge.leases() == {}
            assert not list(home.rglob("*tuning*/*"))

    rootless.run_rootless(scenario, mapped)


@pytest.mark.needs("tbf", "ifb", "iptables_nft_nat")  # a rootless process cannot load modules
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_plugins_work_in_a_network_of_unshare(root, bin_dir, backend):
    """In `unshare -Urn`, where only the host's root may list the tables of iptables-legacy, all plugins work."""

    def scenario(host, home):
        with (
            host.entered(),
            pytest.raises((PermissionError, FileNotFoundError)),
        ):  # or this kernel has no iptables-legacy
            Path("/proc/self/net/ip_tables_names").read_text()
        with temporary() as pod:
            chain = Chain(host, home, backend)
            chain.status()
            chain.delete(pod, chain.add(pod))  # creates the shared objects
            before = netstate.state(host, netfilter=True)
            result = chain.add(pod)
            chain.check(pod, result)
            chain.delete(pod, result)
            assert netstate.state(host, netfilter=True) == before
            chain.gc()

    rootless.run_rootless(scenario, at_once=True)


@pytest.mark.needs("iptables_nft_nat")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("at_once", [False, True], ids=["later-network", "network-of-unshare"])
def test_ptp_works_rootless(root, bin_dir, backend, at_once):
    """A pod is attached by ptp, masqueraded, tuned at both ends, checked and detached, and leaves nothing."""

    def scenario(host, home):
        with temporary() as pod:
            chain = Chain(host, home, backend)
            chain.bridge = network(host, home, type="ptp", ipMasqBackend=backend)
            chain.bridge.run("STATUS").assert_silent()
            tuned = {**chain.others["tuning"], "mtuBothEnds": True}
            chain.others = {"firewall": {"backend": backend}, "tuning": tuned}
            for _ in range(2):
                before = netstate.state(host, netfilter=True)
                result = chain.bridge.add(pod)
                for plugin in chain.others:
                    result = chain.other(plugin, "ADD", pod, result).result()
                chain.bridge.check(pod, result)
                for plugin in chain.others:
                    chain.other(plugin, "CHECK", pod, result).assert_silent()
                assert netstate.links(host)[result["interfaces"][0]["name"]]["mtu"] == 1400
                for plugin in reversed(chain.others):
                    chain.other(plugin, "DEL", pod, result).assert_silent()
                chain.bridge.delete(pod, result)
            assert netstate.state(host, netfilter=True) == before
            assert chain.bridge.leases() == {}

    rootless.run_rootless(scenario, at_once=at_once)


def assert_owned_by_user(directory, host_user):
    """Asserts that the user owns the files, and that they have the usual modes."""
    assert os.geteuid() == 0
    assert f" {host_user} " in " ".join(Path("/proc/self/uid_map").read_text().split()) + " "
    for file in directory.iterdir():
        status = file.stat()
        assert (status.st_uid, status.st_gid) == (0, 0)
        assert stat.S_IMODE(status.st_mode) == (0o750 if file.name == "lock" else 0o600)


@pytest.mark.parametrize("forwarding", [True, False])
def test_read_only_proc(root, bin_dir, forwarding):
    """If /proc/sys is read-only, verbs work if forwarding is enabled, else ADD names the sysctl and is rolled back."""

    def scenario(host, home):
        for key in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            host.set_sysctl(key, str(int(forwarding)))
        output("mount", "--bind", "/proc/sys", "/proc/sys")
        output("mount", "-o", "remount,bind,ro", "/proc/sys")
        net = network(host, home)
        with temporary() as pod:
            before = netstate.state(host), netstate.state(pod)
            if forwarding:
                result = net.add(pod)
                net.check(pod, result)
                net.delete(pod, result)
            else:
                error = net.run("ADD", pod).error()
                assert error["msg"].endswith("/proc/sys/net/ipv4/ip_forward: Read-only file system")
                assert "sysctl -w net/ipv4/ip_forward=1" in error["details"]
                assert (netstate.state(host), netstate.state(pod)) == before
            assert net.leases() == {}

    rootless.run_rootless(scenario)


@pytest.mark.needs("tbf", "ifb", "htb")
def test_batch_larger_than_an_unprivileged_buffer_is_sent(root, bin_dir):
    """More filters than fit into the socket buffer of an unprivileged process are created, checked and removed."""

    def scenario(host, home):
        with temporary() as pod:
            net = network(host, home, ipMasq=False)
            attached = net.add(pod)
            before = bandwidth_network.state(host)
            subnets = [f"10.{number // 256}.{number % 256}.0/24" for number in range(2000)]
            limits = BandwidthNetwork(net).with_runtime_limits(**BOTH).having(unshapedSubnets=subnets)
            result = limits.limit(pod, attached)
            limits.check(pod, result)
            limits.release(pod, result)
            assert bandwidth_network.state(host) == before

    rootless.run_rootless(scenario)


def test_unwritable_lease_directory_is_named(root, bin_dir):
    """A lease directory of the host's root causes an error that names it."""

    def scenario(host, home):
        with temporary() as pod:
            net = network(host, home)
            net = net.having(ipam={**net.config["ipam"], "dataDir": str(rootless.FOREIGN / "networks")})
            error = net.run("ADD", pod).error()
            assert error["code"] == 5
            assert f"{rootless.FOREIGN}/networks" in json.dumps(error)
            assert "Permission denied" in error["msg"]

    rootless.run_rootless(scenario)
