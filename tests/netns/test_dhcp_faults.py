"""dhcp with faults of the node: a full disk, pods and plugins that end during ADD, sleep, unreadable files."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipam.dhcp import options, rpc
from tests.support import dhcp_forger, dhcp_node
from tests.support.attaching import address, reaches
from tests.support.dhcp import SERVER, answering_calls
from tests.support.dhcp_forger import ADDRESS, granting, reply, seconds
from tests.support.dhcp_node import AUTONOMOUS, Node
from tests.support.invocation import finish
from tests.support.machine import eventually
from tests.support.netstate import shown
from tests.support.uplink import UPLINK

T1, T2 = "--dhcp-option=58,2", "--dhcp-option=59,4"  # seconds; the lease lasts two minutes


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose daemon runs, with leases of two minutes; the server does not run yet."""
    with dhcp_node.created(host, new_sandbox(), tmp_path, lease="2m") as node:
        node.start_daemon()
        yield node
        assert not node.daemon.logged("internal error"), node.daemon.log.read_text()


@pytest.fixture
def small_disk(node) -> Iterator[Path]:
    """The directory of the lease files is a file system of 64 KiB."""
    node.daemon.stop()
    node.data.mkdir(exist_ok=True)  # the daemon may not have come so far
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "podwire", node.data], check=True)
    node.start_daemon()
    yield node.data
    node.daemon.stop()
    subprocess.run(["umount", node.data], check=True)


def fill(directory: Path) -> Path:
    """Fills a file system; returns the file that does so."""
    file = directory / "filler"
    with file.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    return file


def test_add_on_a_full_disk(node, small_disk, sandbox):
    """ADD fails with the reason if the lease cannot be stored, and releases it; with space it succeeds."""
    node.start_server()
    filler = fill(small_disk)
    message = node.network().run("ADD", sandbox).error()["msg"]
    assert f"cannot store the lease in {node.data}: No space left on device" in message
    assert eventually(lambda: node.list_leases() == []), node.daemon.log.read_text()
    assert list(small_disk.rglob("*.json*")) == []
    filler.unlink()
    result = node.network().add(sandbox)
    node.network().delete(sandbox, result)


@pytest.mark.long
def test_renewals_on_a_full_disk(node, small_disk, sandbox):
    """Renewals continue without space; no lease is lost by a kill, although the stored one has expired."""
    with dhcp_forger.running(node.machine, granting({options.LEASE_TIME: seconds(4)})) as forger:
        result = node.network().add(sandbox)
        filler = fill(small_disk)
        (before,) = node.list_files_of_leases().values()
        assert eventually(lambda: node.count_granted() >= 4), node.daemon.log.read_text()
        assert node.daemon.log.read_text().count("cannot store the lease") == 1
        assert list(node.list_files_of_leases().values()) == [before]
        node.start_daemon()
        assert eventually(lambda: node.count_granted() >= 1), node.daemon.log.read_text()
        filler.unlink()
        later = lambda: next(iter(node.list_files_of_leases().values()))["ipv4"]["grantedMs"]  # noqa: E731
        assert eventually(lambda: later() > before["ipv4"]["grantedMs"]), node.daemon.log.read_text()
        assert forger.kinds().count(options.DISCOVER) == 1
        assert dhcp_node.addresses(sandbox) == [address(result)]
        node.network().delete(sandbox, result)
        assert eventually(lambda: options.RELEASE in forger.kinds())


def test_pod_that_is_deleted_during_add(node, host, sandbox):
    """An ADD that waits for a server ends when its pod is deleted, and does not keep the namespace alive."""
    host.ip("link", "add", "peer0", "type", "veth", "peer", "name", "eth0", "netns", sandbox.name)
    process = node.network("dhcp").start("ADD", sandbox)
    assert eventually(lambda: len(sandbox.run("cat", "/proc/net/packet").splitlines()) > 1)  # the daemon's socket
    sandbox.delete()
    assert 'interface "eth0" no longer exists' in finish(process).error()["msg"]
    assert eventually(lambda: "peer0" not in host.ip("-o", "link"))


