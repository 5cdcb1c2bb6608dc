"""dhcp with IPv6: DHCPv6 and router advertisements of dnsmasq, and kea with short leases and without a router."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support import dhcp_node
from tests.support.attaching import reaches
from tests.support.dhcp_node import Node
from tests.support.machine import eventually
from tests.support.netstate import shown
from tests.support.uplink import WIRE

SERVER6 = "fd00:25::1"
MANAGED = ("--enable-ra", "--dhcp-range=fd00:25::100,fd00:25::1ff,64,1h")
AUTONOMOUS = ("--enable-ra", "--dhcp-range=fd00:25::,ra-only,64,1h")


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server has an IPv6 address, too; the server does not run yet."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.machine.ip("address", "add", f"{SERVER6}/64", "dev", WIRE)
        yield node


def leased6(result) -> str:
    """Returns the IPv6 address of a result, with its prefix length."""
    (leased,) = [item["address"] for item in result["ips"] if ":" in item["address"]]
    return str(leased)


def addresses6(pod) -> list[str]:
    """Returns the global IPv6 addresses of the pod's eth0, with prefix lengths."""
    return [line.split()[3] for line in pod.ip("-6", "-o", "addr", "show", "eth0", "scope", "global").splitlines()]


def get_link_local(node: Node) -> str:
    """Returns the router's link-local address."""
    line = node.machine.ip("-6", "-o", "addr", "show", WIRE, "scope", "link")
    return line.split()[3].partition("/")[0]


@pytest.mark.parametrize("mode", ["dhcp", "auto"])
@pytest.mark.parametrize("kind", ["macvlan", "bridge"])
def test_dual_stack_with_dhcpv6(kind, mode, node, sandbox):
    """One ADD gets an IPv4 lease, an address from DHCPv6, the prefix and the router; DEL releases both leases."""
    node.start_server(*MANAGED)
    node.start_daemon()
    net = node.network(kind, ipam={"ipv6": mode})
    result = net.add(sandbox)
    address = leased6(result)
    assert address.startswith("fd00:25::1")
    assert address.endswith("/128")
    assert {"dst": "fd00:25::/64"} in result["routes"]
    assert {"dst": "::/0", "gw": get_link_local(node)} in result["routes"]
    assert reaches(sandbox, SERVER6)
    assert reaches(sandbox, "10.25.0.1")
    net.check(sandbox, result)
    assert address.removesuffix("/128") in (node.directory / "leases").read_text()
    net.delete(sandbox, result)
    assert eventually(lambda: address.removesuffix("/128") not in (node.directory / "leases").read_text())
    assert node.list_files() == {}


@pytest.mark.parametrize("mode", ["slaac", "auto"])
def test_ipv6_only_by_router_advertisements(mode, node, sandbox):
    """Without IPv4, an address is formed from the advertised prefix, as the kernel would."""
    node.start_server(*AUTONOMOUS)
    node.start_daemon()
    net = node.network(ipam={"ipv4": False, "ipv6": mode})
    result = net.add(sandbox)
    assert leased6(result).startswith("fd00:25::")
    assert leased6(result).endswith("/64")
    assert len(result["ips"]) == 1
    assert addresses6(sandbox) == [leased6(result)]
    assert reaches(sandbox, SERVER6)
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert node.list_files() == {}


def test_dns_and_mtu_of_ipv6(node, sandbox):
    """DNS settings come from the DHCPv6 server, the MTU from the router."""
    node.start_server(*MANAGED, f"--ra-param={WIRE},mtu:1400,0,0", "--dhcp-option=option6:dns-server,[fd00:25::53]")
    node.start_daemon()
    ipam = {"ipv4": False, "ipv6": "dhcp", "request": [{"option": "domain-name-servers"}]}
    assert node.network(ipam=ipam).add(sandbox)["dns"]["nameservers"] == ["fd00:25::53"]
    assert shown(sandbox, "eth0")["mtu"] == 1400


