"""ipvlan's `hostAccess` where it differs from macvlan's: one MAC address for all, a mode for each master."""

import pytest

from tests.netns.conftest import IPVLAN
from tests.support import uplink
from tests.support.attaching import address, reaches
from tests.support.netstate import links, shown, state
from tests.support.uplink import UPLINK

pytestmark = pytest.mark.parametrize("accessible", [IPVLAN], indirect=True)

NODE = [item.partition("/")[0] for item in uplink.HOST]
RP_FILTER = f"net/ipv4/conf/{UPLINK}/rp_filter"


@pytest.mark.long
def test_strict_reverse_path_filter(accessible, sandbox):
    """ADD, CHECK and repair report that the node would drop IPv4 packets; the command in `details` is sufficient."""
    host = accessible.host
    host.set_sysctl("net/ipv4/conf/all/rp_filter", "1")
    before = state(host), state(sandbox)
    error = accessible.run("ADD", sandbox).error()
    assert error["msg"] == 'the node drops packets of pods to it: rp_filter of "up0" is strict'
    assert error["details"] == f'on the node: sysctl -w {RP_FILTER}=2; or use mode "l3"'
    assert (state(host), state(sandbox), accessible.leases()) == (*before, {})
    host.set_sysctl(RP_FILTER, "2")
    result = accessible.add(sandbox)
    for number in (0, 1):
        assert reaches(sandbox, NODE[number])
        assert reaches(host, address(result, number))
    accessible.check(sandbox, result)
    host.set_sysctl(RP_FILTER, "0")
    assert accessible.run("CHECK", sandbox, prev_result=result).error()["msg"] == error["msg"]
    assert not reaches(sandbox, NODE[0], within_s=1)
    assert reaches(sandbox, NODE[1])


@pytest.mark.long
def test_strict_reverse_path_filter_and_ipv6(accessible, sandbox):
    """The reverse path filter does not concern pods with IPv6 addresses only."""
    accessible.host.set_sysctl("net/ipv4/conf/all/rp_filter", "1")
    ipam = {**accessible.config["ipam"], "ranges": uplink.ranges(uplink.SUBNETS[1])}
    result = accessible.having(ipam=ipam).add(sandbox)
    assert reaches(sandbox, NODE[1])
    assert reaches(accessible.host, address(result))


@pytest.mark.long
def test_host_link_does_not_use_arp(accessible, sandbox, new_sandbox):
    """The host link resolves no neighbours; CHECK reports when it does, and the next ADD restores that."""
    result = accessible.add(sandbox)
    name = uplink.host_link(accessible.host)
    link = shown(accessible.host, name)
    assert (link["linkinfo"]["info_data"]["mode"], link["address"]) == ("l2", shown(sandbox, "eth0")["address"])
    accessible.host.ip("link", "set", name, "arp", "on")
    error = accessible.run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == f"The host's interface {name} uses ARP, whose answers it does not get"
    assert not reaches(accessible.host, address(result), within_s=1)
    accessible.add(new_sandbox())
    accessible.check(sandbox, result)
    assert reaches(accessible.host, address(result))


def test_another_mac_address_of_the_master(accessible, sandbox, new_sandbox):
    """CHECK reports when the master, and so its interfaces, have another MAC address than the pod's entries."""
    result = accessible.add(sandbox)
    accessible.host.ip("link", "set", UPLINK, "address", "02:00:00:00:00:99")
    changed = {**result, "interfaces": [{**result["interfaces"][0], "mac": "02:00:00:00:00:99"}]}
    error = accessible.run("CHECK", sandbox, prev_result=changed).error()
    assert error["msg"] == f"The container's route or neighbour entry for the node's address {NODE[0]} is missing"


@pytest.mark.long
def test_master_of_the_default_route(accessible, sandbox):
    """Without `master` CHECK and DEL find the host's access when the default route has changed."""
    net, before = accessible.having(master=None), set(links(accessible.host))
    net.host.ip("route", "add", "default", "via", "10.25.0.1")
    result = net.add(sandbox)
    net.host.ip("route", "del", "default")
    net.check(sandbox, result)
    net.host.ip("link", "set", uplink.host_link(net.host), "down")
    assert net.run("CHECK", sandbox, prev_result=result).error()["details"] == "run: podwire repair"
    net.delete(sandbox, result)
    assert set(links(net.host)) == before


@pytest.mark.long
def test_another_mode_on_the_master(accessible, sandbox, new_sandbox):
    """After a pod with another mode CHECK reports the mode; when that is right again, the entry that it cost."""
    result = accessible.add(sandbox)
    other = accessible.having(
        name="other", mode="l3", ipam=uplink.plugin("ipvlan l3", accessible.config["ipam"])["ipam"]
    )
    disturber = new_sandbox()
    other.add(disturber)
    error = accessible.run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == "Container IPVlan mode l3 does not match expected value: l2"
    disturber.delete()
    second = new_sandbox()
    other_result = accessible.add(second)
    error = accessible.run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == f"The container's route or neighbour entry for the node's address {NODE[0]} is missing"
    for number in (0, 1):
        assert reaches(second, NODE[number])
        assert reaches(accessible.host, address(other_result, number))
