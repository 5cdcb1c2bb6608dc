"""macvlan, ipvlan and vlan on a master that is down or has no carrier."""

from __future__ import annotations

import pytest

from tests.support.netstate import state
from tests.support.uplink import UPLINK, WIRE

EXISTING = {
    "macvlan": pytest.param("macvlan", marks=pytest.mark.needs("macvlan")),
    "ipvlan": pytest.param("ipvlan", marks=pytest.mark.needs("ipvlan")),
    "vlan": pytest.param("vlan", marks=pytest.mark.needs("vlan_device")),
}


@pytest.fixture(params=EXISTING.values())
def net(request, macvlan):
    """A dual-stack network of each plugin on the host's uplink, with STATUS."""
    keys = {"vlanId": 100} if request.param == "vlan" else {}
    return macvlan.having(type=request.param, cniVersion="1.1.0", **keys)


def test_master_that_is_down_is_refused(net, sandbox):
    """ADD and STATUS refuse it with the command that brings it up; nothing changes."""
    net.host.ip("link", "set", UPLINK, "down")
    before = state(net.host), state(sandbox)
    error = net.run("ADD", sandbox).error()
    assert (error["code"], error["msg"], error["details"]) == (7, 'master "up0" is down', 'ip link set "up0" up')
    assert (state(net.host), state(sandbox), net.leases()) == (*before, {})
    assert net.run("STATUS").error()["code"] == 50
    net.host.run("sh", "-ec", error["details"])
    net.add(sandbox)


def test_master_without_carrier(net, sandbox, neighbour):
    """STATUS reports it; ADD accepts it with IPv4, since the carrier may come later, as do the reference plugins."""
    neighbour.ip("link", "set", WIRE, "down")
    error = net.run("STATUS").error()
    assert (error["code"], 'master "up0" has no carrier' in error["msg"]) == (50, True)
    ipam = {**net.config["ipam"], "ranges": [[{"subnet": "10.25.0.0/24"}]]}
    net.having(ipam=ipam).add(sandbox)
    neighbour.ip("link", "set", WIRE, "up")
    net.run("STATUS").assert_silent()