def test_killed_daemon_keeps_ipv6_leases(node, sandbox):
    """After a kill and a new start the daemon knows the IPv6 lease, and releases it at DEL."""
    node.start_server(*MANAGED)
    node.start_daemon()
    net = node.network(ipam={"ipv6": "dhcp"})
    result = net.add(sandbox)
    node.daemon.stop()
    node.start_daemon()
    net.check(sandbox, result)
    assert net.having(type="dhcp").add(sandbox)["ips"][1]["address"] == leased6(result)
    net.delete(sandbox, result)
    assert eventually(lambda: leased6(result).partition("/")[0] not in (node.directory / "leases").read_text())


def test_del_without_daemon_releases_ipv6_later(node, sandbox):
    """The next daemon releases the DHCPv6 lease of a pod that was deleted without a daemon, from the master."""
    node.start_server(*MANAGED)
    node.start_daemon()
    net = node.network(ipam={"ipv4": False, "ipv6": "dhcp"})
    result = net.add(sandbox)
    node.daemon.stop()
    net.delete(sandbox, result)
    assert leased6(result).partition("/")[0] in (node.directory / "leases").read_text()
    node.start_daemon()
    assert eventually(lambda: leased6(result).partition("/")[0] not in (node.directory / "leases").read_text())


def test_add_fails_if_one_of_both_versions_has_no_server(node, sandbox):
    """If one IP version gets no lease in time, ADD fails, and the lease of the other one is released."""
    node.start_server()
    node.daemon.argv = (*node.daemon.argv, "-resendtimeout=3s")
    node.start_daemon()
    outcome = node.network(ipam={"ipv6": "dhcp"}).run("ADD", sandbox)
    assert outcome.error()["msg"].startswith("error calling DHCP.Allocate: ")
    assert eventually(lambda: node.list_leases() == [])
    assert node.list_files() == {}


def kea6(directory) -> tuple[str, ...]:
    """Returns the command line of kea's DHCPv6 server with leases of ten seconds."""
    conf = {
        "Dhcp6": {
            "interfaces-config": {"interfaces": [WIRE]},
            "server-id": {"type": "LL", "persist": False},
            "lease-database": {"type": "memfile", "persist": True, "name": str(directory / "leases6.csv")},
            "preferred-lifetime": 8,
            "valid-lifetime": 10,
            "renew-timer": 3,
            "rebind-timer": 6,
            "subnet6": [
                {"subnet": "fd00:25::/64", "interface": WIRE, "pools": [{"pool": "fd00:25::100 - fd00:25::1ff"}]}
            ],
            "loggers": [{"name": "kea-dhcp6", "output_options": [{"output": "stdout"}], "severity": "INFO"}],
        }
    }
    file = directory / "kea6.json"
    file.write_text(json.dumps(conf))
    where = (f"KEA_PIDFILE_DIR={directory}", f"KEA_LOCKFILE_DIR={directory}", f"KEA_DHCP_DATA_DIR={directory}")
    return ("env", *where, "kea-dhcp6", "-c", str(file))


def test_ipv6_lease_is_renewed_expires_and_is_leased_again(node, sandbox, needs_programs):
    """A DHCPv6 lease without a router is renewed; it expires without the server, and is leased again with it."""
    needs_programs("kea-dhcp6")
    node.server.argv = kea6(node.directory)
    node.server.start()
    node.start_daemon()
    net = node.network(ipam={"ipv4": False, "ipv6": "dhcp"})
    result = net.add(sandbox)
    assert addresses6(sandbox) == [leased6(result)]
    assert eventually(lambda: 'event="granted"} 3' in node.get_metrics(), within_s=20), node.daemon.log.read_text()
    assert addresses6(sandbox) == [leased6(result)]
    node.server.stop()
    assert eventually(lambda: addresses6(sandbox) == [], within_s=30), node.daemon.log.read_text()
    node.server.start()
    assert eventually(lambda: len(addresses6(sandbox)) == 1, within_s=30), node.daemon.log.read_text()
    net.delete(sandbox, result)
    assert node.list_files() == {}
