"""The effect of the firewall's policies on packets between pods on two bridges, and a client outside."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.netns.conftest import LEGACY, NFT
from tests.support import kernels, xtables
from tests.support.attaching import address, reaches
from tests.support.firewall_network import FirewallNetwork
from tests.support.publishing import CLIENT, CLIENT6, NODE, NODE6, disable_dad

NFTABLES = pytest.param("nftables", marks=pytest.mark.needs("nft_inet", "nft_bridge"))


@pytest.fixture(params=[NFT, LEGACY, NFTABLES])
def foo(request, dual_network, client, tmp_path):
    """A dual-stack network on bridge foo with each backend; the client has routes to it and to network bar."""
    for subnet, node in (("10.0.0.0/8", NODE), ("fd00::/8", NODE6)):
        client.ip("route", "add", subnet, "via", node)
    disable_dad(dual_network.host)
    bridge = dual_network.having(name="foo", bridge="foo")
    if request.param == "nftables":
        return FirewallNetwork(bridge, {"backend": "nftables"})
    return FirewallNetwork(bridge, {"backend": "iptables"}, tools=xtables.variant(tmp_path / "tools", request.param))


@pytest.fixture
def bar(foo):
    """A network on bridge bar."""
    return foo.sibling("bar", "bar", "10.33.0.0/16", "fd00:33::/64")


def drop_by_default(net):
    """Sets the policy of chain FORWARD to drop; with nftables of the plugin's chain, which must exist."""
    if not net.tools:
        net.host.run("nft", "chain inet podwire_firewall forward { policy drop; }")
        return
    for tool in xtables.TOOLS:
        net.host.run(f"{net.tools}/{tool}", "-P", "FORWARD", "DROP")


def pass_bridged_frames(host, value):
    """Sets whether bridged frames pass through iptables and family inet."""
    for name in ("iptables", "ip6tables", "arptables") if kernels.has("br_netfilter") else ():
        host.set_sysctl(f"net/bridge/bridge-nf-call-{name}", value)


def assert_reach(sender, receiver, expected):
    """Asserts whether both addresses of a pod answer pings from a namespace, and sends these in parallel."""
    limit = 20 if expected else 1
    with ThreadPoolExecutor() as pool:
        ips = (address(receiver.result, number) for number in (0, 1))
        assert list(pool.map(lambda ip: reaches(sender, ip, within_s=limit), ips)) == [expected, expected]


@pytest.mark.parametrize(
    ("policy", "bridged"),
    [
        (None, "0"),
        ("open", "0"),
        ("same-bridge", "0"),
        ("isolated", "0"),
        pytest.param("isolated", "1", marks=pytest.mark.needs("br_netfilter")),
    ],
)
def test_policy_decides_which_pods_are_reachable(foo, bar, client, new_sandbox, policy, bridged):
    """Pods reach gateway and outside, are unreachable from there if the default is drop, and obey the policy.

    With iptables isolated needs bridged frames that pass through it. With nftables the plugin's table of family bridge
    drops them if they do not; otherwise the inet table does.
    """
    pass_bridged_frames(foo.host, bridged)
    second_policy = "same-bridge" if policy == "isolated" else policy
    one, two = (foo.having(ingressPolicy=policy).add(new_sandbox()) for _ in range(2))
    three, four = (bar.having(ingressPolicy=second_policy).add(new_sandbox()) for _ in range(2))
    drop_by_default(foo)
    if bridged == "1":
        foo.host.run("nft", "delete table bridge podwire_firewall", check=False)
    for pod, gateways in ((one, ("10.22.0.1", "fd00:22::1")), (three, ("10.33.0.1", "fd00:33::1"))):
        for ip in (*gateways, CLIENT, CLIENT6):
            assert pod.reaches(ip)
    assert_reach(client, one, expected=False)
    for sender, receiver in ((one, three), (three, two)):
        assert_reach(sender.namespace, receiver, expected=policy in (None, "open"))
    assert_reach(three.namespace, four, expected=True)
    is_isolated = policy == "isolated" and (bridged == "1" or not foo.tools)
    assert_reach(one.namespace, two, expected=not is_isolated)


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


def test_policy_applies_between_bridges_with_a_policy(foo, bar, client, new_sandbox):
    """A policy does not apply between a bridge with a policy and one without."""
    one, two = foo.having(ingressPolicy="same-bridge").add(new_sandbox()), bar.add(new_sandbox())
    assert one.reaches(two)
    assert two.reaches(one)
    assert one.reaches(CLIENT)


@pytest.mark.parametrize("policy", ["open", "same-bridge", "isolated"])
def test_add_warns_of_a_gateway_in_a_vlan(foo, new_sandbox, policy):
    """ADD with a policy prints a warning if the gateway is an interface in a VLAN of the bridge."""
    pod = foo.add(new_sandbox())
    vlan = {**pod.result, "interfaces": [*pod.result["interfaces"], {"name": "foo.100", "mac": "02:00:00:00:00:01"}]}
    outcome = foo.having(ingressPolicy=policy).firewall(vlan).run("ADD", pod.namespace.name)
    outcome.result()
    assert ('the pod is routed by "foo.100"' in outcome.stderr) == (policy != "open")
