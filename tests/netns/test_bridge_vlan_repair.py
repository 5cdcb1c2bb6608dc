"""The gateway in a VLAN of bridge that another program changed or created: ADD repairs or refuses it."""

import pytest

from tests.support.attaching import host_end, reaches
from tests.support.netstate import links, shown, state
from tests.support.vlans import PVID_FLAGS, gateway_port, vlans

pytestmark = pytest.mark.needs("vlan_filtering")
CHANGES = {
    "down": ["ip link set {port} down"],
    "not a port": ["ip link set {port} nomaster"],
    "tagged": ["bridge vlan add dev {port} vid 100 pvid"],
    "not the PVID": ["bridge vlan add dev {port} vid 100 untagged"],
    "no VLAN": ["bridge vlan del dev {port} vid 100"],
    "another VLAN": ["bridge vlan add dev {port} vid 7"],
    "a port again": ["ip link set {port} nomaster", "ip link set {port} master cni0"],
}
BY_HAND = "link add link {parent} name cni0.100 type vlan id {vid}"
REFUSED = {
    "the bridge not in the VLAN": (("cni0", 100), 'bridge vlan add dev "cni0" vid 100 self'),
    "another VLAN": (("cni0", 200), 'ip link delete "cni0.100"'),
    "another interface": (("d0", 100), 'ip link delete "cni0.100"'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_disconnected_gateway_is_repaired(network, new_sandbox, change):
    """CHECK reports a gateway interface that is not connected, and the next ADD in the VLAN repairs it."""
    net = network.having(vlan=100)
    first, second = new_sandbox(), new_sandbox()
    result = net.add(first)
    port = gateway_port(net.host)
    mac = shown(net.host, "cni0")["address"]
    for line in CHANGES[change]:
        net.host.run(*line.format(port=port).split())
    assert f'"{port}"' in net.run("CHECK", first, prev_result=result).error()["details"]
    net.add(second)
    assert vlans(net.host, port) == {100: PVID_FLAGS}
    assert (gateway_port(net.host), shown(net.host, "cni0")["address"]) == (port, mac)
    assert (reaches(first, "10.22.0.1"), reaches(second, "10.22.0.1")) == (True, True)
    net.check(first, result)


def test_veth_of_an_administrator_is_connected(network, sandbox, bridged):
    """A veth with the gateway's name whose other end is no port becomes the gateway."""
    bridged.ip("link", "add", "cni0.100", "type", "veth", "peer", "p0")
    net = network.having(vlan=100)
    result = net.add(sandbox)
    assert vlans(bridged, "p0") == {100: PVID_FLAGS}
    assert reaches(sandbox, "10.22.0.1")
    net.check(sandbox, result)


def test_gateway_in_the_default_vlan_is_accepted(network, new_sandbox):
    """A gateway that one network left in the default VLAN is accepted by another."""
    net, kept = network.having(vlan=100), network.having(vlan=100, preserveDefaultVlan=True)
    kept.add(new_sandbox())
    pod = new_sandbox()
    net.check(pod, net.add(pod))
    assert vlans(net.host, gateway_port(net.host)) == {1: ["Egress Untagged"], 100: PVID_FLAGS}


@pytest.mark.needs("vlan_device", "dummy")
@pytest.mark.parametrize("case", REFUSED)
def test_disconnected_8021q_interface_is_refused(network, sandbox, bridged, case):
    """ADD refuses an 802.1Q interface without connection to the VLAN with code 7 and the fix, and changes nothing."""
    (parent, vid), fix = REFUSED[case]
    bridged.ip("link", "set", "cni0", "up", "type", "bridge", "vlan_filtering", "1")
    bridged.ip("link", "add", "d0", "type", "dummy")
    bridged.ip(*BY_HAND.format(parent=parent, vid=vid).split())
    net = network.having(vlan=100)
    before = set(links(bridged)), shown(bridged, "cni0.100")["flags"], state(sandbox)
    error = net.run("ADD", sandbox).error()
    assert (error["code"], fix in error["details"]) == (7, True)
    assert (set(links(bridged)), shown(bridged, "cni0.100")["flags"], state(sandbox)) == before


@pytest.mark.needs("vlan_device")
def test_8021q_interface_of_an_administrator_is_used(network, sandbox, bridged):
    """An 802.1Q interface with the gateway's name is set up and used; CHECK reports a bridge that drops its VLAN."""
    bridged.ip("link", "set", "cni0", "up", "type", "bridge", "vlan_filtering", "1")
    bridged.run("bridge", "vlan", "add", "dev", "cni0", "vid", "100", "self")
    bridged.ip(*BY_HAND.format(parent="cni0", vid=100).split())
    net = network.having(vlan=100)
    result = net.add(sandbox)
    assert reaches(sandbox, "10.22.0.1")
    assert set(links(bridged)) == {"lo", "cni0", "cni0.100", host_end(result)}
    net.check(sandbox, result)
    bridged.run("bridge", "vlan", "del", "dev", "cni0", "vid", "100", "self")
    assert 'bridge "cni0" does not pass VLAN 100 to "cni0.100"' in net.check_error(sandbox, result)


def test_larger_gateway_mtu_causes_a_warning(network, new_sandbox):
    """A gateway whose MTU is larger than the pod's keeps it, since pods may need it, and stderr warns."""
    net = network.having(vlan=100, mtu=9000)
    net.add(new_sandbox())
    small = new_sandbox()
    outcome = net.having(mtu=1400).run("ADD", small)
    net.having(mtu=1400).check(small, outcome.result())
    assert shown(net.host, "cni0.100")["mtu"] == 9000
    assert 'bridge: interface "cni0.100" has MTU 9000: packets from the host to the pod' in outcome.stderr
