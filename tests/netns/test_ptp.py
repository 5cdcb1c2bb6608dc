"""ptp: a routed veth; addresses, routes, traffic, and refused input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

import pytest

from tests.support import binaries, golden
from tests.support.attaching import address, count_messages, reaches
from tests.support.machine import eventually
from tests.support.netstate import links, shown, state

IPV4 = {"address": "10.23.0.9/24", "gateway": "10.23.0.1"}
IPV6 = {"address": "fd00:23::9/64", "gateway": "fd00:23::1"}


@pytest.fixture
def scripted(scripted_network):
    """A function that creates a ptp network with a scripted IPAM plugin."""

    def make(ips, *, body="", keys=None, **rest):
        conf = {"type": "ptp", "bridge": None, "isDefaultGateway": None, **(keys or {})}
        network = scripted_network(ips, body=body, keys={"cniVersion": conf.get("cniVersion", "1.0.0")}, **rest)
        return network.having(**conf)

    return make


def test_two_pods_and_the_host_reach_each_other(routed, new_sandbox):
    """Gateway, host and another pod answer by both families; packets between pods are forwarded."""
    one, two = new_sandbox(), new_sandbox()
    first, second = routed.add(one), routed.add(two)
    for number, gateway in enumerate(("10.23.0.1", "fd00:23::1")):
        assert reaches(one, gateway)
        assert reaches(routed.host, address(first, number))
        assert reaches(one, address(second, number))
    routed.host.set_sysctl("net/ipv4/ip_forward", "0")
    assert not reaches(one, address(second), within_s=1)
    assert reaches(one, "10.23.0.1")


def test_auto_is_the_lowest_mtu_of_the_uplinks(routed, new_sandbox, uplink):
    """With "auto" both ends get the lowest MTU of the uplinks, not of other pods; CHECK takes it from the result."""
    network = routed.having(cniVersion="1.1.0", mtu="auto")
    uplink("up0", 1500)
    attached = []
    for mtu in (1400, 1500):
        network.host.ip("link", "set", "up0", "mtu", str(mtu))
        pod = new_sandbox()
        attached.append((pod, network.add(pod)))
        assert [item["mtu"] for item in attached[-1][1]["interfaces"]] == [mtu, mtu]
        assert links(pod)["eth0"]["mtu"] == mtu
    for pod, result in attached:
        network.check(pod, result)
    pod, result = attached[0]
    pod.ip("link", "set", "eth0", "mtu", "1300")
    assert "MTU" in network.run("CHECK", pod, prev_result=result).error()["msg"]


def test_auto_costs_one_netlink_message(routed, new_sandbox, uplink):
    """ADD with "auto" sends one netlink message more than with a number; a number costs none."""
    uplink("up0", 1400)
    ipam = routed.config["ipam"]
    network = routed.having(ipam={**ipam, "ranges": ipam["ranges"][:1]})  # ADD may wait for an IPv6 address
    plain = count_messages(network, new_sandbox())
    assert count_messages(network.having(mtu=1400), new_sandbox()) == plain
    assert count_messages(network.having(mtu="auto"), new_sandbox()) == plain + 1


def test_result_lists_both_ends(routed, sandbox):
    """The result lists host veth and container veth, which has all addresses, with their MTUs since 1.1.0."""
    result = routed.having(cniVersion="1.1.0", mtu=1400).add(sandbox)
    host_veth, container_veth = result["interfaces"]
    assert set(host_veth) == {"name", "mac", "mtu"}
    assert host_veth["mac"] == links(routed.host)[host_veth["name"]]["address"]
    assert container_veth == {
        "name": "eth0",
        "mac": shown(sandbox, "eth0")["address"],
        "mtu": 1400,
        "sandbox": sandbox.path,
    }
    assert [(ip["address"], ip["gateway"], ip["interface"]) for ip in result["ips"]] == [
        ("10.23.0.2/24", "10.23.0.1", 1),
        ("fd00:23::2/64", "fd00:23::1", 1),
    ]


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_old_versions_have_one_address_of_each_family(routed, sandbox, version):
    """Results of CNI 0.1.0 and 0.2.0 have address, gateway and routes by family."""
    ipam = {**routed.config["ipam"], "routes": [{"dst": "0.0.0.0/0"}]}
    result = routed.having(cniVersion=version, ipam=ipam).add(sandbox)
    assert result["ip4"] == {"ip": "10.23.0.2/24", "gateway": "10.23.0.1", "routes": [{"dst": "0.0.0.0/0"}]}
    assert result["ip6"] == {"ip": "fd00:23::2/64", "gateway": "fd00:23::1"}
    routed.having(cniVersion=version, ipam=ipam).delete(sandbox)


def test_forwarding_is_enabled_for_the_families_in_use(routed, sandbox):
    """An IPv4 pod does not enable IPv6 forwarding."""
    ipam = {**routed.config["ipam"], "ranges": routed.config["ipam"]["ranges"][:1]}
    routed.having(ipam=ipam).add(sandbox)
    assert routed.host.sysctl("net/ipv4/ip_forward") == "1"
    assert routed.host.sysctl("net/ipv6/conf/all/forwarding") == "0"


def test_a_pod_without_ipam_is_layer_2(routed, sandbox):
    """Without `ipam` both veth ends are up and have no address; CHECK and DEL succeed."""
    net = routed.having(ipam=None, mtu=1300)
    result = net.add(sandbox)
    assert set(result) == {"cniVersion", "interfaces"}
    host_veth = result["interfaces"][0]["name"]
    assert (shown(net.host, host_veth)["mtu"], shown(sandbox, "eth0")["mtu"]) == (1300, 1300)
    assert {"UP", "LOWER_UP"} <= set(shown(sandbox, "eth0")["flags"])
    assert "inet " not in sandbox.ip("addr", "show", "eth0")
    net.host.ip("addr", "add", "192.0.2.1/24", "dev", host_veth)
    sandbox.ip("addr", "add", "192.0.2.2/24", "dev", "eth0")
    assert reaches(net.host, "192.0.2.2")
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(net.host)) == set(links(sandbox)) == {"lo"}


IPAM_ADDRESSES = {
    "no gateway": ([{"address": "10.23.0.9/24"}], "ptp needs a gateway for 10.23.0.9/24"),
    "no gateway beside": ([IPV4, {"address": "fd00:23::9/64"}], "ptp needs a gateway for fd00:23::9/64"),
    "itself": ([{**IPV4, "gateway": "10.23.0.9"}], "gateway 10.23.0.9 of address 10.23.0.9/24 is the pod's own"),
    "other family": ([{**IPV4, "gateway": "fd00:23::1"}], "gateway fd00:23::1 of address 10.23.0.9/24 is of the"),
}


@pytest.mark.parametrize("case", IPAM_ADDRESSES)
def test_unusable_addresses_are_refused(scripted, sandbox, ipam_calls, case):
    """Addresses that cannot be routed are refused before any change, and released."""
    ips, text = IPAM_ADDRESSES[case]
    net = scripted(ips)
    before = state(net.host), state(sandbox)
    error = net.run("ADD", sandbox).error()
    assert (error["code"], error["msg"][: len(text)]) == (7, text)
    assert ipam_calls() == ["ADD", "DEL"]
    assert (state(net.host), state(sandbox)) == before


def test_second_add_is_refused(routed, sandbox, scripted):
    """ADD of an attached sandbox is refused with the reference's text, and the attachment still works."""
    routed.add(sandbox)
    before = state(routed.host), state(sandbox)
    error = scripted([IPV4]).run("ADD", sandbox).error()
    assert error["msg"].startswith('container veth name ("eth0") peer provided ("veth')
    assert (state(routed.host), state(sandbox)) == before
    assert reaches(sandbox, "10.23.0.1")


