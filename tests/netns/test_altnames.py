"""Configurations that refer to an interface by an altname, which may be longer than a name: every plugin and verb.

systemd gives an interface whose name would be too long that name as an altname only.
"""

import json

import pytest

from tests.support.attaching import count_messages, reaches
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.netstate import links, state
from tests.support.single_link import ON_MASTER, each
from tests.support.uplink import UPLINK

ALTNAMES = ("short0", "enp193s0f0np0v127")  # the second has more bytes than a name
pytestmark = pytest.mark.parametrize("altname", ALTNAMES)


def name_also(host, name, altname):
    """Gives an interface of the host an altname."""
    host.ip("link", "property", "add", "dev", name, "altname", altname)


@each(*ON_MASTER)
def test_master(net, sandbox, altname):
    """ADD, CHECK, STATUS and DEL work with an altname of the master, and send as many messages as with its name."""
    name_also(net.host, UPLINK, altname)
    messages = count_messages(net, sandbox)
    net.delete(sandbox)
    net = net.having(master=altname)
    assert count_messages(net, sandbox) == messages
    net.delete(sandbox)
    result = net.add(sandbox)
    net.check(sandbox, result)
    net.run("STATUS").assert_silent()
    net.delete(sandbox, result)
    assert "eth0" not in links(sandbox)
    error = net.having(master=altname[:-1]).run("ADD", sandbox).error()
    assert error["msg"] == f'failed to lookup master "{altname[:-1]}": Link not found'


@pytest.mark.parametrize("by_altname", [True, False])
def test_device(moved, host, sandbox, altname, by_altname):
    """Devices with an altname, by which they may be selected, are moved, and restored with it."""
    name_also(host, "hd0", altname)
    net = moved.having(device=altname if by_altname else "hd0")
    before = state(host)
    result = net.add(sandbox)
    net.check(sandbox, result)
    error = net.run("ADD", sandbox, container_id="other").error()
    assert '"hd0" is in container' in error["details"]
    net.delete(sandbox, result)
    assert state(host) == before


def test_device_that_the_reference_moved(moved, host, sandbox, altname):
    """DEL brings back a device that the reference plugin moved: without a file, with its name as alias."""
    name_also(host, "hd0", altname)
    host.ip("link", "set", "hd0", "netns", sandbox.name)
    sandbox.ip("link", "set", "hd0", "name", "eth0", "alias", "hd0")
    moved.having(device=altname).delete(sandbox)
    assert "hd0" in links(host)


@pytest.mark.parametrize("keys", [{}, pytest.param({"vlan": 100}, marks=pytest.mark.needs("vlan_filtering"))])
def test_bridge(network, dual_network, host, sandbox, keys, altname):
    """A bridge is used by its altname, without further messages; result and gateway interface have its name."""
    host.ip("link", "add", "br0", "up", "type", "bridge")
    name_also(host, "br0", altname)
    counted = []
    for name in ("br0", "br0", altname):  # the first ADD creates the bridge's addresses
        net = network.having(bridge=name, name="ipv4", **keys)  # ADD may wait for an IPv6 address
        counted.append(count_messages(net, sandbox))
        net.delete(sandbox)
    assert counted[1] == counted[2]
    net = dual_network.having(bridge=altname, **keys)
    result = net.add(sandbox)
    names = [item["name"] for item in result["interfaces"] if "sandbox" not in item]
    assert (names[0], names[2:]) == ("br0", ["br0.100"] * len(keys))
    gateway = names[-1] if keys else "br0"
    assert "10.22.0.1" in [item["local"] for item in links(host)[gateway]["addresses"]]
    assert reaches(sandbox, "10.22.0.1")
    net.check(sandbox, result)
    net.having(cniVersion="1.1.0").run("STATUS").assert_silent()
    net.delete(sandbox, result)
    assert "eth0" not in links(sandbox)


def test_del_without_the_namespace(network, host, new_sandbox, altname):
    """DEL without CNI_NETNS deletes the host veth on a bridge that is named by an altname."""
    host.ip("link", "add", "br0", "up", "type", "bridge")
    name_also(host, "br0", altname)
    pod = new_sandbox()
    net = network.having(bridge=altname)
    result = net.add(pod)
    net.run("DEL", "", prev_result=result, container_id=pod.name).assert_silent()
    assert [name for name in links(host) if name.startswith("veth")] == []


def test_tool(host, sandbox, tmp_path, altname):
    """With an altname of the bridge `podwire doctor` has no problem, and `podwire show` names the bridge."""
    host.ip("link", "set", "lo", "up")
    host.ip("link", "add", "br0", "up", "type", "bridge")
    name_also(host, "br0", altname)
    node = DoctorNode(host, tmp_path)
    ipam = {"type": "host-local", "subnet": "10.22.0.0/16", "dataDir": f"{tmp_path}/leases"}
    plugin = {"type": "bridge", "bridge": altname, "isDefaultGateway": True, "ipMasq": True, "ipam": ipam}
    network = node.add_network({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]})
    node.attach(network, sandbox)
    assert list_problems(node.list_findings()) == []
    shown = json.loads(node.podwire("show", f"--data-dir={tmp_path}/leases", "--json").stdout)
    assert [item["bridges"] for item in shown["networks"]] == [["br0"]]
    assert [item["name"] for item in shown["bridges"]] == ["br0"]
    host.ip("link", "set", "br0", "down")
    finding = node.find("bridge-down")
    assert '"br0"' in finding["text"]
    node.run_fix(finding)
