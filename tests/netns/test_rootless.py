"""In the user namespace of an unprivileged user everything works, or the error names what the kernel forbids."""

import json
import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import bandwidth_network, netstate, rootless
from tests.support.attaching import Network, address
from tests.support.bandwidth_network import BOTH, BandwidthNetwork
from tests.support.chained import CHAIN, Chain
from tests.support.invocation import gc_keys
from tests.support.namespaces import temporary
from tests.support.processes import output
from tests.support.publishing import CLIENT, GATEWAY, NODE, connect, disable_dad
from tests.support.sockets import Reached, call, open_services

BACKENDS = ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat", "nft_inet"))]
EVERYWHERE = ("0.0.0.0", "::")
PORTS = ("8080:80", "8080:80/udp")


class RootlessChain(Chain):
    """The chain of a dual-stack network with its reservations in the user's home, and all verbs of its plugins."""

    def config(self, plugin, prev_result=None, **keys):
        if plugin in ("bridge", "ptp"):
            keys = {"ipam": dual_stack(self.store), **keys}
        return super().config(plugin, prev_result, **{"cniVersion": "1.1.0", **keys})

    def attach(self, pod):
        result = None
        for plugin in CHAIN:
            outcome = self.run(plugin, "ADD", pod, result)
            assert outcome.stderr == ""  # conntrack entries were deleted
            result = outcome.result()
        return result

    def run_all(self, command, pod, result=None, **keys):
        for plugin in reversed(CHAIN):
            self.run(plugin, command, pod, result, **keys).assert_silent()

    def collect(self, pod, *valid):
        self.run_all("GC", pod, **gc_keys(*((each.name, "eth0") for each in valid)))


def dual_stack(store):
    ranges = [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]]
    return {"type": "host-local", "ranges": ranges, "dataDir": str(store)}


def network(host, home, **keys):
    """Returns a masqueraded network of bridge, with its reservations in the user's home."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "bridge", "isDefaultGateway": True, "ipMasq": True}
    return Network(host, {**config, "ipam": dual_stack(home / "networks"), **keys})


def new_chain(host, home, backend):
    disable_dad(host)
    return RootlessChain(host, home / "networks", backend, PORTS)


@pytest.mark.needs("tbf", "ifb")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mapped", [rootless.ONE_ID, rootless.MANY_IDS], ids=["one-user", "many-users"])
def test_all_plugins_work_rootless(root, bin_dir, backend, mapped):
    """A pod is attached, reached, masqueraded, limited, checked, collected and detached, and leaves nothing."""

    def scenario(host, home):
        with ExitStack() as stack:
            pod, stale, client = (stack.enter_context(temporary()) for _ in range(3))
            disable_dad(client)
            connect(host, client)
            chain = new_chain(host, home, backend)
            chain.run_all("STATUS", pod)
            chain.attach(stale)
            chain.collect(stale)  # releases the addresses of an existing pod, too
            assert chain.leases().keys() == {"lock"}
            chain.delete(stale, "bridge")
            before = netstate.state(host, netfilter=True)
            result = chain.attach(pod)
            services = open_services(stack, {"pod": pod, "client": client}, ("tcp", "udp"), *EVERYWHERE)
            for protocol in ("tcp", "udp"):
                assert call(services, client, protocol, NODE, 8080) == Reached("pod", CLIENT)
                assert call(services, host, protocol, "127.0.0.1", 8080) == Reached("pod", GATEWAY)
                assert call(services, pod, protocol, CLIENT, 80) == Reached("client", NODE)
            assert bandwidth_network.ifbs(host)
            chain.run_all("CHECK", pod, result)
            chain.collect(pod, pod)
            chain.run_all("CHECK", pod, result)
            assert chain.leases().keys() == {address(result, 0), address(result, 1), "lock"}
            assert os.geteuid() == 0
            assert f" {rootless.USER} " in " ".join(Path("/proc/self/uid_map").read_text().split()) + " "
            for file in (home / "networks" / "net").iterdir():
                status = file.stat()
                assert (status.st_uid, status.st_gid) == (0, 0)
                assert stat.S_IMODE(status.st_mode) == (0o750 if file.name == "lock" else 0o600)
            chain.run_all("DEL", pod, result)
            assert netstate.state(host, netfilter=True) == before
            assert chain.leases().keys() == {"lock"}
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
            chain = new_chain(host, home, backend)
            chain.run_all("STATUS", pod)
            chain.run_all("DEL", pod, chain.attach(pod))  # creates the shared objects
            before = netstate.state(host, netfilter=True)
            result = chain.attach(pod)
            chain.run_all("CHECK", pod, result)
            chain.run_all("DEL", pod, result)
            assert netstate.state(host, netfilter=True) == before
            chain.collect(pod)

    rootless.run_rootless(scenario, at_once=True)


@pytest.mark.needs("iptables_nft_nat")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("at_once", [False, True], ids=["later-network", "network-of-unshare"])
def test_ptp_works_rootless(root, bin_dir, backend, at_once):
    """A pod is attached by ptp, masqueraded, tuned at both ends, checked and detached, and leaves nothing."""
    keys: dict[str, Any] = {"ptp": {}, "firewall": {"ingressPolicy": None}, "tuning": {"mtuBothEnds": True}}

    def scenario(host, home):
        with temporary() as pod:
            chain = new_chain(host, home, backend)
            chain.run("ptp", "STATUS", pod).assert_silent()
            for _ in range(2):
                before = netstate.state(host, netfilter=True)
                result: Any = None
                for plugin, options in keys.items():
                    result = chain.run(plugin, "ADD", pod, result, **options).result()
                assert netstate.links(host)[result["interfaces"][0]["name"]]["mtu"] == 1400
                for command in ("CHECK", "DEL"):
                    for plugin, options in reversed(keys.items()):
                        chain.run(plugin, command, pod, result, **options).assert_silent()
            assert netstate.state(host, netfilter=True) == before
            assert chain.leases().keys() == {"lock"}

    rootless.run_rootless(scenario, at_once=at_once)


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