@pytest.mark.parametrize(
    "ips",
    [
        [{"address": "10.23.0.9/32", "gateway": "10.23.0.1"}, {"address": "fd00:23::9/128", "gateway": "fd00:23::1"}],
        [{"address": "10.23.0.9/32", "gateway": "169.254.1.1"}, {"address": "fd00:23::9/128", "gateway": "fe80::1"}],
        [IPV4, {"address": "10.23.0.10/24", "gateway": "10.23.0.1"}],
        [IPV4, {"address": "10.24.0.9/24", "gateway": "10.23.0.1"}],
        [IPV4, {"address": "10.24.0.9/24", "gateway": "10.24.0.1"}, IPV6],
    ],
    ids=["host prefixes", "gateways elsewhere", "two of a subnet", "one gateway", "two subnets"],
)
def test_unusual_addresses_work(scripted, sandbox, reference, ips):
    """Host prefixes, gateways outside the subnet and several addresses work, and pass the reference's CHECK."""
    routes = [{"dst": "0.0.0.0/0"}]
    net = scripted(ips, routes=routes)
    result = net.add(sandbox)
    for ip in result["ips"]:
        assert reaches(net.host, ip["address"].partition("/")[0])
        if not ip["gateway"].startswith("fe80"):
            assert reaches(sandbox, ip["gateway"])
    assert f"default via {ips[0]['gateway']} dev eth0" in sandbox.ip("route")
    net.check(sandbox, result)
    replace(net, bin_dir=reference).check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(net.host)) == {"lo"}


