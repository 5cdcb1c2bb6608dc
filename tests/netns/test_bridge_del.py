"""DEL of bridge: everything goes, whatever is gone already."""

import subprocess

import pytest

from tests.support.attaching import reaches
from tests.support.netstate import links, state


def test_link_and_lease_go_the_bridge_stays(network, new_sandbox):
    """DEL takes both ends and the lease away at once; bridge, gateway address and other pods stay."""
    one, two = new_sandbox(), new_sandbox()
    first = network.add(one)
    before = state(network.host), state(two)
    second = network.add(two)
    network.delete(two, second)
    assert (state(network.host), state(two)) == before
    assert network.leases() == {"10.22.0.2": one.name}
    assert reaches(one, first["ips"][0]["gateway"])
    network.delete(one, first)
    assert set(links(network.host)) == {"lo", "cni0"}
    assert network.leases() == {}


def test_a_second_add_and_del_add_nothing(dual_network, sandbox):
    """After ADD and DEL, the state after another ADD and DEL is the same."""
    dual_network.delete(sandbox, dual_network.add(sandbox))
    before = state(dual_network.host), state(sandbox)
    dual_network.delete(sandbox, dual_network.add(sandbox))
    assert (state(dual_network.host), state(sandbox)) == before


def test_twice_and_without_add(network, sandbox):
    """DEL succeeds when there is nothing left, and when there never was anything."""
    before = state(network.host), state(sandbox)
    network.delete(sandbox)
    assert (state(network.host), state(sandbox)) == before
    result = network.add(sandbox)
    for _ in range(2):
        network.delete(sandbox, result)
    assert network.leases() == {}
    assert (set(links(network.host)), set(links(sandbox))) == ({"lo", "cni0"}, {"lo"})


@pytest.mark.parametrize("netns", [None, "", "/run/netns/absent", "/dev/null/absent"])
def test_without_namespace_the_lease_goes(network, sandbox, netns):
    """DEL with CNI_NETNS unset, empty or naming nothing releases the address, and again."""
    network.add(sandbox)
    sandbox.delete()
    for _ in range(2):
        network.delete(netns, container_id=sandbox.name)
    assert network.leases() == {}


def test_a_plain_file_at_the_path(network, sandbox, tmp_path):
    """DEL releases the address when an unmount has left an ordinary file where the namespace was."""
    network.add(sandbox)
    sandbox.delete()
    file = tmp_path / "netns"
    file.touch()
    network.delete(str(file), container_id=sandbox.name)
    assert network.leases() == {}


@pytest.mark.parametrize("unset", [True, False], ids=["CNI_NETNS unset", "CNI_NETNS names nothing"])
def test_a_namespace_without_file_loses_its_interface(network, sandbox, unset):
    """A namespace kept alive by a process but without its file is cleaned from the host's side, by prevResult."""
    result = network.add(sandbox)
    holder = subprocess.Popen(["nsenter", f"--net={sandbox.path}", "sleep", "60"])
    try:
        inside = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "ip", "-o", "link", "show")
        network.host.run(*inside)
        sandbox.delete()
        assert "eth0" in network.host.run(*inside)
        network.delete(None if unset else sandbox.path, result, container_id=sandbox.name)
        assert "eth0" not in network.host.run(*inside)
        assert set(links(network.host)) == {"lo", "cni0"}
        assert network.leases() == {}
    finally:
        holder.kill()
        holder.wait()


def test_the_host_end_gone_by_hand(network, sandbox):
    """DEL succeeds after somebody deleted the pair or the bridge."""
    network.add(sandbox)
    network.host.ip("link", "del", "cni0")
    network.delete(sandbox)
    assert (set(links(network.host)), set(links(sandbox))) == ({"lo"}, {"lo"})
    assert network.leases() == {}


def test_another_kind_of_interface_is_deleted_too(network, sandbox):
    """DEL deletes the interface of the name, whatever kind it is, as the reference does."""
    sandbox.ip("link", "add", "eth0", "type", "bridge")
    network.delete(sandbox)
    assert set(links(sandbox)) == {"lo"}


