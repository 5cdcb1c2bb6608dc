"""IPv6 through bridge: router advertisements, duplicate address detection, addresses usable when ADD returns."""

import json
import socket
import struct

import pytest

from tests.support.attaching import address, host_end, reaches
from tests.support.machine import eventually
from tests.support.netstate import links, state
from tests.support.publishing import CLIENT6, NODE6


def address_flags(namespace, name="eth0"):
    """Returns the IPv6 addresses of a link, each with its flags that prevent its use."""
    (link,) = json.loads(namespace.ip("-j", "-6", "addr", "show", "dev", name))
    return {item["local"]: {"tentative", "dadfailed"} & set(item) for item in link["addr_info"]}


@pytest.mark.parametrize("dad", [None, True])
def test_the_gateway_answers_the_first_pod_at_once(dual_network, sandbox, dad):
    """The IPv6 gateway is not tentative when the first ADD returns, unless enabledad is set."""
    dual_network.having(enabledad=dad).add(sandbox)
    (gateway,) = (item for item in links(dual_network.host)["cni0"]["addresses"] if item["local"] == "fd00:22::1")
    assert gateway.get("nodad", False) is not bool(dad)
    if not dad:
        assert address_flags(dual_network.host, "cni0")["fd00:22::1"] == set()


@pytest.mark.parametrize("keys", [{}, pytest.param({"vlan": 100}, marks=pytest.mark.needs("vlan_filtering"))])
def test_a_client_reaches_the_first_pod_at_once(dual_network, sandbox, client, keys):
    """The node can forward a packet to the first pod on a new bridge at once.

    It asks for the pod's MAC address with the gateway's link-local address, which must not be tentative.
    """
    client.ip("route", "add", "fd00:22::/64", "via", NODE6)
    result = dual_network.having(**keys).add(sandbox)
    assert dual_network.host.ip("-6", "address", "show", "dev", "cni0.100" if keys else "cni0", "tentative") == ""
    assert reaches(client, address(result, 1))


@pytest.mark.parametrize("force", [None, True])
def test_link_local_gateway(dual_network, new_sandbox, client, force):
    """The gateway fe80::1 is beside the bridge's link-local address; the host, pods and a client reach each other."""
    client.ip("route", "add", "fd00::/16", "via", NODE6)
    pods, results = [], []
    for number in (1, 2):
        ipam = {**dual_network.config["ipam"], "routes": [{"dst": "::/0"}]}
        ranges = [[{"subnet": f"fd00:22:{number}::/64", "gateway": f"fe80::{number}"}]]
        net = dual_network.having(
            name=f"net{number}", cniVersion="1.1.0", forceAddress=force, ipam={**ipam, "ranges": ranges}
        )
        pods.append(new_sandbox())
        results.append(net.add(pods[-1]))
        net.check(pods[-1], results[-1])
        net.run("STATUS", container_id=None, ifname=None).assert_silent()
        assert reaches(pods[-1], CLIENT6)
        assert all(reaches(namespace, address(results[-1])) for namespace in (client, net.host))
    assert reaches(pods[0], address(results[1]))
    assert {"fe80::1", "fe80::2"} < set(address_flags(net.host, "cni0"))
    assert len(address_flags(net.host, "cni0")) == 3


def test_ipv6_only_network(dual_network, new_sandbox):
    """A network with only an IPv6 range has no IPv4 address anywhere."""
    ipam = {**dual_network.config["ipam"], "ranges": dual_network.config["ipam"]["ranges"][1:]}
    net = dual_network.having(ipam=ipam)
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    result = net.add(two)
    assert [ip["gateway"] for ip in result["ips"]] == ["fd00:22::1"]
    assert reaches(one, address(result))
    assert one.ip("-4", "addr", "show") == ""
    assert net.host.sysctl("net/ipv4/ip_forward") == "0"


@pytest.mark.parametrize("dad", [False, True])
def test_addresses_are_usable_when_add_returns(dual_network, sandbox, dad):
    """No IPv6 address, also not the link-local one, is tentative when ADD returns, with and without detection."""
    result = dual_network.having(enabledad=dad).add(sandbox)
    flags_by_address = address_flags(sandbox)
    assert flags_by_address[address(result, 1)] == set()
    assert len(flags_by_address) == 2
    assert set().union(*flags_by_address.values()) == set()


def test_host_ignores_router_advertisements(dual_network, sandbox):
    """Bridge and host veth ignore router advertisements, which a pod could send."""
    result = dual_network.add(sandbox)
    for name in ("cni0", host_end(result)):
        assert dual_network.host.sysctl(f"net/ipv6/conf/{name}/accept_ra") == "0"


