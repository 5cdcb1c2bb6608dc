"""IPAM of type dhcp: the reference's plugin and its daemon, with dnsmasq on the wire."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import binaries, uplink
from tests.support.attaching import Network, address, reaches
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.uplink import UPLINK, WIRE

SERVER = "10.25.0.1"
RANGE = "10.25.0.100,10.25.0.110,255.255.255.0,1h"


@contextmanager
def running(machine: Namespace, *argv: str) -> Iterator[None]:
    """Runs a daemon on a machine during the block; it sees the namespaces that are created meanwhile."""
    null = subprocess.DEVNULL
    with machine.entered():
        daemon = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
    try:
        yield
    finally:
        daemon.kill()
        daemon.wait()


class Dhcp:
    """A DHCP server on the wire, and the reference's daemon on the host."""

    def __init__(self, directory: Path) -> None:
        self.leases = directory / "leases"
        self.socket = directory / "dhcp.sock"

    def list_leases(self) -> list[str]:
        """Returns the leased addresses."""
        return [line.split()[2] for line in self.leases.read_text().splitlines()] if self.leases.exists() else []


@pytest.fixture
def dhcp(host, new_sandbox, reference, tmp_path) -> Iterator[Dhcp]:
    machine = new_sandbox()
    uplink.connect(host, machine, [f"{SERVER}/24"])
    dhcp = Dhcp(tmp_path)
    server = [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        f"--interface={WIRE}",
        "--bind-interfaces",
        "--port=0",
        "--dhcp-authoritative",
    ]
    server += ["--no-ping", f"--dhcp-range={RANGE}", f"--dhcp-leasefile={dhcp.leases}", "--user=root", "--pid-file"]
    daemon = [str(reference / "dhcp"), "daemon", "-socketpath", str(dhcp.socket)]
    with running(machine, *server), running(host, *daemon):
        assert eventually(dhcp.socket.exists)
        yield dhcp


@pytest.fixture(params=["bridge", "host-device", "macvlan"])
def net(request, bin_dir, host, dhcp, reference, tmp_path) -> Network:
    """A network of each kind of interface on the wire."""
    keys = {
        "bridge": {"bridge": "br0"},
        "host-device": {"device": UPLINK, "dataDir": str(tmp_path / "devices")},
        "macvlan": {"master": UPLINK},
    }
    if request.param == "bridge":
        host.run("sh", "-ec", f"ip link add br0 type bridge; ip link set {UPLINK} master br0; ip link set br0 up")
    ipam = {"type": "dhcp", "daemonSocketPath": str(dhcp.socket)}
    conf = {"cniVersion": "1.0.0", "name": "net", "type": request.param, **keys[request.param], "ipam": ipam}
    return replace(Network(host, conf), path=f"{binaries.directory()}:{reference}")


def test_lease_is_acquired_and_released(net, sandbox, dhcp):
    """A pod gets an address and a route from the server; DEL gives the lease back, while the interface exists."""
    result = net.add(sandbox)
    assert dhcp.list_leases() == [address(result)]
    assert reaches(sandbox, SERVER)
    net.delete(sandbox, result)
    assert eventually(lambda: dhcp.list_leases() == []), dhcp.list_leases()
