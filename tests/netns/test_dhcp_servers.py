"""dhcp with other servers than dnsmasq, with leases of ten seconds: kea for both IP versions, and busybox's udhcpd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import dhcp_node
from tests.support.attaching import address, reaches
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import SERVER6, Node
from tests.support.machine import eventually
from tests.support.uplink import WIRE

LIFETIME_S = 10


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
def node(host, new_sandbox, server, bin_dir, tmp_path) -> Iterator[Node]:
    """A node with each server."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.server.argv = udhcpd(tmp_path) if server == "udhcpd" else kea(tmp_path, int(server[-1]))
        node.server.start()
        node.start_daemon()
        yield node


@pytest.mark.long
def test_lease_expires_without_a_server_and_is_leased_again(node, server, sandbox):
    """A lease is renewed; without a server its address is removed when it expires, and leased again with a server."""
    version, ip = (6, SERVER6) if server == "kea-dhcp6" else (4, SERVER)
    net = node.network(ipam={"ipv4": False, "ipv6": "dhcp"} if version == 6 else {})
    result = net.add(sandbox)
    assert version == 6 or reaches(sandbox, ip)  # without a router there is no route to the IPv6 prefix
    assert eventually(lambda: node.count_granted() >= 3), node.daemon.log.read_text()
    assert dhcp_node.addresses(sandbox, version) == [address(result)]
    node.server.stop()
    assert eventually(lambda: dhcp_node.addresses(sandbox, version) == []), node.daemon.log.read_text()
    assert node.daemon.logged("lease lost, it expired: no server renewed it")
    assert "no lease" in net.run("CHECK", sandbox, prev_result=result).error()["msg"]
    node.server.start()
    assert eventually(lambda: len(dhcp_node.addresses(sandbox, version)) == 1), node.daemon.log.read_text()
    assert version == 6 or reaches(sandbox, ip)
    net.delete(sandbox, result)
    assert node.list_files() == {}


@pytest.mark.parametrize("server", ["kea-dhcp4", "udhcpd"], indirect=True)
@pytest.mark.parametrize("is_expired", [True, False], ids=["expired", "of another boot"])
def test_stored_lease_is_confirmed_at_the_next_start_of_the_daemon(node, sandbox, is_expired):
    """A lease that expired while no daemon ran, or is of another boot, stays if its server confirms it."""
    result = node.network().add(sandbox)
    node.daemon.stop()
    (file,) = (node.data / "net").iterdir()
    content = json.loads(file.read_text())
    if is_expired:
        content["ipv4"]["grantedMs"] -= 1000 * LIFETIME_S
    else:
        content["bootID"] = "11111111-2222-3333-4444-555555555555"
    file.write_text(json.dumps(content))
    node.start_daemon()
    assert eventually(lambda: node.count_granted() >= 1), node.daemon.log.read_text()
    assert 'event="lost"' not in node.get_metrics()
    assert dhcp_node.addresses(sandbox) == [address(result)]
    assert reaches(sandbox, SERVER)
