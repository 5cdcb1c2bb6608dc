"""DEL of bridge and ptp: prevResult alone is no reason to delete an interface of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.attaching import Network, reaches
from tests.support.namespaces import Namespace
from tests.support.netstate import links, shown, state

Pods = Callable[[], Namespace]
UPLINK = "vethup0"


@pytest.fixture(params=["bridge", "ptp"])
def net(request: pytest.FixtureRequest, network: Network, routed: Network) -> Network:
    """The network of each plugin that deletes a host veth."""
    return network if request.param == "bridge" else routed


def create_uplink(host: Namespace, lan: Namespace) -> str:
    """Gives the host a veth uplink, as a node in kind or LXC has; returns its MAC address."""
    host.ip("link", "add", UPLINK, "type", "veth", "peer", "name", "eth0", "netns", lan.name)
    host.ip("link", "set", UPLINK, "up")
    lan.ip("link", "set", "eth0", "up")
    return str(shown(host, UPLINK)["address"])


def host_veth(result: dict[str, Any]) -> str:
    """Returns the name of the host veth in a result."""
    return next(str(item["name"]) for item in result["interfaces"] if item["name"].startswith("veth"))


def with_host_veth(result: dict[str, Any], name: str, mac: str) -> dict[str, Any]:
    """Returns the result with another interface in place of the host veth."""
    other = {"name": name, "mac": mac}
    return {
        **result,
        "interfaces": [other if one["name"] == host_veth(result) else one for one in result["interfaces"]],
    }


@pytest.mark.parametrize("netns", ["", "missing", "there"])
def test_an_uplink_that_is_a_veth_stays(net: Network, new_sandbox: Pods, netns: str) -> None:
    """A veth uplink in prevResult, with its real MAC address, keeps its addresses and routes; DEL succeeds."""
    pod, lan = new_sandbox(), new_sandbox()
    result = with_host_veth(net.add(pod), UPLINK, create_uplink(net.host, lan))
    net.delete(pod)
    net.host.ip("address", "add", "192.0.2.1/24", "dev", UPLINK)
    net.host.ip("route", "add", "default", "via", "192.0.2.2")
    before = state(net.host)
    if netns == "missing":
        pod.delete()
    net.delete(pod.path if netns else "", result, container_id=pod.name)
    assert state(net.host) == before


@pytest.mark.parametrize("addressed", [True, False], ids=["with an address", "without"])
def test_an_uplink_that_is_a_port_of_the_bridge_stays(network: Network, new_sandbox: Pods, addressed: bool) -> None:
    """A port of the bridge that is not connected to the pod stays, with and without an address."""
    pod, lan = new_sandbox(), new_sandbox()
    result = with_host_veth(network.add(pod), UPLINK, create_uplink(network.host, lan))
    network.delete(pod)
    network.host.ip("link", "set", UPLINK, "master", "cni0")
    if addressed:
        network.host.ip("address", "add", "192.0.2.1/24", "dev", UPLINK)
    before = state(network.host)
    network.delete("", result, container_id=pod.name)
    assert state(network.host) == before


@pytest.mark.parametrize("netns", ["", "missing", "there"])
def test_the_host_veth_of_a_running_pod_stays(net: Network, new_sandbox: Pods, netns: str) -> None:
    """DEL of a pod whose prevResult lists the host veth of another pod does not affect the other pod."""
    one, two = new_sandbox(), new_sandbox()
    first, second = net.add(one), net.add(two)
    net.delete(one)
    if netns == "missing":
        one.delete()
    mac = shown(net.host, host_veth(second))["address"]
    net.delete(one.path if netns else "", with_host_veth(first, host_veth(second), mac), container_id=one.name)
    net.check(two, second)
    assert reaches(two, second["ips"][0]["gateway"])


def test_the_result_of_another_pod_deletes_nothing(net: Network, new_sandbox: Pods) -> None:
    """DEL of a pod without namespace, with the whole result of a running pod, does not affect the running one."""
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    second = net.add(two)
    one.delete()
    net.delete(one.path, second, container_id=one.name)
    net.check(two, second)


@pytest.mark.parametrize(
    ("netns", "changed", "addressed"),
    [
        pytest.param("", (), False, id="no namespace"),
        pytest.param("there", (), False, id="namespace"),
        pytest.param("there", ("address", "02:00:00:00:00:77"), False, id="another MAC"),
        pytest.param("", (), True, id="no namespace, address"),
        pytest.param("there", (), True, id="namespace, address"),
    ],
)
def test_host_veth_of_a_renamed_interface_is_deleted(net, sandbox, netns, changed, addressed) -> None:
    """DEL deletes the host veth of a renamed interface, unless an administrator added an address to the host veth.

    With a namespace it deletes a veth into it, whatever the pod changed on its interface.
    """
    result = net.add(sandbox)
    if addressed:
        net.host.ip("address", "add", "192.0.2.1/24", "dev", host_veth(result))
    sandbox.ip("link", "set", "eth0", "down")
    sandbox.ip("link", "set", "eth0", "name", "mine", *changed)
    net.delete(sandbox if netns else "", result, container_id=sandbox.name)
    assert (host_veth(result) in links(net.host)) == addressed


def test_a_host_veth_on_another_bridge_stays(network: Network, sandbox: Namespace) -> None:
    """Without a namespace, a port of another bridge than the configured one stays."""
    result = network.add(sandbox)
    for bridge in ("other", 7):
        network.having(bridge=bridge).delete("", result, container_id=sandbox.name)
        assert host_veth(result) in links(network.host)