def test_plugin_that_is_killed_during_add(node, sandbox):
    """When the plugin ends before its answer, the daemon releases the lease of the other IP version, and stops."""
    node.start_server()
    process = node.network(ipam={"ipv6": "dhcp"}).start("ADD", sandbox)
    assert eventually(lambda: len(node.list_leases()) == 1)
    process.kill()
    process.wait()
    assert eventually(lambda: node.list_leases() == []), node.daemon.log.read_text()
    assert node.daemon.logged("the plugin has gone")
    assert "podwire_dhcp_leases{" not in node.get_metrics()


@pytest.mark.parametrize("kind", ["macvlan", "dhcp"])
@pytest.mark.parametrize("ending", ["the plugin gets SIGTERM", "the connection ends", "the daemon ends"])
def test_add_with_a_lost_answer(node, host, sandbox, kind, ending):
    """A lease whose ADD was interrupted after the daemon had answered is released, also by the next daemon."""
    node.start_server()
    if kind == "dhcp":
        host.ip("link", "add", "link", UPLINK, "name", "eth0", "netns", sandbox.name, "type", "macvlan")
        sandbox.ip("link", "set", "eth0", "up")
    has_answered, closes = threading.Event(), threading.Event()

    def answer(server, call):
        result = rpc.call(str(node.socket), call.method, call.args, limit_s=30)
        if call.method != rpc.ALLOCATE:
            return server.reply(call, result)
        has_answered.set()
        if ending == "the plugin gets SIGTERM":
            return b""
        assert closes.wait(30)
        raise ConnectionAbortedError

    path = node.directory / "run" / "proxy.sock"
    with answering_calls(path, answer):
        process = node.network(kind, ipam={"daemonSocketPath": str(path)}).start("ADD", sandbox)
        assert has_answered.wait(30)
        assert len(node.list_leases()) == 1
        if ending == "the plugin gets SIGTERM":
            process.terminate()
        elif ending == "the daemon ends":
            node.daemon.stop()
            path.unlink()
        closes.set()
        assert finish(process).error()["code"] == 11
    if ending == "the daemon ends":
        node.start_daemon()
    assert eventually(lambda: node.list_leases() == []), node.daemon.log.read_text()
    assert "podwire_dhcp_leases{" not in node.get_metrics()
    assert node.list_files() == {}


@pytest.mark.parametrize("keys", [{"daemonSocketPath": 5}, {"dataDir": 5, "daemonSocketPath": "/x"}])
def test_del_with_an_invalid_path(keys, node, sandbox):
    """DEL uses the default for a path that has a wrong type, and succeeds."""
    node.network("dhcp", ipam=keys).delete(sandbox)


def test_gc_reports_files_that_cannot_be_read(node, new_sandbox):
    """GC releases the leases that are not listed; a file that cannot be read stays, and is reported."""
    node.start_server()
    net, pods = node.network(cniVersion="1.1.0"), [new_sandbox() for _ in range(3)]
    kept, released, _ = [address(net.add(pod)) for pod in pods]
    damaged = node.data / "net" / f"{pods[2].name}:eth0.json"
    damaged.write_text("{")
    valid = [{"containerID": pods[0].name, "ifname": "eth0"}]
    outcome = net.having(**{"cni.dev/valid-attachments": valid}).run("GC")
    outcome.assert_silent()
    assert f"cannot read the lease in {damaged}" in outcome.stderr
    assert eventually(lambda: released not in node.list_leases())
    assert kept in node.list_leases()
    assert sorted(file.stem for file in damaged.parent.iterdir()) == sorted(f"{pods[n].name}:eth0" for n in (0, 2))