def advertise(router):
    """Sends a router advertisement from a machine's eth0 to the others on its link."""
    with router.entered(), socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as sender:
        index = socket.if_nametoindex("eth0")
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        sender.sendto(struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0), ("ff02::1", 0, 0, index))


@pytest.mark.parametrize("accept", ["1", "2"])
@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_the_nodes_advertised_default_route_is_kept(dual_network, client, sandbox, new_sandbox, kind, accept):
    """A default route that the node learned by router advertisement stays, and further ones are accepted.

    The first ADD enables forwarding, with which the kernel would delete the route, and reports on stderr what it sets;
    the second one changes and reports nothing.
    """
    host = dual_network.host
    host.set_sysctl("net/ipv6/conf/uplink/accept_ra", accept)

    def has_route():
        return "proto ra" in host.ip("-6", "route", "show", "default")

    assert eventually(lambda: advertise(client) or has_route())
    first, second = (dual_network.having(type=kind).run("ADD", pod) for pod in (sandbox, new_sandbox()))
    assert (first.status, second.status, second.stderr) == (0, 0, "")
    assert first.stderr.count("\n") == (accept == "1"), first.stderr
    assert accept == "2" or "as sysctl -w net/ipv6/conf/uplink/accept_ra=2 does" in first.stderr
    assert host.sysctl("net/ipv6/conf/all/forwarding") == "1"
    assert has_route()
    assert host.sysctl("net/ipv6/conf/uplink/accept_ra") == "2"
    assert host.sysctl("net/ipv6/conf/lo/accept_ra") == "1"


@pytest.mark.parametrize(("dad", "accept"), [(None, "0"), (True, "1")])
def test_ipv6_settings_in_the_pod_match_the_reference(dual_network, sandbox, dad, accept):
    """In the pod, detection is off unless enabledad is set, and addresses survive while the link is down."""
    sandbox.set_sysctl("net/ipv6/conf/default/enhanced_dad", "0")
    dual_network.having(enabledad=dad).add(sandbox)
    assert sandbox.sysctl("net/ipv6/conf/eth0/accept_dad") == accept
    assert sandbox.sysctl("net/ipv6/conf/eth0/enhanced_dad") == ("1" if dad else "0")
    assert sandbox.sysctl("net/ipv4/conf/eth0/arp_notify") == "1"
    assert sandbox.sysctl("net/ipv6/conf/eth0/keep_addr_on_down") == "1"
    sandbox.ip("link", "set", "eth0", "down")
    assert "fd00:22::2" in address_flags(sandbox)


def test_ipv4_attachment_does_not_change_ipv6_settings(network, sandbox):
    """An IPv4 attachment does not enable IPv6 nor keep its addresses, but announces address changes."""
    sandbox.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")
    network.add(sandbox)
    assert sandbox.sysctl("net/ipv6/conf/eth0/disable_ipv6") == "1"
    assert sandbox.sysctl("net/ipv6/conf/eth0/keep_addr_on_down") == "0"
    assert sandbox.sysctl("net/ipv4/conf/eth0/arp_notify") == "1"


def test_ipv6_disabled_in_the_sandbox_is_enabled(dual_network, sandbox):
    """ADD of an IPv6 address sets disable_ipv6, which runtimes set to 1, to 0 for lo and the interface."""
    for name in ("all", "default", "lo"):
        sandbox.set_sysctl(f"net/ipv6/conf/{name}/disable_ipv6", "1")
    result = dual_network.add(sandbox)
    for name in ("lo", "eth0"):
        assert sandbox.sysctl(f"net/ipv6/conf/{name}/disable_ipv6") == "0"
    assert reaches(dual_network.host, address(result, 1))


def test_an_ipv4_network_needs_no_ipv6_on_the_host(network, sandbox):
    """An IPv4 network works on a host with IPv6 disabled, without a message."""
    for name in ("all", "default"):
        network.host.set_sysctl(f"net/ipv6/conf/{name}/disable_ipv6", "1")
    outcome = network.run("ADD", sandbox)
    assert outcome.stderr == ""
    assert reaches(sandbox, outcome.result()["ips"][0]["gateway"])


def test_duplicate_address_is_detected_with_enabledad(scripted_network, new_sandbox):
    """With enabledad, ADD of an address that another pod uses fails and leaves nothing."""
    net = scripted_network([{"address": "fd00:22::9/64"}], keys={"enabledad": True})
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    before = state(net.host), state(two)
    error = net.run("ADD", two).error()
    assert error["msg"] == "link eth0 has address fd00:22::9 in DADFAILED state"
    assert (state(net.host), state(two)) == before
    assert reaches(one, "fd00:22::1")
