"""macvlan, ipvlan and vlan on a master that is down or has no carrier."""

from functools import partial

import pytest

from tests.support.attaching import DEBUG_LOG, address, list_steps, reaches
from tests.support.machine import eventually
from tests.support.netstate import state
from tests.support.single_link import ON_MASTER, each
from tests.support.uplink import NEIGHBOUR, SUBNETS, UPLINK, WIRE, ranges


@each("macvlan", "ipvlan")
def test_master_that_is_down_is_accepted(net, sandbox, neighbour):
    """ADD attaches without a wait, as the reference plugins do; stderr and STATUS report the master."""
    net.host.ip("link", "set", UPLINK, "down")
    outcome = net.run("ADD", sandbox, env=DEBUG_LOG)
    result = outcome.result()
    assert list_steps(outcome)[-1] == "add addresses and routes"  # and not a wait for the IPv6 addresses
    net.check(sandbox, result)
    error = net.run("STATUS").error()
    assert (error["code"], error["msg"], error["details"]) == (50, 'master "up0" is down', 'ip link set "up0" up')
    assert f"{error['msg']}, and the pod has no connection until it is up: {error['details']}" in outcome.stderr
    net.host.run("sh", "-ec", error["details"])
    net.run("STATUS").assert_silent()
    for item in NEIGHBOUR:
        # ping ends at once while the kernel verifies the pod's IPv6 address, which it does now
        assert eventually(partial(reaches, sandbox, item.partition("/")[0]))
    net.delete(sandbox, result)
    assert net.leases() == {}


@pytest.mark.needs("ipvlan", "dummy")
def test_pods_on_a_dummy_that_is_down(ipvlan, sandbox, new_sandbox):
    """Pods of a host-only ipvlan, on an interface without any connection, reach each other while it is down."""
    ipvlan.host.ip("link", "add", "lab0", "type", "dummy")
    net = ipvlan.having(master="lab0", mode="l3", ipam={**ipvlan.config["ipam"], "ranges": ranges(SUBNETS[0])})
    net.add(sandbox)
    assert reaches(sandbox, address(net.add(new_sandbox())))


@each(*ON_MASTER)
@pytest.mark.parametrize("key", ["hostAccess", "conflictDetection"])
def test_master_that_must_be_up(net, sandbox, key):
    """Each plugin with a key that needs a master that is up, and vlan without any, refuse another; nothing changes."""
    net = net.having(**{key: True})
    net.host.ip("link", "set", UPLINK, "down")
    before = state(net.host), state(sandbox)
    error = net.run("ADD", sandbox).error()
    assert (error["code"], error["msg"], error["details"]) == (7, 'master "up0" is down', 'ip link set "up0" up')
    assert (state(net.host), state(sandbox), net.leases()) == (*before, {})
    assert net.run("STATUS").error()["code"] == 50
    net.host.run("sh", "-ec", error["details"])
    net.add(sandbox)


@each("vlan")
def test_check_of_vlan_with_a_master_that_is_down(net, sandbox):
    """The kernel sets a VLAN interface down with its master: CHECK prints the command for the master, which helps."""
    result = net.add(sandbox)
    net.host.ip("link", "set", UPLINK, "down")
    error = net.run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == 'master "up0" is down'
    net.host.run("sh", "-ec", error["details"])
    net.check(sandbox, result)


@each(*ON_MASTER)
def test_master_without_carrier(net, sandbox, neighbour):
    """STATUS reports it; ADD accepts it with IPv4, since the carrier may come later, as do the reference plugins."""
    neighbour.ip("link", "set", WIRE, "down")
    error = net.run("STATUS").error()
    assert (error["code"], 'master "up0" has no carrier' in error["msg"]) == (50, True)
    ipam = {**net.config["ipam"], "ranges": [[{"subnet": "10.25.0.0/24"}]]}
    net.having(ipam=ipam).add(sandbox)
    neighbour.ip("link", "set", WIRE, "up")
    net.run("STATUS").assert_silent()


@pytest.mark.parametrize(("net", "other"), [("macvlan", "ipvlan"), ("ipvlan", "macvlan")], indirect=["net"])
@pytest.mark.needs("macvlan", "ipvlan")
def test_macvlan_and_ipvlan_on_one_master(net, sandbox, other):
    """A master with an interface of the other kind is refused with the reason, and nothing changes."""
    net.host.ip("link", "add", "i0", "link", UPLINK, "type", other)
    before = state(net.host), state(sandbox)
    error = net.run("ADD", sandbox).error()
    assert error["msg"] == f"failed to create {net.config['type']}: device or resource busy"
    assert f"{net.config['type']} and {other} cannot share a master" in error["details"]
    assert (state(net.host), state(sandbox), net.leases()) == (*before, {})
