"""The effect of the firewall's policies on packets between pods on two bridges, and a client outside."""

from dataclasses import replace

import pytest

from tests.support.attaching import address
from tests.support.firewall_network import FirewallNetwork
from tests.support.publishing import CLIENT, NODE, disable_dad

IPTABLES = pytest.param("iptables", marks=pytest.mark.needs("iptables_nft_nat"))
NFTABLES = pytest.param("nftables", marks=[pytest.mark.needs("nft_inet"), pytest.mark.needs("nft_bridge")])


@pytest.fixture(params=[IPTABLES, NFTABLES])
def foo(request, network, client):
    """A network on bridge foo; the client has routes to it and to network bar."""
    for subnet in ("10.22.0.0/16", "10.33.0.0/16"):
        client.ip("route", "add", subnet, "via", NODE)
    return FirewallNetwork(network.having(name="foo", bridge="foo"), {"backend": request.param})


@pytest.fixture
def bar(foo):
    """A network on bridge bar."""
    return foo.sibling("bar", "bar", "10.33.0.0/16")


@pytest.mark.parametrize("policy", [None, "open"])
def test_open(foo, bar, new_sandbox, policy):
    """With policy open, or without a policy, all pods reach each other and the outside."""
    foo, bar = foo.having(ingressPolicy=policy), bar.having(ingressPolicy=policy)
    one, two, three = foo.add(new_sandbox()), foo.add(new_sandbox()), bar.add(new_sandbox())
    assert one.reaches(two)
    assert one.reaches(three)
    assert three.reaches(one)
    assert one.reaches(CLIENT)


def test_same_bridge(foo, bar, client, new_sandbox):
    """With same-bridge pods reach the pods on their bridge, and the outside, but no pods on other bridges."""
    foo, bar = foo.having(ingressPolicy="same-bridge"), bar.having(ingressPolicy="same-bridge")
    one, two, three = foo.add(new_sandbox()), foo.add(new_sandbox()), bar.add(new_sandbox())
    assert one.reaches(two)
    assert one.cannot_reach(three)
    assert three.cannot_reach(two)
    assert one.reaches(CLIENT)
    assert three.reaches(CLIENT)


@pytest.mark.parametrize("foo", [NFTABLES], indirect=True)
def test_policy_ends_with_its_last_pod(foo, bar, new_sandbox):
    """When the last pod with a policy is deleted, its bridge has no policy."""
    foo = foo.having(ingressPolicy="same-bridge")
    one, other = foo.add(new_sandbox()), bar.having(ingressPolicy="isolated").add(new_sandbox())
    assert one.cannot_reach(other)
    bar.delete(other)
    second, third = (bar.add(new_sandbox()) for _ in range(2))
    assert one.reaches(second)
    assert second.reaches(one)
    assert second.reaches(third)


@pytest.mark.parametrize("foo", [NFTABLES], indirect=True)
@pytest.mark.parametrize("frames_pass", ["0", pytest.param("1", marks=pytest.mark.needs("br_netfilter"))])
def test_isolated(foo, bar, new_sandbox, frames_pass):
    """With isolated pods reach the gateway and the outside, but no other pod, also none on their bridge.

    If bridged frames bypass iptables, the plugin's table of family bridge drops them; otherwise the inet table does.
    """
    host = foo.bridge.host
    foo, bar = foo.having(ingressPolicy="isolated"), bar.having(ingressPolicy="same-bridge")
    one, two, three, four = (each.add(new_sandbox()) for each in (foo, foo, bar, bar))
    if frames_pass == "1":
        host.set_sysctl("net/bridge/bridge-nf-call-iptables", frames_pass)
        host.run("nft", "delete table bridge podwire_firewall", check=False)
    else:
        _disable_bridge_netfilter(host)
    assert one.cannot_reach(two)
    assert two.cannot_reach(three)
    assert three.cannot_reach(two)
    assert three.reaches(four)
    for pod, gateway in ((one, "10.22.0.1"), (two, "10.22.0.1"), (three, "10.33.0.1")):
        assert pod.reaches(gateway)
        assert pod.reaches(CLIENT)


