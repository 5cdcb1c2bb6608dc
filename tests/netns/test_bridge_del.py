"""DEL of bridge: it deletes everything that still exists."""

import subprocess

import pytest

from tests.support.attaching import reaches
from tests.support.machine import eventually
from tests.support.netstate import links, state


def test_del_deletes_veth_and_lease(network, new_sandbox):
    """DEL deletes the veth and the lease at once; bridge, gateway address and other pods stay."""
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


@pytest.mark.parametrize("unset", [True, False], ids=["CNI_NETNS unset", "CNI_NETNS names nothing"])
def test_del_of_a_namespace_without_a_file(network, sandbox, unset):
    """DEL deletes the veth from the host, by prevResult, if a process keeps the namespace without its file."""
    result = network.add(sandbox)
    holder = subprocess.Popen(["nsenter", f"--net={sandbox.path}", "sleep", "60"])
    try:
        list_links = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "ip", "-o", "link", "show")
        assert eventually(lambda: "eth0" in network.host.run(*list_links))  # the process is in the namespace
        sandbox.delete()
        assert "eth0" in network.host.run(*list_links)
        network.delete(None if unset else sandbox.path, result, container_id=sandbox.name)
        assert "eth0" not in network.host.run(*list_links)
        assert set(links(network.host)) == {"lo", "cni0"}
        assert network.leases() == {}
    finally:
        holder.kill()
        holder.wait()


def test_del_keeps_other_interfaces(network, sandbox):
    """DEL of one of two interfaces of a container keeps the other one and its lease."""
    network.add(sandbox, ifname="eth0")
    second = network.having(bridge="cni1", name="other", isDefaultGateway=None).add(sandbox, ifname="eth1")
    network.delete(sandbox, ifname="eth0")
    assert set(links(sandbox)) == {"lo", "eth1"}
    assert network.leases() == {}
    assert network.having(name="other").leases() == {second["ips"][0]["address"][:-3]: sandbox.name}


NAMES = ["veth" + "a" * 70_000, "veth%d", "veth/x", "vethaaaaaaaaaaaaaaaaaaaa"]
INVALID = {"cniVersion": "1.0.0", "interfaces": [{"name": name, "mac": "02:00:00:00:00:01"} for name in NAMES]}


@pytest.mark.parametrize(
    "prev_result", [7, "text", [], {}, {"cniVersion": "9"}, {"ips": 3}, {"interfaces": [{"name": 7}]}, INVALID]
)
def test_del_with_an_invalid_prev_result(network, sandbox, prev_result):
    """DEL succeeds with an invalid prevResult, and deletes no other link."""
    network.add(sandbox)
    network.delete(sandbox, prev_result)
    assert (set(links(sandbox)), network.leases()) == ({"lo"}, {})
    network.delete(None, prev_result, container_id=sandbox.name)


def test_del_keeps_a_host_veth_with_another_mac(network, new_sandbox):
    """Without a namespace DEL keeps a host veth whose MAC address differs from prevResult's."""
    one, two = new_sandbox(), new_sandbox()
    first, second = network.add(one), network.add(two)
    first["interfaces"][1]["name"] = second["interfaces"][1]["name"]
    network.delete(None, first, container_id=one.name)
    assert reaches(two, second["ips"][0]["gateway"])


def test_del_with_an_unknown_ipam_deletes_the_link(network, sandbox):
    """DEL with a missing IPAM plugin fails, since a lease may remain, but deletes the link."""
    network.add(sandbox)
    error = network.having(ipam={"type": "no-such-plugin"}).run("DEL", sandbox).error()
    assert 'failed to find plugin "no-such-plugin"' in error["msg"]
    assert (set(links(sandbox)), set(links(network.host))) == ({"lo"}, {"lo", "cni0"})


def test_del_returns_ipams_error_after_deleting_the_link(scripted_network, sandbox):
    """DEL deletes the link, then returns IPAM's error; the next DEL releases the lease."""
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
def test_del_with_an_invalid_configuration(network, sandbox, keys):
    """DEL succeeds with keys that ADD refuses."""
    network.add(sandbox)
    network.having(**keys).delete(sandbox)
    assert (set(links(sandbox)), network.leases()) == ({"lo"}, {})
