"""dhcp's daemon over time, with dnsmasq, kea and busybox's udhcpd: restarts, renewals, lost leases, deleted pods."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import dhcp_node
from tests.support.attaching import address, reaches
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import MANAGED, SERVER6, Node
from tests.support.machine import eventually
from tests.support.netstate import shown
from tests.support.uplink import WIRE

LIFETIME_S = 10  # of the leases of other servers than dnsmasq
T1, T2 = "--dhcp-option=58,2", "--dhcp-option=59,4"  # seconds; the lease lasts two minutes


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server grants leases that are renewed after two seconds."""
    with dhcp_node.created(host, new_sandbox(), tmp_path, lease="2m") as node:
        node.start_server(T1, T2)
        node.start_daemon()
        yield node


def test_killed_daemon_loses_no_lease(node, new_sandbox):
    """A daemon that is killed and started again renews the leases of both IP versions, and releases them at DEL."""
    node.start_server(T1, T2, *MANAGED)
    net, pods = node.network(ipam={"ipv6": "dhcp"}), [new_sandbox() for _ in range(5)]
    results = {pod.name: net.add(pod) for pod in pods}
    node.start_daemon()
    assert eventually(lambda: node.count_granted() >= 5)
    assert node.server.log.read_text().count("DHCPDISCOVER") == 5
    for pod in pods:
        result = results[pod.name]
        leased = [dhcp_node.addresses(pod, version) for version in (4, 6)]
        assert leased == [[address(result)], [address(result, 1)]]
        net.check(pod, result)
        assert address(net.having(type="dhcp").add(pod), 1) == address(result, 1)
        net.delete(pod, result)
    assert eventually(lambda: node.list_leases() == [])