def test_routes_of_ipam_may_use_a_router_of_the_subnet(scripted, sandbox):
    """A route via another address of the subnet is added as the reference adds it."""
    net = scripted([IPV4], routes=[{"dst": "192.0.2.0/24", "gw": "10.23.0.200"}])
    net.add(sandbox)
    assert "192.0.2.0/24 via 10.23.0.200 dev eth0" in sandbox.ip("route")


@pytest.mark.parametrize("ip", [IPV4, IPV6], ids=["IPv4", "IPv6"])
def test_a_route_of_ipam_to_the_subnet_itself(scripted, sandbox, ip):
    """If IPAM returns a route to the pod's subnet, only the kernel's route to it is deleted."""
    subnet = ip["gateway"].removesuffix("1") + ("0/24" if "." in ip["gateway"] else "/64")
    scripted([ip], routes=[{"dst": subnet}]).add(sandbox)
    listed = sandbox.ip("-6" if ":" in subnet else "-4", "route", "show", subnet).splitlines()
    assert listed
    assert all(line.startswith(f"{subnet} via {ip['gateway']} ") for line in listed), listed


def test_cni_args_are_ignored(scripted, sandbox):
    """ADD succeeds with invalid CNI_ARGS, which only IPAM plugins read."""
    scripted([IPV4]).add(sandbox, env={"CNI_ARGS": "RUBBISH"})


def test_ipv6_disabled_on_new_interfaces_is_enabled(routed, sandbox):
    """If the host disables IPv6 on new interfaces, ADD enables it on the host veth."""
    routed.host.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")
    routed.add(sandbox)
    assert reaches(sandbox, "fd00:23::1")


def has_link_local(namespace):
    return "scope link" in namespace.ip("-6", "address", "show")


def test_addresses_and_routes_equal_the_references(routed, new_sandbox, reference):
    """With the same configuration, host and pod have the same addresses and routes as with the reference."""
    states = []
    for directory in (binaries.directory(), reference):
        pod = new_sandbox()
        net = replace(routed, bin_dir=directory, path=str(directory))
        result = net.add(pod)
        # The kernel adds it when it notices the carrier: on a busy machine after ADD.
        assert eventually(partial(has_link_local, pod))
        assert eventually(partial(has_link_local, net.host))
        namespaces = [golden.of(namespace) for namespace in (pod, net.host)]
        listing = json.dumps([(each["addresses"], each["routes"]) for each in namespaces], indent=1)
        addresses = rf"\b({re.escape(address(result))}|{address(result, 1)})\b"
        states.append(re.sub(addresses, "OWN", listing).splitlines())
        net.delete(pod)
    assert states[0] == states[1]