def test_only_its_own_interface_goes(network, sandbox):
    """DEL of one of two interfaces of a container leaves the other with its lease."""
    network.add(sandbox, ifname="eth0")
    second = network.having(bridge="cni1", name="other", isDefaultGateway=None).add(sandbox, ifname="eth1")
    network.delete(sandbox, ifname="eth0")
    assert set(links(sandbox)) == {"lo", "eth1"}
    assert network.leases() == {}
    assert network.having(name="other").leases() == {second["ips"][0]["address"][:-3]: sandbox.name}


@pytest.mark.parametrize(
    "prev_result", [7, "text", [], {}, {"cniVersion": "9"}, {"ips": 3}, {"interfaces": [{"name": 7}]}]
)
def test_prev_result_may_be_garbage(network, sandbox, prev_result):
    """DEL needs no prevResult: rubbish there neither stops it nor leads it to another link."""
    network.add(sandbox)
    network.delete(sandbox, prev_result)
    assert (set(links(sandbox)), network.leases()) == ({"lo"}, {})
    network.delete(None, prev_result, container_id=sandbox.name)


def test_prev_result_may_name_a_foreign_link(network, new_sandbox):
    """Without namespace no host interface goes whose MAC is not that of prevResult."""
    one, two = new_sandbox(), new_sandbox()
    first, second = network.add(one), network.add(two)
    first["interfaces"][1]["name"] = second["interfaces"][1]["name"]
    network.delete(None, first, container_id=one.name)
    assert reaches(two, second["ips"][0]["gateway"])


def test_an_unknown_ipam_is_told_after_the_link_is_gone(network, sandbox):
    """DEL with an IPAM plugin that is not there is an error, since a lease may be left, but the link goes."""
    network.add(sandbox)
    error = network.having(ipam={"type": "no-such-plugin"}).run("DEL", sandbox).error()
    assert 'failed to find plugin "no-such-plugin"' in error["msg"]
    assert (set(links(sandbox)), set(links(network.host))) == ({"lo"}, {"lo", "cni0"})


def test_ipams_error_is_told_after_the_link_is_gone(scripted_network, sandbox):
    """DEL passes IPAM's error on, after the link is gone; the next DEL repeats the release."""
    result = scripted_network([{"address": "10.22.0.9/16"}]).add(sandbox)
    failing = """[ "$CNI_COMMAND" = DEL ] && { echo '{"code": 5, "msg": "disk full"}'; exit 1; }"""
    error = scripted_network(body=failing).run("DEL", sandbox, prev_result=result).error()
    assert (error["code"], error["msg"]) == (5, "disk full")
    assert set(links(sandbox)) == {"lo"}
    scripted_network().delete(sandbox, result)


@pytest.mark.parametrize(
    "keys",
    [
        {"mtu": "1500"},
        {"isGateway": "yes"},
        {"bridge": 7},
        {"vlan": 5000},
        {"vlan": 100},
        {"vlanTrunk": "101"},
        {"ipMasq": "yes"},
        {"macspoofchk": 1},
        {"dns": []},
        {"args": {"cni": {"mac": "rubbish"}}},
        {"runtimeConfig": {"mac": 7}},
        {"hairpinMode": True, "promiscMode": True},
        {"disableContainerInterface": True},
    ],
)
def test_a_broken_configuration_can_be_deleted(network, sandbox, keys):
    """DEL succeeds with keys that ADD refuses: they change nothing of what is to be deleted."""
    network.add(sandbox)
    network.having(**keys).delete(sandbox)
    assert (set(links(sandbox)), network.leases()) == ({"lo"}, {})


def test_wrong_arguments_do_not_stop_it(scripted_network, sandbox):
    """DEL does not read CNI_ARGS itself."""
    net = scripted_network([{"address": "10.22.0.9/16"}])
    net.add(sandbox)
    net.delete(sandbox, args="MAC")
    assert set(links(sandbox)) == {"lo"}
