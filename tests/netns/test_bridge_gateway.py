"""The bridge as gateway: its addresses, conflicts, forwarding, default routes and its MAC address; reused addresses."""

import json

import pytest

from tests.support.attaching import address, reaches
from tests.support.netstate import links
from tests.support.publishing import CLIENT, CLIENT6, NODE, NODE6


def cidrs(namespace, name):
    """Returns the addresses of a link with their prefixes, without link-local ones."""
    return [f"{item['local']}/{item['prefixlen']}" for item in links(namespace)[name]["addresses"]]


def default_routes(namespace):
    """Returns the default routes of a namespace as `ip` prints them."""
    text = namespace.ip("route", "show", "default") + namespace.ip("-6", "route", "show", "default")
    return [line.split(" metric ")[0].strip() for line in text.splitlines()]


GATEWAYS = ["10.22.0.1/16", "fd00:22::1/64"]
DEFAULT_ROUTES = ["default via 10.22.0.1 dev eth0", "default via fd00:22::1 dev eth0"]


@pytest.mark.parametrize(
    ("keys", "families", "gateways", "routes"),
    [
        pytest.param({"isGateway": True}, 1, GATEWAYS[:1], [], id="gateway"),
        pytest.param({"isGateway": True}, 2, GATEWAYS, [], id="dual-stack gateway"),
        pytest.param({"isDefaultGateway": True}, 2, GATEWAYS, DEFAULT_ROUTES, id="dual-stack default gateway"),
        pytest.param({}, 2, [], [], id="no gateway"),
    ],
)
def test_gateway_of_each_family(dual_network, sandbox, keys, families, gateways, routes):
    """With a gateway the bridge has its addresses and forwards their families; a default gateway adds routes."""
    ipam = dual_network.config["ipam"]
    net = dual_network.having(**{"isDefaultGateway": None, **keys}, ipam={**ipam, "ranges": ipam["ranges"][:families]})
    assert net.host.sysctl("net/ipv4/ip_forward") == "0"
    result = net.add(sandbox)
    assert sorted(cidrs(net.host, "cni0")) == gateways
    assert not gateways or links(net.host)["cni0"]["addresses"][0]["broadcast"] == "10.22.255.255"
    forwarding = [net.host.sysctl(key) for key in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")]
    assert forwarding == [str(int(len(gateways) > number)) for number in (0, 1)]
    assert default_routes(sandbox) == routes
    default = [{"dst": "0.0.0.0/0", "gw": "10.22.0.1"}, {"dst": "::/0", "gw": "fd00:22::1"}]
    assert result.get("routes", []) == (default if routes else [])
    assert result["ips"][0]["gateway"] == "10.22.0.1"


def test_default_gateway_is_the_first_address(scripted_network, sandbox):
    """If IPAM returns no gateway, it is the first address of the subnet, on the bridge and in the result."""
    net = scripted_network([{"address": "10.22.4.9/22"}, {"address": "fd00:22::9/64"}])
    assert [ip["gateway"] for ip in net.add(sandbox)["ips"]] == ["10.22.4.1", "fd00:22::1"]
    assert sorted(cidrs(net.host, "cni0")) == ["10.22.4.1/22", "fd00:22::1/64"]


@pytest.mark.parametrize(
    ("ipam_routes", "expected"),
    [
        ([], ["default via 10.22.0.1 dev eth0"]),
        ([{"dst": "0.0.0.0/0"}], ["default via 10.22.0.1 dev eth0"]),
        ([{"dst": "0.0.0.0/0", "gw": "10.22.0.7"}], ["default via 10.22.0.7 dev eth0"]),
        ([{"dst": "::/0", "gw": "fd00:22::7"}], ["default via 10.22.0.1 dev eth0", "default via fd00:22::7 dev eth0"]),
    ],
)
def test_default_route_of_ipam_is_kept(scripted_network, sandbox, ipam_routes, expected):
    """IPAM's default route stays the only one of its family; it gets a gateway if it has none."""
    ips = [{"address": "10.22.0.9/16"}, *([{"address": "fd00:22::9/64"}] if "::/0" in str(ipam_routes) else [])]
    result = scripted_network(ips, routes=ipam_routes).add(sandbox)
    assert default_routes(sandbox) == expected
    assert len(result["routes"]) == len(expected)
    assert all("gw" in route for route in result["routes"])


def test_packets_are_forwarded_to_other_hosts(dual_network, sandbox, client):
    """A pod and a host behind another interface of the node reach each other by IPv4 and IPv6."""
    for option, node in (("-4", NODE), ("-6", NODE6)):
        client.ip(option, "route", "add", "default", "via", node)
    result = dual_network.add(sandbox)
    for number, ip in enumerate((CLIENT, CLIENT6)):
        assert reaches(sandbox, ip)
        assert reaches(client, address(result, number))


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("is_gateway", [True, None])
def test_the_bridges_mac_never_changes(network, new_sandbox, is_gateway, exists):
    """The bridge keeps its MAC address, also one that was not set, while pods come and go, with and without gateway."""
    macs = set()
    if exists:
        network.host.ip("link", "add", "cni0", "type", "bridge")
        macs.add(links(network.host)["cni0"]["address"])
    net = network.having(isDefaultGateway=is_gateway)
    pods = [new_sandbox() for _ in range(4)]
    for _ in range(2):
        for pod in pods:
            macs.add(net.add(pod)["interfaces"][0]["mac"])
            macs.add(links(net.host)["cni0"]["address"])
        for pod in pods:
            net.delete(pod)
            macs.add(links(net.host)["cni0"]["address"])
    assert len(macs) == 1


@pytest.mark.parametrize(
    ("first", "second", "force", "expected"),
    [
        ("10.1.0.9/16", "10.2.0.9/24", True, ["10.2.0.1/24"]),
        ("fd00:22::8/64", "fd00:33::9/64", False, ["fd00:22::1/64", "fd00:33::1/64"]),
        ("fd00:22::8/64", "fd00:22::9/64", False, ["fd00:22::1/64"]),
        ("fd00:22::8/64", "fd00:22::9/48", False, None),
        ("fd00:22::8/64", "fd00:22::9/48", True, ["fd00:22::1/48"]),
    ],
)
def test_two_subnets_on_one_bridge(scripted_network, new_sandbox, first, second, force, expected):
    """Disjoint IPv6 subnets share a bridge; an overlapping or IPv4 one conflicts, and forceAddress replaces it."""
    scripted_network([{"address": first}]).add(new_sandbox())
    net, pod = scripted_network([{"address": second}], keys={"forceAddress": force}), new_sandbox()
    outcome = net.run("ADD", pod)
    if expected is None:
        assert outcome.error()["msg"].endswith('"cni0" already has an IP address different from fd00:22::1/48')
        expected = ["fd00:22::1/64"]
    else:
        assert reaches(pod, outcome.result()["ips"][0]["gateway"])
    assert sorted(cidrs(net.host, "cni0")) == expected


def test_existing_gateway_address_is_reused(network, sandbox):
    """A gateway address that an administrator added to the bridge does not change."""
    network.host.ip("link", "add", "cni0", "type", "bridge")
    network.host.ip("addr", "add", "10.22.0.1/16", "dev", "cni0", "label", "cni0:gw")
    network.add(sandbox)
    assert cidrs(network.host, "cni0") == ["10.22.0.1/16"]
    assert "cni0:gw" in network.host.ip("addr", "show", "dev", "cni0")


def with_gateways(*cidrs_of_pod):
    """Returns an address of each family, with the same gateways in any case."""
    gateways = ("10.22.0.1", "fd00:22::1")
    return [{"address": ip, "gateway": gateway} for ip, gateway in zip(cidrs_of_pod, gateways, strict=True)]


SUBNET, SINGLE = with_gateways("10.22.0.9/26", "fd00:22::9/122"), with_gateways("10.24.0.5/32", "fd00:24::5/128")


@pytest.mark.parametrize("order", [(SUBNET, SINGLE), (SINGLE, SUBNET)], ids=["subnet first", "single address first"])
def test_one_gateway_serves_a_subnet_and_single_addresses(scripted_network, new_sandbox, order):
    """In any order both pods reach the gateway and each other, the host reaches both, and CHECK passes."""
    one, other = new_sandbox(), new_sandbox()
    attached = []
    for pod, ips in zip((one, other), order, strict=True):
        network = scripted_network(ips)
        attached.append((pod, network, network.add(pod)))
    for pod, target in ((one, order[1]), (other, order[0])):
        for ip in target:
            assert reaches(pod, ip["gateway"])
            assert reaches(pod, ip["address"].partition("/")[0])
            assert reaches(attached[0][1].host, ip["address"].partition("/")[0])
    for pod, network, result in attached:
        network.check(pod, result)


REUSED = {"IPv4": ("10.22.0.9/16", "10.22.0.8/16"), "IPv6": ("fd00:22::9/64", "fd00:22::8/64")}


def known_mac(namespace, device, ip):
    """Returns the MAC that `namespace` has for an address in its neighbour table."""
    entries = json.loads(namespace.ip("-j", "neigh", "show", "to", ip, "dev", device) or "[]")
    return next((entry.get("lladdr") for entry in entries), None)


@pytest.mark.parametrize("family", REUSED)
def test_a_reused_address_is_announced(scripted_network, new_sandbox, family):
    """Host and other pods reach the new owner of an address when ADD returns, not after a timeout."""
    reused, other = REUSED[family]
    ip = reused.partition("/")[0]
    onlooker, old, new = new_sandbox(), new_sandbox(), new_sandbox()
    scripted_network([{"address": other}]).add(onlooker)
    net = scripted_network([{"address": reused}])
    for _ in range(3):
        before = net.add(old)["interfaces"][2]["mac"]
        assert reaches(net.host, ip)
        assert reaches(onlooker, ip)
        assert {known_mac(net.host, "cni0", ip), known_mac(onlooker, "eth0", ip)} == {before}
        net.delete(old)
        after = net.add(new)["interfaces"][2]["mac"]
        assert {known_mac(net.host, "cni0", ip), known_mac(onlooker, "eth0", ip)} == {after}
        assert reaches(net.host, ip, within_s=1)
        assert reaches(onlooker, ip, within_s=1)
        net.delete(new)
