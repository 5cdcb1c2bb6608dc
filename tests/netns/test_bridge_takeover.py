"""Taking over from the reference plugins and giving back to them: pods outlive the change of files under them."""

from dataclasses import replace

import pytest

from tests.support import binaries
from tests.support.attaching import address, reaches
from tests.support.netstate import links

KINDS = ("ours", "reference")


@pytest.fixture
def by(bin_dir):
    """A function that returns a network served by one kind of bridge and one kind of host-local."""
    directories = {"ours": bin_dir, "reference": binaries.REFERENCE}

    def change(net, bridge, ipam):
        return replace(net, bin_dir=directories[bridge], path=str(directories[ipam]))

    return change


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
@pytest.mark.parametrize("ipam", ["host-local stays", "host-local changes"])
@pytest.mark.parametrize(("maker", "taker"), [KINDS, KINDS[::-1]])
def test_a_pod_is_taken_over(dual_network, sandbox, by, version, ipam, maker, taker):
    """A pod made by one is CHECKed and DELeted by the other, with its own IPAM plugin or the other's."""
    net = dual_network.having(cniVersion=version)
    made = by(net, maker, maker)
    taken = by(net, taker, maker if ipam == "host-local stays" else taker)
    result = made.add(sandbox)
    taken.check(sandbox, result)
    made.check(sandbox, result)
    taken.delete(sandbox, result)
    assert (set(links(net.host)), set(links(sandbox))) == ({"lo", "cni0"}, {"lo"})
    assert net.leases() == {}
    made.delete(sandbox, result)


@pytest.mark.parametrize(("first", "second"), [KINDS, KINDS[::-1]])
def test_both_serve_one_bridge(dual_network, new_sandbox, by, first, second):
    """Pods made by both share a bridge, its gateway, its lease directory, and reach each other."""
    one, two, three = new_sandbox(), new_sandbox(), new_sandbox()
    old, new = by(dual_network, first, first), by(dual_network, second, second)
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
@pytest.mark.parametrize(("maker", "taker"), [KINDS, KINDS[::-1]])
def test_options_are_taken_over(network, sandbox, by, maker, taker, keys):
    """What one has set up with an option, the other checks and deletes with the same option."""
    net = network.having(**keys)
    result = by(net, maker, maker).add(sandbox)
    by(net, taker, taker).check(sandbox, result)
    by(net, taker, taker).delete(sandbox, result)
    assert net.leases() == {}


def test_a_layer_2_pod_is_taken_over(network, sandbox, by):
    """A pod without IPAM made by the reference, which cannot CHECK it, is CHECKed and DELeted by us."""
    net = network.having(ipam=None, isDefaultGateway=None)
    result = by(net, "reference", "reference").add(sandbox)
    by(net, "ours", "ours").check(sandbox, result)
    by(net, "ours", "ours").delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}


@pytest.mark.parametrize(("maker", "taker"), [KINDS, KINDS[::-1]])
def test_a_second_add_by_the_other_is_refused(network, sandbox, by, maker, taker):
    """ADD of a living attachment by the other plugin fails and leaves it working."""
    result = by(network, maker, maker).add(sandbox)
    assert "already exists" in by(network, taker, taker).run("ADD", sandbox).stdout.decode()
    assert reaches(network.host, address(result))


@pytest.mark.parametrize(("maker", "taker"), [KINDS, KINDS[::-1]])
def test_pods_that_died_in_a_reboot_are_taken_over(network, sandbox, by, maker, taker):
    """After a reboot only lease files are left; DEL by the other, with prevResult but no namespace, frees them."""
    result = by(network, maker, maker).add(sandbox)
    sandbox.delete()
    network.host.ip("link", "del", "cni0")
    by(network, taker, taker).delete(sandbox, result)
    assert network.leases() == {}
