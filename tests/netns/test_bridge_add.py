"""ADD of bridge: links, addresses, routes and the result that tells of them."""

import re

import pytest

from tests.support.attaching import address, host_end, reaches
from tests.support.netstate import links, shown, state

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")


def test_two_pods_reach_each_other_and_the_gateway(network, new_sandbox):
    """Pods of one network exchange packets with each other, with the gateway, and the host with them."""
    one, two = new_sandbox(), new_sandbox()
    first, second = network.add(one), network.add(two)
    assert reaches(one, address(second))
    assert reaches(two, address(first))
    assert reaches(one, first["ips"][0]["gateway"])
    assert reaches(network.host, address(second))


def test_links_are_named_joined_and_up(network, sandbox):
    """The container's end has the name asked for, the host's end is a port of the bridge, all are up at once."""
    result = network.add(sandbox, ifname="net1")
    port = host_end(result)
    assert re.fullmatch("veth[0-9a-f]{8}", port)
    outside, inside = links(network.host), links(sandbox)
    assert set(outside) == {"lo", "cni0", port}
    assert set(inside) == {"lo", "net1"}
    assert outside[port]["master"] == "cni0"
    for link in (outside["cni0"], outside[port], inside["net1"]):
        assert "UP" in link["flags"]


def test_the_port_forwards_when_add_returns(network, sandbox):
    """ADD returns when the host's end is operationally up, so that the pod's first packet is not lost."""
    port = shown(network.host, host_end(network.add(sandbox)))
    assert port["operstate"] == "UP"
    assert port["linkinfo"]["info_slave_data"]["state"] == "forwarding"


def test_the_result_tells_of_bridge_port_and_container(network, sandbox):
    """Interfaces are bridge, host's end, container's end; addresses point to the third; MACs are the kernel's."""
    result = network.add(sandbox)
    bridge, port, inside = result["interfaces"]
    outside = links(network.host)
    assert [bridge["name"], inside["name"]] == ["cni0", "eth0"]
    assert [ip["interface"] for ip in result["ips"]] == [2]
    assert "sandbox" not in bridge | port
    assert inside["sandbox"] == sandbox.path
    assert bridge["mac"] == outside["cni0"]["address"]
    assert port["mac"] == outside[port["name"]]["address"]
    assert inside["mac"] == links(sandbox)["eth0"]["address"]


def test_macs_of_an_earlier_result_stay_true(network, new_sandbox):
    """A pod that joins changes neither the bridge's address nor another pod's."""
    first = network.add(new_sandbox())
    second = network.add(new_sandbox())
    outside = links(network.host)
    assert first["interfaces"][0] == second["interfaces"][0]
    for item in (*first["interfaces"][:2], second["interfaces"][1]):
        assert item["mac"] == outside[item["name"]]["address"]


def test_the_bridge_is_cni0_unless_named(network, new_sandbox):
    """Without `bridge` the bridge is cni0, else the one named."""
    l2 = network.having(bridge=None, isDefaultGateway=None, ipam=None)
    assert l2.add(new_sandbox())["interfaces"][0]["name"] == "cni0"
    assert l2.having(bridge="br7").add(new_sandbox())["interfaces"][0]["name"] == "br7"


def test_an_existing_bridge_is_adopted_as_it_is(network, sandbox):
    """A bridge made by somebody else keeps its ifindex, address, MTU and settings, and is set up."""
    wanted = ("address", "02:00:00:00:00:77", "mtu", "1450", "type", "bridge", "ageing_time", "777")
    network.host.ip("link", "add", "cni0", *wanted)
    before, index = links(network.host)["cni0"], shown(network.host, "cni0")["ifindex"]
    result = network.having(mtu=1400).add(sandbox)
    after = links(network.host)["cni0"]
    assert shown(network.host, "cni0")["ifindex"] == index
    assert (after["address"], after["mtu"]) == ("02:00:00:00:00:77", 1400)  # a bridge's MTU follows its ports'
    assert after["linkinfo"] == before["linkinfo"]
    assert after["flags"] == sorted([*before["flags"], "UP"])
    assert reaches(sandbox, result["ips"][0]["gateway"])


def test_another_kind_of_link_is_not_taken_for_the_bridge(network, sandbox):
    """A link of the bridge's name that is no bridge is refused and left alone."""
    network.host.ip("link", "add", "cni0", "type", "veth", "peer", "name", "other")
    before = state(network.host), state(sandbox)
    error = network.run("ADD", sandbox).error()
    assert error["code"] == 7
    assert error["msg"] == 'failed to create bridge "cni0": "cni0" already exists but is not a bridge'
    assert (state(network.host), state(sandbox)) == before


def test_a_second_add_leaves_the_living_attachment_alone(network, sandbox, new_sandbox):
    """ADD of an interface that exists fails; the interface, its address and its lease stay and it still works."""
    other = new_sandbox()
    network.add(other)
    result = network.add(sandbox)
    before = state(network.host), state(sandbox), network.leases()
    for container_id in (sandbox.name, "another"):
        error = network.run("ADD", sandbox, container_id=container_id).error()
        assert 'container veth name ("eth0") peer provided ("veth' in error["msg"]
        assert error["msg"].endswith("already exists")
    assert (state(network.host), state(sandbox), network.leases()) == before
    assert reaches(other, address(result))


def test_a_foreign_interface_of_the_name_is_left_alone(network, sandbox):
    """ADD fails when the container has an interface of the name from elsewhere, which stays untouched."""
    sandbox.ip("link", "add", "eth0", "type", "bridge")
    before = state(network.host), state(sandbox)
    assert "already exists" in network.run("ADD", sandbox).error()["msg"]
    assert (state(network.host), state(sandbox)) == before


