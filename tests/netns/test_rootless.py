"""In the user namespace of an unprivileged user everything works, or the error names what the kernel forbids."""

import json
import os
import shutil
import stat
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import bandwidth_network, binaries, libc, netstate, private_host
from tests.support.attaching import Network, address
from tests.support.bandwidth_network import BOTH, BandwidthNetwork
from tests.support.chained import CHAIN, Chain
from tests.support.invocation import gc_keys
from tests.support.namespaces import Namespace, temporary
from tests.support.processes import output
from tests.support.publishing import CLIENT, GATEWAY, NODE, connect, disable_dad
from tests.support.sockets import Reached, call, open_services

USER = 65534  # an unprivileged user of the host
ONE_ID, MANY_IDS = "0 65534 1\n", "0 65534 1\n1 100000 65535\n"  # user_namespaces(7): without and with subuid(5)

_PLACE = Path("/mnt")  # for the executables and a home directory; the tests' directories may be readable by root only
FOREIGN = _PLACE / "foreign"  # a directory that the host's root owns

RootlessTest = Callable[[Namespace, Path], None]


def run_rootless(test: RootlessTest, mapped: str = ONE_ID, *, at_once: bool = False) -> None:
    """Runs a test in a child process that is root of new user, network and mount namespaces, and of nothing else.

    The test gets the network namespace, which represents the host, and a home directory. `mapped` are the user and
    group IDs in the user namespace. With `at_once` the network namespace is created together with the user namespace,
    as by `unshare -Urn`; then the host's root owns some of its files in /proc. An exception in the test fails the test.
    """
    # iptables-legacy needs modules, which only the host's root may load.
    output("unshare", "--net", "sh", "-ec", "iptables -t nat -S; ip6tables -t nat -S")
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(from_child)
            os.close(to_child)
            network = libc.NEW_NETWORK
            _become_root(to_parent, from_parent, network if at_once else 0)
            home = _PLACE / "home"
            os.environ.update(HOME=str(home), PODWIRE_BIN_DIR=str(_PLACE / "bin"))
            namespaces = libc.NEW_MOUNTS | (0 if at_once else network)
            test(private_host.enter("/var/lib/cni", namespaces=namespaces), home)
            os._exit(0)
        except BaseException:
            os.write(to_parent, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(to_parent)
    os.close(from_parent)
    with open(from_child, "rb", buffering=0) as pipe:
        reply = pipe.read(1)
        for kind in ("uid_map", "gid_map") if reply == b"." else ():
            Path(f"/proc/{child}/{kind}").write_text(mapped)
        os.write(to_child, b".")
        os.close(to_child)
        problem = (reply + pipe.readall()).decode().removeprefix(".")
    status = os.waitpid(child, 0)[1]
    assert status == 0, problem


def _become_root(to_parent: int, from_parent: int, besides: int) -> None:
    """Drops root permanently, and becomes root of a new user namespace, for which the parent writes the ID maps.

    `besides` are further namespaces that are created together with it.
    """
    libc.unshare(libc.NEW_MOUNTS)
    output("mount", "--make-rprivate", "/")
    output("mount", "-t", "tmpfs", "podwire", str(_PLACE))
    shutil.copytree(binaries.directory(), _PLACE / "bin")
    program = _PLACE / "bin" / "podwire"
    for name in binaries.names():  # hard links, as in a release
        (_PLACE / "bin" / name).unlink()
        (_PLACE / "bin" / name).hardlink_to(program)
    (_PLACE / "home").mkdir()
    os.chown(_PLACE / "home", USER, USER)
    FOREIGN.mkdir(0o755)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    libc.unshare(libc.NEW_USERS | besides)
    libc.make_dumpable()  # otherwise the host's root, which the namespace does not map, owns /proc/<pid>
    os.write(to_parent, b".")
    os.read(from_parent, 1)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


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
@pytest.mark.parametrize("mapped", [ONE_ID, MANY_IDS], ids=["one-user", "many-users"])
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
            assert f" {USER} " in " ".join(Path("/proc/self/uid_map").read_text().split()) + " "
            for file in (home / "networks" / "net").iterdir():
                status = file.stat()
                assert (status.st_uid, status.st_gid) == (0, 0)
                assert stat.S_IMODE(status.st_mode) == (0o750 if file.name == "lock" else 0o600)
            chain.run_all("DEL", pod, result)
            assert netstate.state(host, netfilter=True) == before
            assert chain.leases().keys() == {"lock"}
            assert not list(home.rglob("*tuning*/*"))

    run_rootless(scenario, mapped)


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

    run_rootless(scenario, at_once=True)


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

    run_rootless(scenario, at_once=at_once)


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

    run_rootless(scenario)


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

    run_rootless(scenario)


def test_unwritable_lease_directory_is_named(root, bin_dir):
    """A lease directory of the host's root causes an error that names it."""

    def scenario(host, home):
        with temporary() as pod:
            net = network(host, home)
            net = net.having(ipam={**net.config["ipam"], "dataDir": str(FOREIGN / "networks")})
            error = net.run("ADD", pod).error()
            assert error["code"] == 5
            assert f"{FOREIGN}/networks" in json.dumps(error)
            assert "Permission denied" in error["msg"]

    run_rootless(scenario)
