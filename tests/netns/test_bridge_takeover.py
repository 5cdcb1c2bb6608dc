"""Switching between podwire and the reference plugins while pods run."""

from dataclasses import replace

import pytest

from tests.support import binaries
from tests.support.attaching import address, reaches
from tests.support.netstate import links

KINDS = ("podwire", "reference")


@pytest.fixture
def network_of(bin_dir):
    """A function that returns a network with the bridge of one implementation and the host-local of one."""
    directories = {"podwire": bin_dir, "reference": binaries.REFERENCE}

    def change(net, bridge, ipam):
        return replace(net, bin_dir=directories[bridge], path=str(directories[ipam]))

    return change


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
@pytest.mark.parametrize("ipam", ["host-local stays", "host-local changes"])
@pytest.mark.parametrize(("created_by", "deleted_by"), [KINDS, KINDS[::-1]])
def test_pod_is_checked_and_deleted_by_the_other(
    dual_network, sandbox, network_of, version, ipam, created_by, deleted_by
):
    """A pod of one implementation passes CHECK and DEL of the other, which refuses a second ADD, with either IPAM."""
    net = dual_network.having(cniVersion=version)
    creator = network_of(net, created_by, created_by)
    deleter = network_of(net, deleted_by, created_by if ipam == "host-local stays" else deleted_by)
    result = creator.add(sandbox)
    deleter.check(sandbox, result)
    creator.check(sandbox, result)
    assert b"already exists" in deleter.run("ADD", sandbox, container_id="another").stdout
    deleter.check(sandbox, result)
    deleter.delete(sandbox, result)
    assert (set(links(net.host)), set(links(sandbox))) == ({"lo", "cni0"}, {"lo"})
    assert net.leases() == {}
    creator.delete(sandbox, result)


@pytest.mark.parametrize(("first", "second"), [KINDS, KINDS[::-1]])
def test_both_share_a_bridge(dual_network, new_sandbox, network_of, first, second):
    """Pods of both implementations share bridge, gateway and lease directory, and reach each other."""
    one, two, three = new_sandbox(), new_sandbox(), new_sandbox()
    old, new = network_of(dual_network, first, first), network_of(dual_network, second, second)
    results = [old.add(one), new.add(two), old.add(three)]
    assert [address(result) for result in results] == ["10.22.0.2", "10.22.0.3", "10.22.0.4"]
    assert reaches(one, "10.22.0.3")
    assert reaches(two, address(results[2], 1))
    assert reaches(two, "10.22.0.1")
    for net in (old, new):
        for pod, result in zip((one, two, three), results, strict=True):
            net.check(pod, result)
    new.delete(one, results[0])
    assert reaches(two, "10.22.0.4")


@pytest.mark.parametrize("keys", [{"hairpinMode": True}, {"promiscMode": True}, {"mtu": 1400}, {"enabledad": True}])
@pytest.mark.parametrize(("created_by", "deleted_by"), [KINDS, KINDS[::-1]])
def test_options_are_checked_and_deleted_by_the_other(network, sandbox, network_of, created_by, deleted_by, keys):
    """An attachment with an option passes CHECK and DEL of the other implementation with that option."""
    net = network.having(**keys)
    result = network_of(net, created_by, created_by).add(sandbox)
    network_of(net, deleted_by, deleted_by).check(sandbox, result)
    network_of(net, deleted_by, deleted_by).delete(sandbox, result)
    assert net.leases() == {}


def test_layer_2_pod_of_the_reference(network, sandbox, network_of):
    """A pod of the reference without IPAM passes podwire's CHECK and DEL."""
    net = network.having(ipam=None, isDefaultGateway=None)
    result = network_of(net, "reference", "reference").add(sandbox)
    network_of(net, "podwire", "podwire").check(sandbox, result)
    network_of(net, "podwire", "podwire").delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}


@pytest.mark.parametrize(("created_by", "deleted_by"), [KINDS, KINDS[::-1]])
def test_leases_after_a_reboot_are_released_by_the_other(network, sandbox, network_of, created_by, deleted_by):
    """After a reboot, DEL of the other implementation releases the lease by prevResult without a namespace."""
    result = network_of(network, created_by, created_by).add(sandbox)
    sandbox.delete()
    network.host.ip("link", "del", "cni0")
    network_of(network, deleted_by, deleted_by).delete(sandbox, result)
    assert network.leases() == {}
