"""The gateway in a VLAN of bridge: the interface `<bridge>.<vlan>`, shared by the pods of the VLAN."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cni.args import from_env
from cni.conf import parse
from kernel import link, sysctl
from kernel.netns import Netns, entered
from plugins.bridge.main import cmd_add
from tests.support import binaries
from tests.support.attaching import address, host_end, reaches
from tests.support.invocation import finish
from tests.support.netstate import links, shown, state
from tests.support.vlans import PVID_FLAGS, gateway_port, vlans

pytestmark = pytest.mark.needs("vlan_filtering")


@pytest.fixture
def failing_network(scripted_network):
    """A network in VLAN 100 whose ADD fails late: the second gateway conflicts with the first."""
    ips = [{"address": f"10.{net}.9.9/16", "gateway": f"10.{net}.0.1"} for net in (22, 23)]
    return scripted_network(ips, keys={"vlan": 100})


def add_in_process(net, pod):
    """Runs ADD in the test's process, where functions can be replaced, and returns the result."""
    keys = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}
    args = from_env({**keys, "CNI_PATH": net.path or str(binaries.directory())})
    stdin = json.dumps(net.config).encode()
    with Netns(net.host.path) as namespace, entered(namespace):
        return cmd_add(replace(args, stdin=stdin), parse(stdin))


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_pods_of_a_vlan_share_the_gateway_interface(network, new_sandbox, version):
    """Two pods of VLAN 100 share cni0.100, which has the gateway address and is listed in the result."""
    net = network.having(vlan=100, cniVersion=version, mtu=1400)
    pods = new_sandbox(), new_sandbox()
    results = [net.add(pod) for pod in pods]
    for pod, result in zip(pods, results, strict=True):
        gateway = result["interfaces"][3]
        assert gateway["name"] == "cni0.100"
        assert gateway["mac"] == shown(net.host, "cni0.100")["address"]
        assert gateway.get("mtu") == (1400 if version == "1.1.0" else None)
        assert "sandbox" not in gateway
        net.check(pod, result)
        assert reaches(pod, "10.22.0.1")
    assert reaches(pods[0], address(results[1]))
    host_links = links(net.host)
    port = gateway_port(net.host)
    assert host_links.keys() == {"lo", "cni0", "cni0.100", port, *map(host_end, results)}
    assert [item["local"] for item in host_links["cni0.100"]["addresses"]] == ["10.22.0.1"]
    assert host_links["cni0"]["addresses"] == []
    assert vlans(net.host, port) == {100: PVID_FLAGS}
    assert host_links[port]["mtu"] == host_links["cni0.100"]["mtu"] == 1400
    assert net.host.sysctl("net/ipv6/conf/cni0.100/accept_ra") == "0"
    for pod, result in zip(pods, results, strict=True):
        net.delete(pod, result)
    assert set(links(net.host)) == {"lo", "cni0", "cni0.100", port}
    net.add(pods[0])
    assert reaches(pods[0], "10.22.0.1")


def test_each_vlan_has_its_gateway(dual_network, new_sandbox):
    """Networks in two VLANs share a bridge; pods reach the gateway of their VLAN, not each other."""
    one, two = new_sandbox(), new_sandbox()
    first = dual_network.having(vlan=100)
    ranges = [[{"subnet": "10.33.0.0/16"}], [{"subnet": "fd00:33::/64"}]]
    second = dual_network.having(vlan=200, name="other", ipam={**dual_network.config["ipam"], "ranges": ranges})
    results = first.add(one), second.add(two)
    for pod, gateways in ((one, ("10.22.0.1", "fd00:22::1")), (two, ("10.33.0.1", "fd00:33::1"))):
        assert [reaches(pod, gateway) for gateway in gateways] == [True, True]
    first.check(one, results[0])
    second.check(two, results[1])
    two.ip("addr", "add", "10.22.0.99/16", "dev", "eth0")
    assert not reaches(one, "10.22.0.99", within_s=1)


def test_bridge_keeps_its_mac(network, sandbox, bridged, monkeypatch):
    """A bridge with the MAC of a port keeps it when a gateway interface with a lower MAC is attached."""
    bridged.ip("link", "add", "p0", "address", "52:00:00:00:00:01", "master", "cni0", "type", "veth", "peer", "p1")
    macs = iter(range(8))  # the two ends of the pod's veth, then those of the gateway's
    monkeypatch.setattr(link, "random_mac", lambda: bytes([0x62 - 0x10 * next(macs), 0, 0, 0, 0, 9]))
    net = network.having(vlan=100)
    result = add_in_process(net, sandbox)
    assert result.interfaces[1].mac == "52:00:00:00:00:09"
    assert shown(bridged, gateway_port(bridged))["address"] == "42:00:00:00:00:09"
    assert shown(bridged, "cni0")["address"] == result.interfaces[0].mac == "52:00:00:00:00:01"