@pytest.mark.needs("br_netfilter")
def test_isolated_with_bridge_netfilter(foo, bar, new_sandbox):
    """If bridged frames pass through iptables, isolated works with both backends."""
    foo.bridge.host.set_sysctl("net/bridge/bridge-nf-call-iptables", "1")
    foo, bar = foo.having(ingressPolicy="isolated"), bar.having(ingressPolicy="same-bridge")
    one, two, three, four = (each.add(new_sandbox()) for each in (foo, foo, bar, bar))
    assert one.cannot_reach(two)
    assert two.cannot_reach(three)
    assert three.cannot_reach(two)
    assert three.reaches(four)
    assert one.reaches(CLIENT)
    assert one.reaches("10.22.0.1")


@pytest.mark.parametrize("foo", [NFTABLES], indirect=True)
def test_isolated_pods_do_not_answer_arp(foo, new_sandbox):
    """An isolated pod answers neither ARP nor pings to its link-local address from other pods on its bridge."""
    foo = foo.having(ingressPolicy="isolated")
    one, two = foo.add(new_sandbox()), foo.having(ingressPolicy="open").add(new_sandbox())
    assert one.cannot_reach(two)
    assert two.cannot_reach(one)
    neighbour = two.namespace.ip("neigh", "show", one.ip)
    assert "FAILED" in neighbour or "INCOMPLETE" in neighbour
    text = one.namespace.ip("-6", "-o", "addr", "show", "dev", "eth0", "scope", "link")
    assert two.cannot_reach(f"{text.split()[3].partition('/')[0]}%eth0")


def test_same_bridge_for_ipv6(foo, bar, new_sandbox):
    """With same-bridge IPv6 passes within a bridge, but not between bridges."""
    foo, bar = (each.having(ingressPolicy="same-bridge") for each in (foo, bar))
    subnets = {"foo": "fd00:22::/64", "bar": "fd00:33::/64"}
    one, two, three = (_dual(each, subnets).add(new_sandbox()) for each in (foo, foo, bar))
    assert one.reaches(address(two.result, 1))
    assert one.cannot_reach(address(three.result, 1))
    assert one.reaches("fd00:33::1")


def _dual(network, subnets):
    """Returns the network with an IPv6 subnet in addition."""
    disable_dad(network.bridge.host)
    ipam = network.bridge.config["ipam"]
    subnet = subnets[network.bridge.config["name"]]
    return replace(
        network, bridge=network.bridge.having(ipam={**ipam, "ranges": [*ipam["ranges"], [{"subnet": subnet}]]})
    )


def test_policy_applies_between_bridges_with_a_policy(foo, bar, client, new_sandbox):
    """A policy does not apply between a bridge with a policy and one without."""
    one, two = foo.having(ingressPolicy="same-bridge").add(new_sandbox()), bar.add(new_sandbox())
    assert one.reaches(two)
    assert two.reaches(one)
    assert one.reaches(CLIENT)


def _disable_bridge_netfilter(host):
    for name in ("iptables", "ip6tables", "arptables"):
        try:
            host.set_sysctl(f"net/bridge/bridge-nf-call-{name}", "0")
        except FileNotFoundError:  # the kernel has no br_netfilter
            continue


@pytest.mark.parametrize("policy", ["open", "same-bridge", "isolated"])
def test_add_warns_of_a_gateway_in_a_vlan(foo, new_sandbox, policy):
    """ADD with a policy prints a warning if the gateway is an interface in a VLAN of the bridge."""
    pod = foo.add(new_sandbox())
    vlan = {**pod.result, "interfaces": [*pod.result["interfaces"], {"name": "foo.100", "mac": "02:00:00:00:00:01"}]}
    outcome = foo.having(ingressPolicy=policy).firewall(vlan).run("ADD", pod.namespace.name)
    outcome.result()
    assert ('the pod is routed by "foo.100"' in outcome.stderr) == (policy != "open")
