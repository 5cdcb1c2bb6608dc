"""ADD of bridge: links, addresses, routes and the result."""

import re

import pytest

from tests.support.attaching import reaches
from tests.support.netstate import links, shown


def test_result_lists_bridge_host_veth_and_container_veth(network, sandbox):
    """The result lists bridge, host veth and container veth with their MACs; all are up, the host veth is a port."""
    result = network.add(sandbox, ifname="net1")
    bridge, port, container_veth = result["interfaces"]
    host_links, container_links = links(network.host), links(sandbox)
    assert [bridge["name"], container_veth["name"]] == ["cni0", "net1"]
    assert re.fullmatch("veth[0-9a-f]{8}", port["name"])
    assert [ip["interface"] for ip in result["ips"]] == [2]
    assert "sandbox" not in bridge | port
    assert container_veth["sandbox"] == sandbox.path
    assert set(host_links) == {"lo", "cni0", port["name"]}
    assert set(container_links) == {"lo", "net1"}
    assert host_links[port["name"]]["master"] == "cni0"
    existing = host_links["cni0"], host_links[port["name"]], container_links["net1"]
    for listed, link in zip(result["interfaces"], existing, strict=True):
        assert (listed["mac"], "UP" in link["flags"]) == (link["address"], True)


def test_existing_bridge_is_reused(network, sandbox):
    """A bridge that an administrator created keeps its ifindex, MAC address and settings, and is set up."""
    settings = ("address", "02:00:00:00:00:77", "mtu", "1450", "type", "bridge", "ageing_time", "777")
    network.host.ip("link", "add", "cni0", *settings)
    before, index = links(network.host)["cni0"], shown(network.host, "cni0")["ifindex"]
    result = network.having(mtu=1400).add(sandbox)
    after = links(network.host)["cni0"]
    assert shown(network.host, "cni0")["ifindex"] == index
    # The kernel sets a bridge's MTU to the lowest of its ports'.
    assert (after["address"], after["mtu"]) == ("02:00:00:00:00:77", 1400)
    assert after["linkinfo"] == before["linkinfo"]
    assert after["flags"] == sorted([*before["flags"], "UP"])
    assert reaches(sandbox, result["ips"][0]["gateway"])


@pytest.mark.parametrize(
    ("cidr", "broadcast"),
    [("10.22.0.9/16", "10.22.255.255"), ("10.22.0.8/30", "10.22.0.11"), ("10.22.0.8/31", None), ("10.22.0.8/32", None)],
)
def test_addresses_have_their_prefix_and_broadcast(scripted_network, sandbox, cidr, broadcast):
    """An address has IPAM's prefix and global scope, and a broadcast address if the subnet is large enough."""
    scripted_network([{"address": cidr}], keys={"isDefaultGateway": False}).add(sandbox)
    (assigned,) = links(sandbox)["eth0"]["addresses"]
    assert f"{assigned['local']}/{assigned['prefixlen']}" == cidr
    assert (assigned["scope"], assigned.get("broadcast")) == ("global", broadcast)


def test_routes_use_their_gateway_or_the_first_of_their_family(scripted_network, sandbox):
    """A route without a gateway uses its family's; priority, table, scope, mtu and advmss are applied."""
    ips = [{"address": "10.22.0.9/16", "gateway": "10.22.0.1"}, {"address": "fd00:22::9/64", "gateway": "fd00:22::1"}]
    routes = [
        {"dst": "192.0.2.0/24"},
        {"dst": "198.51.100.0/24", "gw": "10.22.0.7", "mtu": 1300, "advmss": 1200},
        {"dst": "203.0.113.0/24", "priority": 50, "table": 100},
        {"dst": "10.99.0.0/16", "table": 1000},
        {"dst": "10.98.0.0/16", "scope": 253},
        {"dst": "2001:db8::/32", "priority": 7, "mtu": 1290},
        {"dst": "2001:db8:1::/48", "gw": "fd00:22::7", "table": 300},
    ]
    result = scripted_network(ips, keys={"isDefaultGateway": False}, routes=routes).add(sandbox)
    assert result["routes"] == routes
    installed = [
        line.split(" pref ")[0].strip()
        for family in ("-4", "-6")
        for line in sandbox.ip(family, "route", "show", "table", "all").splitlines()
        if "proto kernel" not in line and (" via " in line or "scope link" in line)
    ]
    assert sorted(installed) == [
        "10.98.0.0/16 dev eth0 scope link",
        "10.99.0.0/16 via 10.22.0.1 dev eth0 table 1000",
        "192.0.2.0/24 via 10.22.0.1 dev eth0",
        "198.51.100.0/24 via 10.22.0.7 dev eth0 mtu 1300 advmss 1200",
        "2001:db8:1::/48 via fd00:22::7 dev eth0 table 300 metric 1024",
        "2001:db8::/32 via fd00:22::1 dev eth0 metric 7 mtu 1290",
        "203.0.113.0/24 via 10.22.0.1 dev eth0 table 100 metric 50",
    ]


@pytest.mark.parametrize("configured", [None, {"nameservers": [], "domain": ""}, {"options": ["ndots:5"]}])
def test_one_member_of_dns_replaces_that_of_ipam(scripted_network, sandbox, configured):
    """One member of `dns` replaces all DNS settings of IPAM, which otherwise remain."""
    dns = {"nameservers": ["10.0.0.53"], "search": ["example.org"]}
    net = scripted_network([{"address": "10.22.0.9/16"}], keys={"dns": configured}, dns=dns)
    assert net.add(sandbox)["dns"] == (configured if configured and "options" in configured else dns)