def test_bridge_with_the_gateways_name_is_refused(network, sandbox, host):
    """A bridge that has the name of the gateway interface is refused with code 7."""
    host.ip("link", "add", "cni0.100", "type", "bridge")
    error = network.having(vlan=100).add_error(sandbox)
    assert error["code"] == 7
    assert error["msg"] == '"cni0.100" already exists but is a bridge, not the interface of VLAN 100'


def test_conflicting_gateway_address(network, sandbox, new_sandbox):
    """An address of cni0.100 conflicts like one of the bridge, and forceAddress replaces it."""
    net = network.having(vlan=100)
    net.add(new_sandbox())
    net.host.ip("addr", "add", "10.44.0.1/16", "dev", "cni0.100")
    net.host.ip("addr", "del", "10.22.0.1/16", "dev", "cni0.100")
    error = net.add_error(sandbox)
    text = '"cni0.100" already has an IP address different from 10.22.0.1/16'
    assert (error["code"], text in error["msg"]) == (7, True)
    net.having(forceAddress=True).add(sandbox)
    assert [item["local"] for item in links(net.host)["cni0.100"]["addresses"]] == ["10.22.0.1"]
    assert reaches(sandbox, "10.22.0.1")


@pytest.mark.parametrize("neighbour", [False, True])
def test_failing_add_deletes_its_gateway_interface(network, failing_network, sandbox, new_sandbox, neighbour):
    """A failing ADD deletes the gateway interface that it created, unless another pod is in the VLAN."""
    net = network.having(vlan=100)
    if neighbour:  # a pod in the VLAN, before the VLAN has a gateway
        other = new_sandbox()
        layer2 = network.having(vlan=100, ipam=None, isDefaultGateway=None)
        layer2.add(other)
    before = set(links(net.host)), state(sandbox)
    error = failing_network.run("ADD", sandbox).error()
    assert '"cni0.100" already has an IP address different from 10.23.0.1/16' in error["msg"]
    after = set(links(net.host))
    stays = {"cni0.100", gateway_port(net.host)} if neighbour else set()
    assert (after, state(sandbox)) == (before[0] | stays, before[1])
    net.add(sandbox)
    assert reaches(sandbox, "10.22.0.1")


@pytest.mark.long
@pytest.mark.parametrize("round_", range(3))
def test_parallel_first_pods_of_a_vlan(network, new_sandbox, round_):
    """The first pods of a VLAN, attached in parallel, create one gateway interface, and all reach it."""
    net = network.having(vlan=100)
    pods = [new_sandbox() for _ in range(8)]
    results = [finish(process).result() for process in [net.start("ADD", pod) for pod in pods]]
    assert len({json.dumps(result["interfaces"][3]) for result in results}) == 1
    ports = {gateway_port(net.host), *map(host_end, results)}
    assert set(links(net.host)) == {"lo", "cni0", "cni0.100", *ports}
    assert {name: vlans(net.host, name) for name in ports} == {name: {100: PVID_FLAGS} for name in ports}
    assert [pod for pod in pods if not reaches(pod, "10.22.0.1")] == []


def test_gateway_created_meanwhile_is_used(network, sandbox, new_sandbox, monkeypatch):
    """If another ADD creates the gateway interface meanwhile, ADD uses it and deletes its own veth."""
    net = network.having(vlan=100)
    try_write = sysctl.try_write
    others: list[dict[str, Any]] = []

    def write_and_add_another(name, value):
        try_write(name, value)
        veths = [item for item in links(net.host) if item.startswith("veth")]
        if len(veths) == 3 and not others:  # the pod's port, and both ends of the veth for the gateway
            others.append(net.add(new_sandbox()))

    monkeypatch.setattr(sysctl, "try_write", write_and_add_another)
    result = add_in_process(net, sandbox)
    assert result.interfaces[3].mac == others[0]["interfaces"][3]["mac"]
    ports = {gateway_port(net.host), result.interfaces[1].name, host_end(others[0])}
    assert set(links(net.host)) == {"lo", "cni0", "cni0.100", *ports}
    assert reaches(sandbox, "10.22.0.1")


def test_check_of_a_result_without_the_gateway_interface(network, sandbox):
    """CHECK fails if prevResult does not list the gateway interface."""
    net = network.having(vlan=100)
    result = net.add(sandbox)
    short = {**result, "interfaces": result["interfaces"][:3]}
    assert net.check_error(sandbox, short) == 'prevResult has no interface "cni0.100" on the host'
