"""DEL of bridge and ptp: prevResult alone is no reason to delete an interface of the host."""

import json

import pytest

from attachment import veth
from cni import conf
from cni.args import CmdArgs
from kernel import address
from kernel.rtnl import Socket
from tests.support.attaching import reaches
from tests.support.netstate import links, shown, state

UPLINK = "vethup0"


@pytest.fixture(params=["bridge", "ptp"])
def net(request, network, routed):
    """The network of each plugin that deletes a host veth."""
    return network if request.param == "bridge" else routed


@pytest.fixture
def uplink_mac(host, new_sandbox):
    """The MAC address of a veth uplink, as a node in kind or LXC has."""
    lan = new_sandbox()
    host.ip("link", "add", UPLINK, "type", "veth", "peer", "name", "eth0", "netns", lan.name)
    host.ip("link", "set", UPLINK, "up")
    lan.ip("link", "set", "eth0", "up")
    return shown(host, UPLINK)["address"]


def host_veth(result):
    """Returns the name of the host veth in a result."""
    return next(item["name"] for item in result["interfaces"] if item["name"].startswith("veth"))


def with_host_veth(result, name, mac):
    """Returns the result with another interface in place of the host veth."""
    other, veth_name = {"name": name, "mac": mac}, host_veth(result)
    interfaces = [other if one["name"] == veth_name else one for one in result["interfaces"]]
    return {**result, "interfaces": interfaces}


def delete_late(net, pod, netns, result):
    """Runs DEL of a pod, whose namespace is there, missing or not named."""
    if netns == "missing":
        pod.delete()
    net.delete(pod.path if netns else "", result, container_id=pod.name)


@pytest.mark.parametrize("netns", ["", "missing", "there"])
def test_an_uplink_that_is_a_veth_stays(net, sandbox, uplink_mac, netns):
    """A veth uplink in prevResult, with its real MAC address, keeps its addresses and routes; DEL succeeds."""
    result = with_host_veth(net.add(sandbox), UPLINK, uplink_mac)
    net.delete(sandbox)
    net.host.ip("address", "add", "192.0.2.1/24", "dev", UPLINK)
    net.host.ip("route", "add", "default", "via", "192.0.2.2")
    before = state(net.host)
    delete_late(net, sandbox, netns, result)
    assert state(net.host) == before


@pytest.mark.parametrize("addressed", [True, False], ids=["with an address", "without"])
def test_an_uplink_that_is_a_port_of_the_bridge_stays(network, sandbox, uplink_mac, addressed):
    """A port of the bridge that is not connected to the pod stays, with and without an address."""
    result = with_host_veth(network.add(sandbox), UPLINK, uplink_mac)
    network.delete(sandbox)
    network.host.ip("link", "set", UPLINK, "master", "cni0")
    if addressed:
        network.host.ip("address", "add", "192.0.2.1/24", "dev", UPLINK)
    before = state(network.host)
    delete_late(network, sandbox, "", result)
    assert state(network.host) == before


@pytest.mark.parametrize(("netns", "whole"), [("", False), ("missing", False), ("missing", True), ("there", False)])
def test_the_host_veth_of_a_running_pod_stays(net, new_sandbox, netns, whole):
    """DEL of a pod with the host veth or the whole result of another pod does not affect the other pod."""
    one, two = new_sandbox(), new_sandbox()
    first, second = net.add(one), net.add(two)
    net.delete(one)
    mac = shown(net.host, host_veth(second))["address"]
    delete_late(net, one, netns, second if whole else with_host_veth(first, host_veth(second), mac))
    net.check(two, second)
    assert reaches(two, second["ips"][0]["gateway"])


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
def test_host_veth_of_a_renamed_interface_is_deleted(net, sandbox, netns, changed, addressed):
    """DEL deletes the host veth of a renamed interface, unless an administrator added an address to the host veth."""
    result = net.add(sandbox)
    if addressed:
        net.host.ip("address", "add", "192.0.2.1/24", "dev", host_veth(result))
    sandbox.ip("link", "set", "eth0", "down")
    sandbox.ip("link", "set", "eth0", "name", "mine", *changed)
    delete_late(net, sandbox, netns, result)
    assert (host_veth(result) in links(net.host)) == addressed


def test_a_host_veth_on_another_bridge_stays(network, sandbox):
    """Without a namespace, a port of another bridge than the configured one stays."""
    result = network.add(sandbox)
    for bridge in ("other", 7):
        delete_late(network.having(bridge=bridge), sandbox, "", result)
        assert host_veth(result) in links(network.host)


def test_host_veth_that_disappears_is_deleted(host, sandbox, monkeypatch):
    """DEL succeeds if the kernel deletes the host veth while DEL checks that it is the attachment's."""
    host.ip("link", "add", "veth1", "type", "veth", "peer", "eth0", "netns", sandbox.name)
    macs = [shown(each, name)["address"] for each, name in ((host, "veth1"), (sandbox, "eth0"))]
    interfaces = [{"name": "veth1", "mac": macs[0]}, {"name": "eth0", "mac": macs[1], "sandbox": sandbox.path}]
    result = {"cniVersion": "1.0.0", "interfaces": interfaces}
    stdin = {"cniVersion": "1.0.0", "name": "net", "type": "ptp", "prevResult": result}
    list_on_link = address.list_on_link

    def list_after_deletion(socket, link):
        host.ip("link", "del", "veth1")
        return list_on_link(socket, link)

    monkeypatch.setattr(address, "list_on_link", list_after_deletion)
    with host.entered():
        host_socket = Socket()
    with host_socket:
        args = CmdArgs("DEL", "id", "", "eth0", "", (), {})
        veth.delete_attachment_veth(args, conf.parse(json.dumps(stdin).encode()), host_socket)
    assert "veth1" not in links(host)
