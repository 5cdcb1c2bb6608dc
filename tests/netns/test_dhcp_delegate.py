"""IPAM of type dhcp: the reference's plugin and its daemon, with dnsmasq on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support import binaries
from tests.support.attaching import Network, address, reaches
from tests.support.dhcp import SERVER, Dhcp, reference_daemon
from tests.support.uplink import UPLINK


@pytest.fixture
def dhcp(host, new_sandbox, reference, tmp_path) -> Iterator[Dhcp]:
    with reference_daemon(host, new_sandbox(), reference, tmp_path) as dhcp:
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
    assert dhcp.releases_as_expected(), dhcp.list_leases()
