"""What passes: pods on two bridges of a node whose FORWARD chain refuses everything, and a machine outside."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.attaching import Network, address, reaches
from tests.support.firewall_tables import Firewall
from tests.support.publishing import CLIENT, CLIENT6, GATEWAY, disable_dad


@pytest.fixture
def node(bin_dir, host, client, tools, store, new_sandbox):
    """Returns a function that makes a pod on a bridge of the node, with the firewall it is asked for."""
    for tool in ("iptables", "ip6tables"):
        host.run(f"{tools}/{tool}", "-P", "FORWARD", "DROP")
    disable_dad(host)
    client.ip("route", "add", "10.0.0.0/8", "via", "192.0.2.1")
    client.ip("-6", "route", "add", "fd00::/8", "via", "2001:db8::1")
    made = []

    def attach(bridge, number, **keys):
        pod = new_sandbox()
        disable_dad(pod)
        ranges = [[{"subnet": f"10.{number}.0.0/16"}], [{"subnet": f"fd00:{number}::/64"}]]
        ipam = {"type": "host-local", "ranges": ranges, "dataDir": str(store)}
        common = {"cniVersion": "1.0.0", "name": bridge}
        config = {**common, "type": "bridge", "bridge": bridge, "isDefaultGateway": True, "ipam": ipam}
        network = Network(host, config)
        result = network.add(pod)
        firewall = Firewall(host, {**common, "type": "firewall", "prevResult": result, **keys}, tools=tools)
        firewall.add(pod.name)
        attach.firewalls.append(firewall)
        made.append((firewall, network, pod, result))
        return pod, address(result), address(result, 1)

    attach.firewalls = []
    yield attach
    for firewall, network, pod, result in reversed(made):
        firewall.delete(pod.name)
        network.delete(pod, result)


def among(pairs):
    """Returns which of the (from, to) pairs answer, all asked at once; where one is refused it costs a second."""
    with ThreadPoolExecutor(len(pairs)) as pool:
        return list(pool.map(lambda pair: reaches(*pair, within_s=1), pairs))


@pytest.mark.parametrize("policy", ["open", "same-bridge", "isolated"])
def test_who_reaches_whom(node, client, host, policy):
    """Pods reach the outside and get answers, nobody outside calls them, and the policy says which neighbours do."""
    keys = {"backend": "iptables", "ingressPolicy": policy}
    inside = policy == "isolated" and _bridged_frames(host)
    first, ip, ip6 = node("foo", 10, **keys)
    second, neighbour, neighbour6 = node("foo", 10, **keys)
    other, elsewhere, elsewhere6 = node("bar", 11, **keys)
    for pod in (first, second, other):
        assert reaches(pod, CLIENT)
        assert reaches(pod, CLIENT6)
    assert reaches(first, GATEWAY.replace("22", "10"))
    assert among([(client, ip), (client, ip6)]) == [False, False]
    opened = policy == "open"
    across = [(first, elsewhere), (first, elsewhere6), (other, ip), (other, ip6)]
    assert among(across) == [opened] * 4
    assert among([(first, neighbour), (first, neighbour6), (second, ip), (second, ip6)]) == [not inside] * 4


def _bridged_frames(host):
    """Has bridged frames pass iptables, and returns whether that can be had."""
    try:
        for name in ("iptables", "ip6tables"):
            host.set_sysctl(f"net/bridge/bridge-nf-call-{name}", "1")
    except FileNotFoundError:
        return False
    return True


def test_a_flushed_host_is_restored(node, host, tools):
    """After somebody flushed iptables a repeated ADD lets the pod through again."""
    pod, _, _ = node("foo", 10, backend="iptables")
    assert reaches(pod, CLIENT)
    host.run(f"{tools}/iptables", "-F")
    assert among([(pod, CLIENT)]) == [False]
    node.firewalls[0].add(pod.name)
    assert reaches(pod, CLIENT)
