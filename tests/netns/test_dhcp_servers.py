"""dhcp with other servers than dnsmasq: kea with leases of ten seconds, and busybox's udhcpd."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support import dhcp_node
from tests.support.attaching import address, reaches
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import Node
from tests.support.machine import eventually
from tests.support.uplink import WIRE

LIFETIME_S = 10


def kea(directory) -> tuple[str, ...]:
    """Returns the command line of kea's server with leases of ten seconds."""
    conf = {
        "Dhcp4": {
            "interfaces-config": {"interfaces": [WIRE]},
            "lease-database": {"type": "memfile", "persist": True, "name": str(directory / "leases.csv")},
            "valid-lifetime": LIFETIME_S,
            "renew-timer": 3,
            "rebind-timer": 6,
            "authoritative": True,
            "subnet4": [
                {
                    "subnet": "10.25.0.0/24",
                    "pools": [{"pool": "10.25.0.100 - 10.25.0.149"}],
                    "option-data": [{"name": "routers", "data": SERVER}],
                }
            ],
            "loggers": [{"name": "kea-dhcp4", "output_options": [{"output": "stdout"}], "severity": "INFO"}],
        }
    }
    file = directory / "kea.json"
    file.write_text(json.dumps(conf))
    where = (f"KEA_PIDFILE_DIR={directory}", f"KEA_LOCKFILE_DIR={directory}")
    return ("env", *where, "kea-dhcp4", "-c", str(file))


def udhcpd(directory) -> tuple[str, ...]:
    """Returns the command line of busybox's server with leases of ten seconds."""
    lines = [
        "start 10.25.0.100",
        "end 10.25.0.149",
        f"interface {WIRE}",
        f"lease_file {directory / 'udhcpd.leases'}",
        f"pidfile {directory / 'udhcpd.pid'}",
        f"option lease {LIFETIME_S}",
        "min_lease 5",
        "option subnet 255.255.255.0",
        f"option router {SERVER}",
    ]
    file = directory / "udhcpd.conf"
    file.write_text("\n".join(lines) + "\n")
    (directory / "udhcpd.leases").touch()
    return ("udhcpd", "-f", str(file))


@pytest.fixture(params=[kea, udhcpd], ids=lambda server: server.__name__)
def node(request, host, new_sandbox, needs_programs, bin_dir, tmp_path) -> Iterator[Node]:
    """A node with each server."""
    needs_programs("kea-dhcp4" if request.param is kea else "udhcpd")
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.server.argv = request.param(tmp_path)
        node.server.start()
        node.start_daemon()
        yield node


def addresses(pod) -> list[str]:
    """Returns the IPv4 addresses of the pod's eth0."""
    return [line.split()[3].partition("/")[0] for line in pod.ip("-4", "-o", "addr", "show", "eth0").splitlines()]


def test_lease_expires_without_a_server_and_is_leased_again(node, sandbox):
    """Without a server the address is removed when the lease expires; the pod gets one when the server is back."""
    net = node.network()
    result = net.add(sandbox)
    assert reaches(sandbox, SERVER)
    assert eventually(lambda: 'event="granted"} 2' in node.get_metrics()), node.daemon.log.read_text()
    assert addresses(sandbox) == [address(result)]
    node.server.stop()
    assert eventually(lambda: addresses(sandbox) == [], within_s=2 * LIFETIME_S), node.daemon.log.read_text()
    assert node.daemon.logged("lease lost, it expired: no server renewed it")
    assert "no lease" in net.run("CHECK", sandbox, prev_result=result).error()["msg"]
    node.server.start()
    assert eventually(lambda: len(addresses(sandbox)) == 1, within_s=2 * LIFETIME_S), node.daemon.log.read_text()
    assert reaches(sandbox, SERVER)
    net.delete(sandbox, result)
    assert node.list_files() == {}


def test_expired_lease_is_confirmed_at_the_next_start_of_the_daemon(node, sandbox):
    """A lease that expired while no daemon ran stays if its server confirms it."""
    result = node.network().add(sandbox)
    node.daemon.stop()
    (file,) = (node.data / "net").iterdir()
    content = json.loads(file.read_text())
    content["ipv4"]["grantedMs"] -= 1000 * LIFETIME_S
    file.write_text(json.dumps(content))
    node.start_daemon()
    assert eventually(lambda: 'event="granted"} 1' in node.get_metrics()), node.daemon.log.read_text()
    assert 'event="lost"' not in node.get_metrics()
    assert addresses(sandbox) == [address(result)]
    assert reaches(sandbox, SERVER)