@pytest.mark.parametrize("ipam", [{}, {"ipv4": False, "ipv6": "dhcp"}], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("kind", ["macvlan", "bridge"])
def test_del_without_daemon_is_completed_by_the_next_daemon(kind, ipam, node, sandbox):
    """DEL succeeds without a daemon and leaves a note; the next daemon releases the lease from a host interface."""
    node.start_server(T1, T2, *MANAGED)
    net = node.network(kind, ipam=ipam)
    result = net.add(sandbox)
    node.daemon.stop()
    outcome = net.run("DEL", sandbox, prev_result=result)
    outcome.assert_silent()
    assert "the daemon will release the lease when it starts" in outcome.stderr
    assert sorted(node.list_files()) == [f"{sandbox.name}:eth0.json", f"{sandbox.name}:eth0.release"]
    assert node.list_leases() == [address(result)]
    node.start_daemon()
    assert eventually(lambda: node.list_leases() == []), node.daemon.log.read_text()
    assert eventually(lambda: node.list_files() == {})


@pytest.mark.parametrize("daemon_runs", [True, False])
def test_lease_of_a_deleted_pod_is_released(node, sandbox, new_sandbox, daemon_runs):
    """The lease of a pod that was deleted without DEL is released when it is due for renewal, or by the next daemon."""
    kept, pod = address(node.network().add(sandbox)), new_sandbox()
    node.network().add(pod)
    if not daemon_runs:
        node.daemon.stop()
    pod.delete()
    if not daemon_runs:
        node.start_daemon()
    assert eventually(lambda: node.list_leases() == [kept]), node.daemon.log.read_text()
    assert eventually(lambda: list(node.list_files()) == [f"{sandbox.name}:eth0.json"])
    if daemon_runs:
        assert node.daemon.logged('interface "eth0" no longer exists, terminating lease maintenance')


def test_changes_of_a_renewal_are_applied(node, sandbox):
    """Routes and MTU that the server changes are changed on the interface when the lease is renewed."""
    ipam = {"request": [{"option": "121"}, {"option": "interface-mtu"}]}
    node.start_server(T1, T2, "--dhcp-option=121,10.9.0.0/16,10.25.0.7,0.0.0.0/0,10.25.0.1", "--dhcp-option=26,1400")
    node.network(ipam=ipam).add(sandbox)
    assert shown(sandbox, "eth0")["mtu"] == 1400
    node.start_server(T1, T2, "--dhcp-option=121,10.8.0.0/16,10.25.0.8,0.0.0.0/0,10.25.0.1", "--dhcp-option=26,1300")
    assert eventually(lambda: shown(sandbox, "eth0")["mtu"] == 1300), node.daemon.log.read_text()
    routes = sandbox.ip("route")
    assert "10.8.0.0/16 via 10.25.0.8" in routes
    assert "10.9.0.0/16" not in routes
    assert node.daemon.logged("the lease changed")
    assert reaches(sandbox, SERVER)


def test_refused_lease_is_replaced(node, sandbox):
    """When the server refuses a renewal, the address is removed, and a new one is leased and configured."""
    before = address(node.network().add(sandbox))
    node.server.stop()
    (node.directory / "leases").unlink()
    node.start_server(T1, T2, range_="10.25.0.200,10.25.0.209,255.255.255.0")
    assert eventually(lambda: bool(set(dhcp_node.addresses(sandbox)) - {before})), node.daemon.log.read_text()
    (after,) = dhcp_node.addresses(sandbox)
    assert after.startswith("10.25.0.20")
    assert node.list_leases() == [after]
    assert "default via 10.25.0.1" in sandbox.ip("route")
    assert reaches(sandbox, SERVER)


def test_rebinding_reaches_another_server(node, sandbox):
    """When the server does not answer, the client asks all servers; another one renews the stored lease."""
    result = node.network().add(sandbox)
    node.server.stop()
    node.machine.ip("address", "del", "10.25.0.1/24", "dev", WIRE)
    node.machine.ip("address", "add", "10.25.0.2/24", "dev", WIRE)
    node.machine.ip("link", "set", WIRE, "address", "02:00:00:00:00:02")
    node.start_server(T1, T2)

    def get_server():
        (file,) = node.list_files_of_leases().values()
        return file["ipv4"] and file["ipv4"]["server"]  # none while a new lease is requested

    assert eventually(lambda: get_server() == "10.25.0.2"), node.daemon.log.read_text()
    assert node.server.log.read_text().count("DHCPDISCOVER") == 1
    assert dhcp_node.addresses(sandbox) == [address(result)]


def kea(directory, version) -> tuple[str, ...]:
    """Returns the command line of kea's server; the one for IPv6 is no router."""
    name = f"kea-dhcp{version}"
    settings: dict[str, Any] = {"authoritative": True}
    subnet: dict[str, Any] = {"subnet": "10.25.0.0/24", "pools": [{"pool": "10.25.0.100 - 10.25.0.149"}]}
    subnet |= {"option-data": [{"name": "routers", "data": SERVER}]}
    if version == 6:
        settings = {"server-id": {"type": "LL", "persist": False}, "preferred-lifetime": LIFETIME_S - 2}
        subnet = {"subnet": "fd00:25::/64", "pools": [{"pool": "fd00:25::100 - fd00:25::1ff"}], "interface": WIRE}
    settings |= {
        "interfaces-config": {"interfaces": [WIRE]},
        "lease-database": {"type": "memfile", "persist": True, "name": str(directory / "leases.csv")},
        "loggers": [{"name": name, "output_options": [{"output": "stdout"}], "severity": "INFO"}],
    }
    settings |= {"valid-lifetime": LIFETIME_S, "renew-timer": 3, "rebind-timer": 6, f"subnet{version}": [subnet]}
    file = directory / "kea.json"
    file.write_text(json.dumps({f"Dhcp{version}": settings}))
    where = (f"{key}={directory}" for key in ("KEA_PIDFILE_DIR", "KEA_LOCKFILE_DIR", "KEA_DHCP_DATA_DIR"))
    return ("env", *where, name, "-c", str(file))


def udhcpd(directory) -> tuple[str, ...]:
    """Returns the command line of busybox's server."""
    lines = [
        *("start 10.25.0.100", "end 10.25.0.149", f"interface {WIRE}", f"option lease {LIFETIME_S}", "min_lease 5"),
        *(f"lease_file {directory}/udhcpd.leases", f"pidfile {directory}/udhcpd.pid"),
        *("option subnet 255.255.255.0", f"option router {SERVER}"),
    ]
    file = directory / "udhcpd.conf"
    file.write_text("\n".join(lines) + "\n")
    (directory / "udhcpd.leases").touch()
    return ("udhcpd", "-f", str(file))


@pytest.fixture(params=["kea-dhcp4", "udhcpd", "kea-dhcp6"])
def server(request, needs_programs) -> str:
    """The name of each server."""
    needs_programs(request.param)
    return str(request.param)


@pytest.fixture
def other_node(host, new_sandbox, server, bin_dir, tmp_path) -> Iterator[Node]:
    """A node with each other server."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.server.argv = udhcpd(tmp_path) if server == "udhcpd" else kea(tmp_path, int(server[-1]))
        node.server.start()
        node.start_daemon()
        yield node


@pytest.mark.long
def test_lease_expires_without_a_server_and_is_leased_again(other_node, server, sandbox):
    """A lease is renewed; without a server its address is removed when it expires, and leased again with a server."""
    version, ip = (6, SERVER6) if server == "kea-dhcp6" else (4, SERVER)
    net = other_node.network(ipam={"ipv4": False, "ipv6": "dhcp"} if version == 6 else {})
    result = net.add(sandbox)
    assert version == 6 or reaches(sandbox, ip)  # without a router there is no route to the IPv6 prefix
    assert eventually(lambda: other_node.count_granted() >= 3), other_node.daemon.log.read_text()
    assert dhcp_node.addresses(sandbox, version) == [address(result)]
    other_node.server.stop()
    assert eventually(lambda: dhcp_node.addresses(sandbox, version) == []), other_node.daemon.log.read_text()
    assert other_node.daemon.logged("lease lost, it expired: no server renewed it")
    assert "no lease" in net.run("CHECK", sandbox, prev_result=result).error()["msg"]
    other_node.server.start()
    assert eventually(lambda: len(dhcp_node.addresses(sandbox, version)) == 1), other_node.daemon.log.read_text()
    assert version == 6 or reaches(sandbox, ip)
    net.delete(sandbox, result)
    assert other_node.list_files() == {}


@pytest.mark.parametrize("server", ["kea-dhcp4", "udhcpd"], indirect=True)
@pytest.mark.parametrize("is_expired", [True, False], ids=["expired", "of another boot"])
def test_stored_lease_is_confirmed_at_the_next_start_of_the_daemon(other_node, sandbox, is_expired):
    """A lease that expired while no daemon ran, or is of another boot, stays if its server confirms it."""
    result = other_node.network().add(sandbox)
    other_node.daemon.stop()
    (file,) = (other_node.data / "net").iterdir()
    content = json.loads(file.read_text())
    if is_expired:
        content["ipv4"]["grantedMs"] -= 1000 * LIFETIME_S
    else:
        content["bootID"] = "11111111-2222-3333-4444-555555555555"
    file.write_text(json.dumps(content))
    other_node.start_daemon()
    assert eventually(lambda: other_node.count_granted() >= 1), other_node.daemon.log.read_text()
    assert 'event="lost"' not in other_node.get_metrics()
    assert dhcp_node.addresses(sandbox) == [address(result)]
    assert reaches(sandbox, SERVER)
