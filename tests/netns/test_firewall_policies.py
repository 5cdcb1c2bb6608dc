"""Whom the firewall's policies let through: real packets between pods on two bridges, and a machine outside."""

from dataclasses import replace

import pytest

from tests.support.attaching import address
from tests.support.firewall_network import FirewallNetwork
from tests.support.publishing import CLIENT, NODE, disable_dad

IPTABLES = pytest.param("iptables", marks=pytest.mark.needs("iptables_nft_nat"))
NFTABLES = pytest.param("nftables", marks=[pytest.mark.needs("nft_inet"), pytest.mark.needs("nft_bridge")])


@pytest.fixture(params=[IPTABLES, NFTABLES])
def foo(request, network, client):
    """A network on bridge foo; the machine outside has a route to it and to the other one."""
    for subnet in ("10.22.0.0/16", "10.33.0.0/16"):
        client.ip("route", "add", subnet, "via", NODE)
    return FirewallNetwork(network.having(name="foo", bridge="foo"), {"backend": request.param})


@pytest.fixture
def bar(foo):
    """A network on bridge bar."""
    return foo.sibling("bar", "bar", "10.33.0.0/16")


@pytest.mark.parametrize("policy", [None, "open"])
def test_open(foo, bar, new_sandbox, policy):
    """With no policy everybody reaches everybody."""
    foo, bar = foo.having(ingressPolicy=policy), bar.having(ingressPolicy=policy)
    one, two, three = foo.add(new_sandbox()), foo.add(new_sandbox()), bar.add(new_sandbox())
    assert one.reaches(two)
    assert one.reaches(three)
    assert three.reaches(one)
    assert one.reaches(CLIENT)


def test_same_bridge(foo, bar, client, new_sandbox):
    """With same-bridge pods of one bridge reach each other, those of different ones do not, all reach the outside."""
    foo, bar = foo.having(ingressPolicy="same-bridge"), bar.having(ingressPolicy="same-bridge")
    one, two, three = foo.add(new_sandbox()), foo.add(new_sandbox()), bar.add(new_sandbox())
    assert one.reaches(two)
    assert one.cannot_reach(three)
    assert three.cannot_reach(two)
    assert one.reaches(CLIENT)
    assert three.reaches(CLIENT)


@pytest.mark.parametrize("foo", [NFTABLES], indirect=True)
def test_a_policy_goes_with_its_last_pod(foo, bar, new_sandbox):
    """When the last pod with a policy is gone its bridge has none, and pods there are open."""
    foo = foo.having(ingressPolicy="same-bridge")
    one, other = foo.add(new_sandbox()), bar.having(ingressPolicy="isolated").add(new_sandbox())
    assert one.cannot_reach(other)
    bar.delete(other)
    again, further = (bar.add(new_sandbox()) for _ in range(2))
    assert one.reaches(again)
    assert again.reaches(one)
    assert again.reaches(further)


@pytest.mark.parametrize("foo", [NFTABLES], indirect=True)
@pytest.mark.parametrize("frames_pass", ["0", pytest.param("1", marks=pytest.mark.needs("br_netfilter"))])
def test_isolated(foo, bar, new_sandbox, frames_pass):
    """With isolated no pod reaches another, on its bridge neither, but the gateway and the outside world.

    That is so where frames of one bridge do not pass the tables of IP, and where they do also without our table for
    bridges.
    """
    host = foo.bridge.host
    foo, bar = foo.having(ingressPolicy="isolated"), bar.having(ingressPolicy="same-bridge")
    one, two, three, four = (each.add(new_sandbox()) for each in (foo, foo, bar, bar))
    if frames_pass == "1":
        host.set_sysctl("net/bridge/bridge-nf-call-iptables", frames_pass)
        host.run("nft", "delete table bridge podwire_firewall", check=False)
    else:
        _switch_off(host)
    assert one.cannot_reach(two)
    assert two.cannot_reach(three)
    assert three.cannot_reach(two)
    assert three.reaches(four)
    for pod, gateway in ((one, "10.22.0.1"), (two, "10.22.0.1"), (three, "10.33.0.1")):
        assert pod.reaches(gateway)
        assert pod.reaches(CLIENT)


@pytest.mark.needs("br_netfilter")
def test_isolated_where_bridged_frames_pass(foo, bar, new_sandbox):
    """Where frames of one bridge pass the tables of IP either backend keeps isolated pods apart."""
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
def test_isolated_pods_do_not_even_see_each_other(foo, new_sandbox):
    """Neither ARP nor a link-local address of an isolated pod is answered to its neighbour on the bridge."""
    foo = foo.having(ingressPolicy="isolated")
    one, two = foo.add(new_sandbox()), foo.having(ingressPolicy="open").add(new_sandbox())
    assert one.cannot_reach(two)
    assert two.cannot_reach(one)
    neighbour = two.namespace.ip("neigh", "show", one.ip)
    assert "FAILED" in neighbour or "INCOMPLETE" in neighbour
    text = one.namespace.ip("-6", "-o", "addr", "show", "dev", "eth0", "scope", "link")
    assert two.cannot_reach(f"{text.split()[3].partition('/')[0]}%eth0")


def test_policies_for_ipv6(foo, bar, new_sandbox):
    """Between bridges with a policy IPv6 does not pass either, and inside one it does."""
    foo, bar = (each.having(ingressPolicy="same-bridge") for each in (foo, bar))
    subnets = {"foo": "fd00:22::/64", "bar": "fd00:33::/64"}
    one, two, three = (_dual(each, subnets).add(new_sandbox()) for each in (foo, foo, bar))
    assert one.reaches(address(two.result, 1))
    assert one.cannot_reach(address(three.result, 1))
    assert one.reaches("fd00:33::1")


def _dual(network, subnets):
    """Returns a network with an IPv6 subnet beside its own."""
    disable_dad(network.bridge.host)
    ipam = network.bridge.config["ipam"]
    subnet = subnets[network.bridge.config["name"]]
    return replace(
        network, bridge=network.bridge.having(ipam={**ipam, "ranges": [*ipam["ranges"], [{"subnet": subnet}]]})
    )


def test_an_open_network_beside_one_with_a_policy(foo, bar, client, new_sandbox):
    """A policy is between bridges that both have one: who has none reaches, and is reached by, everybody."""
    one, two = foo.having(ingressPolicy="same-bridge").add(new_sandbox()), bar.add(new_sandbox())
    assert one.reaches(two)
    assert two.reaches(one)
    assert one.reaches(CLIENT)


def _switch_off(host):
    for name in ("iptables", "ip6tables", "arptables"):
        try:
            host.set_sysctl(f"net/bridge/bridge-nf-call-{name}", "0")
        except FileNotFoundError:  # the kernel has no br_netfilter
            continue


@pytest.mark.parametrize("policy", ["open", "same-bridge", "isolated"])
def test_a_gateway_in_a_vlan_is_told(foo, new_sandbox, policy):
    """A policy is not about the gateway's interface in a VLAN of the bridge: ADD says so, unless it is open."""
    pod = foo.add(new_sandbox())
    vlan = {**pod.result, "interfaces": [*pod.result["interfaces"], {"name": "foo.100", "mac": "02:00:00:00:00:01"}]}
    outcome = foo.having(ingressPolicy=policy).firewall(vlan).run("ADD", pod.namespace.name)
    outcome.result()
    assert ('the pod is routed by "foo.100"' in outcome.stderr) == (policy != "open")