@pytest.mark.parametrize(
    ("cidr", "broadcast"),
    [("10.22.0.9/16", "10.22.255.255"), ("10.22.0.8/30", "10.22.0.11"), ("10.22.0.8/31", None), ("10.22.0.8/32", None)],
)
def test_addresses_have_their_prefix_and_broadcast(scripted_network, sandbox, cidr, broadcast):
    """An address has IPAM's prefix and global scope, and a broadcast address if the subnet has room for one."""
    scripted_network([{"address": cidr}], keys={"isDefaultGateway": False}).add(sandbox)
    (found,) = links(sandbox)["eth0"]["addresses"]
    assert f"{found['local']}/{found['prefixlen']}" == cidr
    assert (found["scope"], found.get("broadcast")) == ("global", broadcast)


def test_routes_go_by_their_own_or_their_familys_gateway(scripted_network, sandbox):
    """A route without gateway goes by its family's; priority, table, scope, mtu and advmss are honoured."""
    ips = [{"address": "10.22.0.9/16", "gateway": "10.22.0.1"}, {"address": "fd00:22::9/64", "gateway": "fd00:22::1"}]
    routes = [
        {"dst": "192.0.2.0/24"},
        {"dst": "198.51.100.0/24", "gw": "10.22.0.7", "mtu": 1300, "advmss": 1200},
        {"dst": "203.0.113.0/24", "priority": 50, "table": 100},
        {"dst": "10.99.0.0/16", "table": 1000},
        {"dst": "2001:db8::/32", "priority": 7, "mtu": 1290},
        {"dst": "2001:db8:1::/48", "gw": "fd00:22::7", "table": 300},
    ]
    result = scripted_network(ips, keys={"isDefaultGateway": False}, routes=routes).add(sandbox)
    assert result["routes"] == routes
    found = [
        line.split(" pref ")[0].strip()
        for family in ("-4", "-6")
        for line in sandbox.ip(family, "route", "show", "table", "all").splitlines()
        if " via " in line
    ]
    assert sorted(found) == [
        "10.99.0.0/16 via 10.22.0.1 dev eth0 table 1000",
        "192.0.2.0/24 via 10.22.0.1 dev eth0",
        "198.51.100.0/24 via 10.22.0.7 dev eth0 mtu 1300 advmss 1200",
        "2001:db8:1::/48 via fd00:22::7 dev eth0 table 300 metric 1024",
        "2001:db8::/32 via fd00:22::1 dev eth0 metric 7 mtu 1290",
        "203.0.113.0/24 via 10.22.0.1 dev eth0 table 100 metric 50",
    ]


def test_a_route_may_have_link_scope(scripted_network, sandbox):
    """A route's scope is passed to the kernel, here a route to the link itself."""
    routes = [{"dst": "192.0.2.0/24", "scope": 253}]
    scripted_network([{"address": "10.22.0.9/16"}], keys={"isDefaultGateway": False}, routes=routes).add(sandbox)
    assert sandbox.ip("route", "show", "192.0.2.0/24").strip() == "192.0.2.0/24 dev eth0 scope link"


@pytest.mark.parametrize("own", [None, {}, {"nameservers": [], "domain": ""}])
def test_ipams_dns_is_kept(scripted_network, sandbox, own):
    """Without a filled `dns` in the configuration the result has IPAM's."""
    dns = {"nameservers": ["10.0.0.53"], "search": ["example.org"]}
    net = scripted_network([{"address": "10.22.0.9/16"}], keys={"dns": own}, dns=dns)
    assert net.add(sandbox)["dns"] == dns


def test_the_configurations_dns_replaces_ipams(scripted_network, sandbox):
    """One member of `dns` in the configuration is enough to replace all that IPAM says."""
    dns = {"nameservers": ["10.0.0.53"], "search": ["example.org"]}
    net = scripted_network([{"address": "10.22.0.9/16"}], keys={"dns": {"options": ["ndots:5"]}}, dns=dns)
    assert net.add(sandbox)["dns"] == {"options": ["ndots:5"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_result_has_the_shape_of_its_version(scripted_network, sandbox, version):
    """Each version of the specification gets the result in its own shape, with the version it asked for."""
    if version < "0.3.0":
        body = 'printf \'{"cniVersion": "%s", "ip4": {"ip": "10.22.0.9/16"}}\' ' + version + "; exit 0"
        net = scripted_network(body=f'[ "$CNI_COMMAND" != ADD ] || {{ {body}; }}', keys={"cniVersion": version})
    else:
        ip = {"address": "10.22.0.9/16"} | ({} if version >= "1.0.0" else {"version": "4"})
        net = scripted_network([ip], keys={"cniVersion": version})
    result = net.add(sandbox)
    assert result["cniVersion"] == version
    if version < "0.3.0":
        assert result.keys() == {"cniVersion", "ip4", "dns"}
        routes = [{"dst": "0.0.0.0/0", "gw": "10.22.0.1"}]
        assert result["ip4"] == {"ip": "10.22.0.9/16", "gateway": "10.22.0.1", "routes": routes}
        return
    assert [item["name"] for item in result["interfaces"]][::2] == ["cni0", "eth0"]
    assert [item.get("mtu") for item in result["interfaces"]] == [1500 if version == "1.1.0" else None] * 3
    (ip,) = result["ips"]
    assert ip.get("version") == (None if version >= "1.0.0" else "4")
    assert result.get("dns") == (None if version >= "1.0.0" else {})