def test_lost_lease_is_acquired_after_a_restart(node, sandbox):
    """A daemon that starts after the loss of a lease continues to ask for it, and configures it again."""
    with dhcp_forger.running(node.machine, granting({options.LEASE_TIME: seconds(4)})) as forger:
        node.network().add(sandbox)
        forger.answer = lambda request: [reply(request, options.NAK)]
        assert eventually(lambda: dhcp_node.addresses(sandbox) == []), node.daemon.log.read_text()
        node.daemon.stop()
        forger.answer = granting()
        node.start_daemon()
        assert eventually(lambda: dhcp_node.addresses(sandbox) == [str(ADDRESS)]), node.daemon.log.read_text()
        assert "default via 10.25.0.1" in sandbox.ip("route")


def test_address_of_a_lost_lease_is_removed_after_a_kill(node, sandbox):
    """A daemon that starts after one that was killed between storing a loss and the removal removes the address."""
    with dhcp_forger.running(node.machine, granting()) as forger:
        node.network().add(sandbox)
        node.daemon.stop()
        (file,) = node.data.rglob("*.json")
        record = json.loads(file.read_text())
        record["ipv4"] |= {"renewalS": 0, "rebindingS": 0, "lifetimeS": 0}
        file.write_text(json.dumps(record))
        forger.answer = lambda request: []
        node.start_daemon()
        assert eventually(lambda: dhcp_node.addresses(sandbox) == []), node.daemon.log.read_text()
        forger.answer = granting()
        assert eventually(lambda: dhcp_node.addresses(sandbox) == [str(ADDRESS)]), node.daemon.log.read_text()


def test_router_of_a_renewal_that_is_unreachable(node, sandbox):
    """A pod keeps its default route when a renewal brings a router outside of the subnet; a later one replaces it."""
    short = {options.LEASE_TIME: seconds(4)}
    with dhcp_forger.running(node.machine, granting(short)) as forger:
        node.network().add(sandbox)
        forger.answer = granting({**short, options.ROUTERS: bytes((192, 0, 2, 1))})
        assert eventually(lambda: node.daemon.logged("the former route stays")), node.daemon.log.read_text()
        assert "default via 10.25.0.1" in sandbox.ip("route")
        forger.answer = granting({**short, options.ROUTERS: bytes((10, 25, 0, 2))})
        assert eventually(lambda: "default via 10.25.0.2" in sandbox.ip("route")), node.daemon.log.read_text()
        assert "via 10.25.0.1 " not in sandbox.ip("route")


def test_mtu_of_server_and_router(node, sandbox):
    """The lesser MTU of DHCPv4 server and router stays, whichever answers last."""
    node.start_server(T1, T2, "--dhcp-option=26,1400", *AUTONOMOUS, "--ra-param=wire0,mtu:1350,0,0")
    node.network(ipam={"ipv6": "slaac", "request": [{"option": "interface-mtu"}]}).add(sandbox)
    seen = set()

    def is_renewed() -> bool:
        seen.add(shown(sandbox, "eth0")["mtu"])
        return bool(node.server.log.read_text().count("DHCPACK") > 2)

    assert eventually(is_renewed)
    assert seen == {1350}


@pytest.mark.long
@pytest.mark.needs("time_namespace")
@pytest.mark.parametrize("is_confirmed", [True, False])
def test_lease_that_expired_while_the_machine_slept(is_confirmed, node, sandbox):
    """After an hour of sleep the server is asked for the lease; if it does not answer, the address is removed.

    In a time namespace the clock that counts sleep is an hour ahead.
    """
    node.start_server()
    result = node.network().add(sandbox)
    node.daemon.stop()
    if not is_confirmed:
        node.server.stop()
    node.daemon.argv = ("unshare", "--time", "--boottime=3600", "--fork", "--kill-child", *node.daemon.argv)
    node.start_daemon()
    if is_confirmed:
        assert eventually(lambda: node.count_granted() >= 1), node.daemon.log.read_text()
        assert dhcp_node.addresses(sandbox) == [address(result)]
        assert node.server.log.read_text().count("DHCPDISCOVER") == 1
        assert reaches(sandbox, SERVER)
    else:
        assert eventually(lambda: dhcp_node.addresses(sandbox) == []), node.daemon.log.read_text()
    node.network().delete(sandbox, result)
